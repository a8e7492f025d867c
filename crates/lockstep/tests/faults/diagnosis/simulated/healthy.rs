//! Healthy simulated work: many runs at the same time, for simulated run-hours, during which no alert above severity info may be sent.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sim_cluster::{Noise, Part, Pause, Scenario};

use super::super::draw::{Chance, rounded};
use super::super::kind::Range;
use super::super::watch::Watch;
use super::batch::HealthyScenario;
use super::kinds::{noise, recording};
use super::poisson;
use super::session::Session;
use crate::trials;

const STRATEGIES: [&str; 3] = ["ddp", "fsdp2", "hsdp"];
/// Nodes and ranks per node.
const SIZES: [(u32, u32); 5] = [(1, 2), (1, 4), (1, 8), (2, 4), (2, 8)];
const NODES_PER_RUN_MAX: u32 = 2;
/// The rules compare with the best minute and with ten minutes.
const LENGTH_S: Range = (11.0 * 60.0, 25.0 * 60.0);
const STEP_S: Range = (0.12, 1.0);
/// How long a run is watched after its end.
const LOOKED_AT_AFTER: Duration = Duration::from_secs(75);
/// How long a run may take to start and to end, in addition to its length.
const OVERDUE: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_secs(1);
/// The state of each run is read every few seconds.
const STATES: Duration = Duration::from_secs(5);

/// What is special about the work of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Rank 0 evaluates alone, and all others wait.
    EvaluationOfRank0,
    EvaluationOfAll,
    /// Rank 0 saves checkpoints alone.
    SaveOfRank0,
    SaveOfAll,
    UnevenBatches,
    LateBatches,
    LongSteps,
    /// A person stops it and resumes it from the start.
    Resumed,
}

impl Work {
    const ALL: [Self; 8] = [
        Self::EvaluationOfRank0,
        Self::EvaluationOfAll,
        Self::SaveOfRank0,
        Self::SaveOfAll,
        Self::UnevenBatches,
        Self::LateBatches,
        Self::LongSteps,
        Self::Resumed,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::EvaluationOfRank0 => "evaluations of rank 0, 8 to 60 s",
            Self::EvaluationOfAll => "evaluations of all ranks, 8 to 60 s",
            Self::SaveOfRank0 => "checkpoint pauses of rank 0, 2 to 20 s",
            Self::SaveOfAll => "checkpoint pauses of all ranks, 2 to 20 s",
            Self::UnevenBatches => "uneven batches",
            Self::LateBatches => "batches that are late now and then",
            Self::LongSteps => "steps of 2 to 6 s",
            Self::Resumed => "stopped by a person, and resumed",
        }
    }

    /// Returns the pauses of the work.
    fn pauses(self, chance: &mut Chance) -> Vec<Pause> {
        let (rank, part, every_s, median_s) = match self {
            Self::EvaluationOfRank0 => (Some(0), Part::Host, (90.0, 240.0), (8.0, 60.0)),
            Self::EvaluationOfAll => (None, Part::Host, (90.0, 240.0), (8.0, 60.0)),
            Self::SaveOfRank0 => (Some(0), Part::Save, (60.0, 180.0), (2.0, 20.0)),
            Self::SaveOfAll => (None, Part::Save, (60.0, 180.0), (2.0, 20.0)),
            Self::UnevenBatches | Self::LateBatches | Self::LongSteps | Self::Resumed => return Vec::new(),
        };
        vec![Pause {
            rank,
            part,
            every_s: rounded(chance.between(every_s)),
            median_s: rounded(chance.between(median_s)),
            sigma: 0.1,
        }]
    }
}

/// A run of the healthy work.
struct Planned {
    number: u32,
    work: Work,
    size: (u32, u32),
    length_s: f64,
    scenario: Scenario,
}

impl Planned {
    fn new(seed: u64, number: u32) -> Self {
        let mut chance = Chance::new(&format!("healthy/{seed}/{number}"));
        let work = Work::ALL[number as usize % Work::ALL.len()];
        let strategy = STRATEGIES[chance.below(STRATEGIES.len())];
        let size = SIZES[chance.below(SIZES.len())];
        let length_s = rounded(chance.between(LENGTH_S));
        let step_s = match work {
            Work::LongSteps => (2.0, 6.0),
            _ => STEP_S,
        };
        let usual = noise(&mut chance);
        let scenario = Scenario {
            step_s: rounded(chance.between(step_s)),
            seed: Some(chance.next()),
            noise: match work {
                Work::UnevenBatches => Noise {
                    batch_sigma: 0.3,
                    ..usual
                },
                Work::LateBatches => Noise {
                    pause_chance: 0.01,
                    ..usual
                },
                _ => usual,
            },
            pauses: work.pauses(&mut chance),
            // A run that is resumed ends by itself only afterwards.
            ends_after_s: (work != Work::Resumed).then_some(length_s),
            ..Scenario::even(format!("healthy-{number}"), recording(strategy))
        };
        Self {
            number,
            work,
            size,
            length_s,
            scenario,
        }
    }

    fn in_words(&self) -> String {
        format!(
            "run {}, {} of {} × {} ranks, steps of {} s, {:?}, {:?}",
            self.number,
            self.scenario.workload.recipe,
            self.size.0,
            self.size.1,
            self.scenario.step_s,
            self.scenario.noise,
            self.scenario.pauses
        )
    }
}

/// Returns a healthy run with short steps that does not end, for a batch of trials.
pub(super) fn short(seed: u64, number: u32) -> HealthyScenario {
    let planned = Planned::new(seed, number);
    let scenario = Scenario {
        step_s: 0.2,
        ends_after_s: None,
        ..planned.scenario
    };
    (scenario, planned.size)
}

/// A run that has ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct HealthyRun {
    seed: u64,
    number: u32,
    work: String,
    hours: f64,
    /// What was drawn for it.
    drawn: String,
    /// Rules whose alerts were sent.
    alerts: Vec<String>,
}

/// The healthy work to do.
pub(super) struct Healthy {
    pub(super) seed: u64,
    pub(super) hours: f64,
    /// Number of runs at the same time.
    pub(super) runs: u32,
    /// File to which each run is added when it ends.
    pub(super) results: Option<PathBuf>,
}

struct Active {
    planned: Planned,
    watch: Watch,
    nodes: Vec<String>,
    began: Instant,
    resumed: bool,
    ended: Option<(Instant, f64)>,
}

impl Healthy {
    /// Runs what is missing of the hours. Returns all runs.
    pub(super) fn run(&self) -> Result<Vec<HealthyRun>> {
        let mut done: Vec<HealthyRun> = self.results.as_deref().map(trials::read).unwrap_or_default();
        done.retain(|run| run.seed == self.seed);
        let missing = self.missing(&done);
        if missing.is_empty() {
            return Ok(done);
        }
        let scenarios = missing.iter().map(|planned| planned.scenario.clone()).collect();
        let mut session = Session::start(self.runs * NODES_PER_RUN_MAX, false, scenarios)?;
        let mut waiting = missing.into_iter();
        let (mut active, mut states) = (Vec::<Active>::new(), Instant::now());
        loop {
            while active.iter().filter(|run| run.ended.is_none()).count() < self.runs as usize {
                let Some(planned) = waiting.next() else { break };
                active.push(Active::begin(&session, planned)?);
            }
            if active.is_empty() {
                return Ok(done);
            }
            // Healthy work has no faults: empty the queue only.
            ensure!(session.begun().is_empty(), "a fault has begun in healthy work");
            let alerts = session.alerts();
            active.iter_mut().for_each(|run| run.take(&alerts));
            if states.elapsed() >= STATES {
                states = Instant::now();
                for run in &mut active {
                    run.follow(&session)?;
                }
            }
            let (over, rest): (Vec<Active>, Vec<Active>) = active.into_iter().partition(|run| run.is_over());
            active = rest;
            for run in over {
                let run = run.result(self.seed);
                println!("healthy run {}: {:?}", run.number, run.alerts);
                self.results.iter().for_each(|file| trials::add(file, &run));
                done.push(run);
            }
            std::thread::sleep(POLL);
        }
    }

    /// Returns the runs that are still needed for the hours.
    fn missing(&self, done: &[HealthyRun]) -> Vec<Planned> {
        let mut hours: f64 = done.iter().map(|run| run.hours).sum();
        let mut missing = Vec::new();
        let numbers = (1..).filter(|number| !done.iter().any(|run| run.number == *number));
        for number in numbers {
            if hours >= self.hours {
                break;
            }
            let planned = Planned::new(self.seed, number);
            hours += planned.length_s / 3_600.0;
            missing.push(planned);
        }
        missing
    }
}

impl Active {
    fn begin(session: &Session, planned: Planned) -> Result<Self> {
        let run = session.submit(&planned.scenario, planned.size)?;
        Ok(Self {
            watch: Watch::new(&run),
            planned,
            nodes: Vec::new(),
            began: Instant::now(),
            resumed: false,
            ended: None,
        })
    }

    /// Takes the alerts about the run, and those about its nodes only. Nodes are not shared.
    fn take(&mut self, alerts: &Value) {
        let (run, nodes) = (self.watch.run().to_owned(), &self.nodes);
        self.watch.take(alerts, |alert| {
            let labels = &alert["labels"];
            match labels["run"].as_str() {
                Some(of) => of == run,
                None => labels["node"]
                    .as_str()
                    .is_some_and(|name| nodes.iter().any(|node| node == name)),
            }
        });
    }

    /// Reads the state of the run. Stops and resumes it if that is planned.
    fn follow(&mut self, session: &Session) -> Result<()> {
        if self.ended.is_some() {
            return Ok(());
        }
        let run = self.watch.run().to_owned();
        if self.nodes.is_empty() {
            self.nodes = session.nodes_of(&run);
        }
        let view = session.api.get(&format!("/api/runs/{run}"));
        let state = view["state"].as_str().unwrap_or_default();
        ensure!(state != "failed", "{run} failed: {}", view["outcome"]);
        let length = Duration::from_secs_f64(self.planned.length_s);
        let is_stopped_by_person = self.planned.work == Work::Resumed;
        let elapsed = self.began.elapsed();
        ensure!(
            elapsed < length + OVERDUE,
            "{run} is still {state} after {} s",
            elapsed.as_secs()
        );
        match state {
            "succeeded" => self.ended = Some((Instant::now(), elapsed.as_secs_f64())),
            "stopped" if self.resumed => self.ended = Some((Instant::now(), elapsed.as_secs_f64())),
            "stopped" => {
                let resumed = session
                    .api
                    .post(&format!("/api/runs/{run}/resume"), &json!({ "from_start": true }));
                ensure!(resumed["id"] == run.as_str(), "{run} was not resumed: {resumed}");
                self.resumed = true;
                self.nodes.clear();
            }
            "running" if is_stopped_by_person => {
                // Once in the middle, and at the end.
                let due = if self.resumed { length } else { length / 2 };
                if elapsed >= due {
                    session
                        .api
                        .post(&format!("/api/runs/{run}/stop"), &json!({ "grace_ms": 10_000 }));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.ended.is_some_and(|(at, _)| at.elapsed() >= LOOKED_AT_AFTER)
    }

    fn result(&self, seed: u64) -> HealthyRun {
        let alerts = self.watch.alerts(0);
        HealthyRun {
            seed,
            number: self.planned.number,
            work: self.planned.work.name().to_owned(),
            hours: self.ended.map_or(0.0, |(_, lasted_s)| lasted_s / 3_600.0),
            drawn: self.planned.in_words(),
            alerts: alerts
                .into_iter()
                .map(|alert| match alert.rank {
                    Some(rank) => format!("{} of rank {rank}", alert.rule),
                    None => alert.rule,
                })
                .collect(),
        }
    }
}

/// Returns the number of sent alerts.
pub(super) fn false_alarms(runs: &[HealthyRun]) -> usize {
    runs.iter().map(|run| run.alerts.len()).sum()
}

/// Returns the table of all runs by kind of work, and each false alarm with what was drawn.
pub(super) fn table(runs: &[HealthyRun]) -> String {
    let mut rows: BTreeMap<&str, (usize, f64, usize)> = BTreeMap::new();
    for run in runs {
        let row = rows.entry(&run.work).or_default();
        *row = (row.0 + 1, row.1 + run.hours, row.2 + run.alerts.len());
    }
    let mut text = String::from("| work | runs | run-hours | alerts above info |\n|---|---:|---:|---:|\n");
    for (work, (count, hours, alerts)) in rows {
        let _infallible = writeln!(text, "| {work} | {count} | {hours:.1} | {alerts} |");
    }
    let hours: f64 = runs.iter().map(|run| run.hours).sum();
    let count = false_alarms(runs);
    let (low, high) = poisson::interval(count as u32);
    let _infallible = writeln!(
        text,
        "\n- False alarms: {count} in {hours:.1} run-hours, {:.3} per run-hour (95 % interval {:.3}–{:.3}).",
        count as f64 / hours,
        low / hours,
        high / hours
    );
    for run in runs.iter().filter(|run| !run.alerts.is_empty()) {
        let _infallible = writeln!(
            text,
            "- **{}**: seed {}, {}.",
            run.alerts.join(", "),
            run.seed,
            run.drawn
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_command_plans_only_the_missing_hours() {
        let healthy = Healthy {
            seed: 1001,
            hours: 10.0,
            runs: 50,
            results: None,
        };
        let all = healthy.missing(&[]);
        let hours: f64 = all.iter().map(|planned| planned.length_s / 3_600.0).sum();
        assert!((10.0..10.5).contains(&hours), "{hours}");
        let works: std::collections::BTreeSet<&str> = all.iter().map(|planned| planned.work.name()).collect();
        assert_eq!(works.len(), Work::ALL.len());
        let done = HealthyRun {
            seed: 1001,
            number: 2,
            work: String::new(),
            hours: 9.9,
            drawn: String::new(),
            alerts: Vec::new(),
        };
        let rest = healthy.missing(&[done]);
        assert_eq!(rest.iter().map(|planned| planned.number).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn each_false_alarm_is_listed_with_what_was_drawn() {
        let run = |alerts: &[&str]| HealthyRun {
            seed: 1001,
            number: 3,
            work: "uneven batches".to_owned(),
            hours: 0.5,
            drawn: "what was drawn".to_owned(),
            alerts: alerts.iter().map(|rule| (*rule).to_owned()).collect(),
        };
        let text = table(&[run(&[]), run(&["StragglerRank of rank 2"])]);
        assert!(text.contains("| uneven batches | 2 | 1.0 | 1 |"), "{text}");
        assert!(text.contains("False alarms: 1 in 1.0 run-hours, 1.000"), "{text}");
        assert!(
            text.contains("- **StragglerRank of rank 2**: seed 1001, what was drawn."),
            "{text}"
        );
    }
}
