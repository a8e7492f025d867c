//! Goodput of runs: their stored attempts, and the series of rank 0, for `domain::run::goodput`.
//!
//! ```text
//! period ─ at most POINTS intervals ─▶ one query per list, over all runs ─▶ RunSamples by run ─▶ split ─▶ Goodput
//! ```
//! The cost does not depend on the number of ranks. Times are exact to one interval, and the ends of steps to a millisecond.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::api::goodput::{Goodput, RunGoodput, TimeUse};
use domain::ident::RunId;
use domain::run::goodput::{Breakdown, Counted, RunSamples, RunTime, Sample, Span, split};
use domain::run::state::Machine;
use domain::series::{Labels, METRIC_NAME};
use domain::time::TimestampMs;
use query::{MatrixSeries, Params, Value};

use super::Runs;
use super::error::RunError;
use crate::clock;
use crate::evaluator::QueryError;

/// The period of the goodput of all runs, if the request names none.
const DAY_MS: i64 = 86_400_000;
/// Number of intervals in which the series of a period are read: 30 seconds each for a day.
const POINTS: i64 = 2_880;
/// How far before the period the last step of a run is searched: a run without one was still starting.
const BEFORE_MS: i64 = DAY_MS;
/// Number of runs that are read, the newest ones. Runs that have not ended are always read.
const RUNS_MAX: u32 = 500;
/// Number of runs that are listed one by one.
const LISTED_MAX: usize = 100;

/// Selects the steps of rank 0. `,RUN` stands for the matcher of one run.
const STEPS: &str = r#"train_step{rank="0",RUN}"#;

type Field = fn(&mut RunSamples) -> &mut Vec<Sample>;

/// The other series. Each query has one series per run.
const SERIES: [(&str, Field); 8] = [
    (
        r#"count by (run) ({__name__=~"train_phase|train_last_step_age_seconds",rank="0",RUN})"#,
        |known| &mut known.observed,
    ),
    (
        r#"count by (run) (train_info{rank="0",device=~"cuda.*",RUN})"#,
        |known| &mut known.on_gpu,
    ),
    (
        r#"count by (run) ({__name__=~"run_stalled|diagnosis_hang_seconds",RUN})"#,
        |known| &mut known.stalled,
    ),
    (
        r#"count by (run) ({__name__="diagnosis_alone_seconds",RUN})"#,
        |known| &mut known.alone,
    ),
    (
        r#"max by (run) (train_checkpoint_blocked_seconds_total{rank="0",RUN})"#,
        |known| &mut known.saved_s,
    ),
    (
        r#"max by (run) (train_checkpoint_saving_seconds{rank="0",RUN})"#,
        |known| &mut known.saving_s,
    ),
    (
        r#"max by (run) (train_data_seconds{rank="0",RUN} / train_step_seconds{rank="0",RUN})"#,
        |known| &mut known.data_ratio,
    ),
    (
        r#"max by (run) ({__name__=~"diagnosis_straggler_ratio|diagnosis_rare_stall_ratio",RUN})"#,
        |known| &mut known.straggler_ratio,
    ),
];

/// Why the goodput of a period is not known.
#[derive(Debug, thiserror::Error)]
pub enum GoodputError {
    /// The period contains no time up to now.
    #[error("`end` must be after `start`, and `start` must not be in the future")]
    Period,
    /// A run is unknown or cannot be read.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The series cannot be read.
    #[error(transparent)]
    Query(#[from] QueryError),
}

impl Runs {
    /// Returns the goodput of one run, by default from its submission to its end, or of all runs, by default of the last 24 hours.
    ///
    /// # Errors
    /// Returns an error if the period is empty, the run is unknown, or the store fails.
    pub async fn goodput(
        &self,
        run: Option<&RunId>,
        start_ms: Option<TimestampMs>,
        end_ms: Option<TimestampMs>,
    ) -> Result<Goodput, GoodputError> {
        let now_ms = clock::now_ms();
        let (mut runs, usual) = match run {
            Some(run) => {
                let machine = self.machine(run).await?;
                let usual = life(&machine, now_ms);
                (vec![machine], usual)
            }
            None => (self.newest(RUNS_MAX).await?, Span::new(now_ms - DAY_MS, now_ms)),
        };
        let within = Span::new(
            start_ms.unwrap_or(usual.from_ms),
            end_ms.unwrap_or(usual.to_ms).min(now_ms),
        );
        if within.is_empty() {
            return Err(GoodputError::Period);
        }
        let truncated = run.is_none() && is_truncated(&runs, within);
        runs.retain(|machine| life(machine, now_ms).common(within).is_some());
        let samples = self.goodput_samples(run, &runs, within).await?;
        let work = move || Goodput {
            truncated,
            ..goodput(&runs, &samples, within, now_ms)
        };
        let answer = tokio::task::spawn_blocking(work).await;
        Ok(answer.map_err(QueryError::Engine)?)
    }

    /// Reads the samples of the runs, in intervals of equal length that end with the period.
    async fn goodput_samples(
        &self,
        run: Option<&RunId>,
        runs: &[Arc<Machine>],
        within: Span,
    ) -> Result<BTreeMap<String, RunSamples>, QueryError> {
        let mut known = BTreeMap::new();
        let Some(oldest_ms) = runs.iter().map(|machine| machine.submitted_ms).min() else {
            return Ok(known);
        };
        let length_ms = within.to_ms - within.from_ms;
        let interval_ms = (length_ms - 1) / POINTS + 1;
        let intervals = Params {
            start_ms: within.to_ms - (length_ms - 1) / interval_ms * interval_ms,
            end_ms: within.to_ms,
            step_ms: interval_ms,
            lookback_ms: interval_ms,
        };
        let matcher = run.map_or_else(String::new, |run| format!(",run=\"{run}\""));
        for (text, field) in SERIES {
            for series in self.matrix(&text.replace(",RUN", &matcher), intervals).await? {
                let samples = series.times.iter().zip(&series.values);
                let samples = samples.map(|(&at_ms, &value)| Sample { at_ms, value });
                if let Some(run) = known_run(&mut known, &series.labels, interval_ms) {
                    field(run).extend(samples);
                }
            }
        }
        let steps = STEPS.replace(",RUN", &matcher);
        self.read_steps(&steps, intervals, &mut known).await?;
        if oldest_ms < within.from_ms {
            let before = Params {
                start_ms: within.from_ms,
                end_ms: within.from_ms,
                lookback_ms: (within.from_ms - oldest_ms).min(BEFORE_MS),
                ..intervals
            };
            self.read_steps(&steps, before, &mut known).await?;
        }
        Ok(known)
    }

    /// Reads the newest step of each interval, with the time of its sample. A rank that moved to another node has two series.
    async fn read_steps(
        &self,
        selector: &str,
        intervals: Params,
        known: &mut BTreeMap<String, RunSamples>,
    ) -> Result<(), QueryError> {
        let values = self.matrix(selector, intervals).await?;
        let times = self.matrix(&format!("timestamp({selector})"), intervals).await?;
        let times: BTreeMap<Labels, MatrixSeries> = times
            .into_iter()
            .map(|series| (series.labels.clone(), series))
            .collect();
        for series in values {
            let unnamed = series.labels.filtered(|name| name != METRIC_NAME);
            let (Some(times), Some(run)) = (
                times.get(&unnamed),
                known_run(known, &series.labels, intervals.step_ms),
            ) else {
                continue;
            };
            // A sample that arrived between the two queries may be in one of them only.
            let at = |time_ms: &TimestampMs| times.times.binary_search(time_ms).ok();
            let samples = series.times.iter().zip(&series.values);
            run.steps.extend(samples.filter_map(|(time_ms, &value)| {
                let at_ms = (times.values[at(time_ms)?] * 1e3).round() as i64;
                Some(Sample { at_ms, value })
            }));
        }
        Ok(())
    }

    async fn matrix(&self, text: &str, times: Params) -> Result<Vec<MatrixSeries>, QueryError> {
        let output = self.parts.evaluator.evaluate(query::parse(text)?, times).await?;
        Ok(match output.value {
            Value::Matrix(series) => series,
            _ => Vec::new(),
        })
    }
}

/// Returns the samples of the run that a series belongs to, or `None` if it belongs to none.
fn known_run<'a>(
    known: &'a mut BTreeMap<String, RunSamples>,
    labels: &Labels,
    interval_ms: i64,
) -> Option<&'a mut RunSamples> {
    let run = labels.get("run")?.to_owned();
    Some(known.entry(run).or_insert_with(|| RunSamples {
        interval_ms,
        ..RunSamples::default()
    }))
}

/// Returns the time from the submission of a run to its end; at least a millisecond.
fn life(run: &Machine, now_ms: TimestampMs) -> Span {
    let ended_ms = run.ended_ms.filter(|_| run.state.is_final());
    Span::new(
        run.submitted_ms,
        ended_ms.unwrap_or(now_ms).max(run.submitted_ms + 1),
    )
}

/// Returns true if more runs may have been submitted in the period than were read.
fn is_truncated(runs: &[Arc<Machine>], within: Span) -> bool {
    let ended = runs.iter().filter(|run| run.state.is_final());
    let oldest_ms = ended.map(|run| run.submitted_ms).min();
    runs.len() >= RUNS_MAX as usize && oldest_ms.is_some_and(|oldest_ms| oldest_ms >= within.from_ms)
}

fn goodput(
    runs: &[Arc<Machine>],
    samples: &BTreeMap<String, RunSamples>,
    within: Span,
    now_ms: TimestampMs,
) -> Goodput {
    let none = RunSamples::default();
    let time = |run: &Arc<Machine>| {
        let known = samples.get(run.id.as_str()).unwrap_or(&none);
        (run.id.to_string(), split(run, known, within, now_ms))
    };
    let mut times: Vec<(String, RunTime)> = runs.iter().map(time).collect();
    times.retain(|(_, time)| time.breakdown.allocated_s() > 0.0);
    let (gpus, ranks) = (total(&times, Counted::Gpus), total(&times, Counted::Ranks));
    let lost_s = |time: &RunTime| time.breakdown.total_lost_s();
    times.sort_by(|(_, a), (_, b)| lost_s(b).total_cmp(&lost_s(a)));
    let listed = times.iter().take(LISTED_MAX).map(|(run, time)| RunGoodput {
        run: run.clone(),
        counted: time.counted,
        time: (&time.breakdown).into(),
    });
    let owner = |run: &str| {
        let machine = runs.iter().find(|machine| machine.id.as_str() == run);
        machine.and_then(|machine| machine.owner.clone())
    };
    let sentence = |total: &RunTime| {
        let sentence = total.breakdown.sentence(total.counted, total.held_s)?;
        let parts = [Some(sentence), largest_loss(&times, total, owner)];
        Some(parts.into_iter().flatten().collect::<Vec<_>>().join(" · "))
    };
    Goodput {
        start_ms: within.from_ms,
        end_ms: within.to_ms,
        sentence: sentence(&gpus).or_else(|| sentence(&ranks)),
        gpus: TimeUse::from(&gpus.breakdown),
        ranks: TimeUse::from(&ranks.breakdown),
        runs: listed.collect(),
        truncated: false,
    }
}

/// Names the run that lost the most time, and its owner. Returns `None` if no other run is counted like this, or if it lost too little to show.
/// `times`: the runs with the most lost time first.
fn largest_loss(
    times: &[(String, RunTime)],
    total: &RunTime,
    owner: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let mut counted = times.iter().filter(|(_, time)| time.counted == total.counted);
    let ((run, time), _another) = (counted.next()?, counted.next()?);
    let lost = total
        .breakdown
        .part_in_words(total.counted, time.breakdown.total_lost_s())?;
    let owner = owner(run).map_or_else(String::new, |owner| format!(", owner {owner}"));
    Some(format!("largest loss: {run} ({lost}{owner})"))
}

/// Returns the time of all runs that are counted like this, and for how long one of them held nodes at most.
fn total(times: &[(String, RunTime)], counted: Counted) -> RunTime {
    let (mut breakdown, mut held_s) = (Breakdown::default(), 0.0_f64);
    for (_, time) in times.iter().filter(|(_, time)| time.counted == counted) {
        breakdown.merge(&time.breakdown);
        held_s = held_s.max(time.held_s);
    }
    RunTime {
        counted,
        held_s,
        breakdown,
    }
}

#[cfg(test)]
mod tests {
    use domain::run::goodput::LossCause;

    use super::*;

    fn time(run: &str, counted: Counted, lost_s: f64) -> (String, RunTime) {
        let breakdown = Breakdown {
            lost_s: [(LossCause::Stall, lost_s)].into(),
            ..Breakdown::default()
        };
        let time = RunTime {
            counted,
            held_s: 3_600.0,
            breakdown,
        };
        (run.to_owned(), time)
    }

    #[test]
    fn the_run_with_the_largest_loss_is_named_with_its_owner() {
        let owner = |run: &str| (run == "llama-1").then(|| "alice".to_owned());
        let times = [
            time("cpu-1", Counted::Ranks, 90_000.0),
            time("llama-1", Counted::Gpus, 28_800.0),
            time("vit-1", Counted::Gpus, 60.0),
        ];
        let found = |times: &[(String, RunTime)], counted| {
            let total = total(times, counted);
            largest_loss(times, &total, owner)
        };
        assert_eq!(
            found(&times, Counted::Gpus).as_deref(),
            Some("largest loss: llama-1 (8.0 GPU-h, owner alice)")
        );
        assert_eq!(found(&times, Counted::Ranks), None, "it is the only one");
        let watched = [
            time("seen-1", Counted::Gpus, 120.0),
            time("seen-2", Counted::Gpus, 60.0),
        ];
        assert_eq!(
            found(&watched, Counted::Gpus).as_deref(),
            Some("largest loss: seen-1 (2.0 GPU-min)")
        );
        let without = [time("a-1", Counted::Gpus, 0.0), time("a-2", Counted::Gpus, 0.0)];
        assert_eq!(found(&without, Counted::Gpus), None, "nothing was lost");
    }
}
