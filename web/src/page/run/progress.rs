//! How far a run is: its step, its throughput, and the time until its last step if that step is known.

use domain::api::stream::{Column, Request};
use domain::metric::Unit;
use domain::run::state::RunState;
use domain::time::{DisplayDuration, TimestampMs};
use leptos::prelude::*;

use super::pace::{RANGE_MS, StepAt, pace_ms, remaining_ms};
use super::run_signal::RunSignal;
use crate::language::{tr, tr_with};
use crate::live::{Live, Run, StreamMessage};
use crate::ui::{effect, fixed, show, text};

/// Distance of the points that the pace is computed from.
const POINT_MS: i64 = 10_000;

/// The values now: the highest step of all ranks, and the median throughput of a rank.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Now {
    step: Option<f64>,
    samples_per_second: Option<f64>,
}

/// One line; hidden if no step is known.
#[component]
pub(super) fn Progress(
    /// The run's id.
    id: String,
    /// The run.
    run: RunSignal,
) -> impl IntoView {
    let (now, points) = (RwSignal::new(Now::default()), RwSignal::new(Vec::new()));
    let live = expect_context::<Live>();
    let attempt = Memo::new(move |_| run.with(|run| run.as_ref().map_or(0, |run| run.summary.attempt.0)));
    effect(move || {
        let of = |metric: &str| of_attempt(metric, &id, attempt.get());
        // Removes what belongs to the attempt before.
        now.set(Now::default());
        watch_now(live, now, &of("train_step"), &of("train_samples_per_second"));
        watch_points(live, points, &of("train_step"));
    });
    let step = move || {
        let last = run.with(|run| last_step(run.as_ref()?));
        now.get().step.or(last)
    };
    let total = move || run.with(|run| run.as_ref()?.more.total_steps.map(f64::from));
    let state = move || run.with(|run| Some(run.as_ref()?.summary.state));
    let is_running = move || state() == Some(RunState::Running);
    let remaining = move || {
        let pace_ms = points.with(|points| pace_ms(points)).filter(|_| is_running())?;
        let steps = total()? - now.get().step?;
        (steps > 0.0).then(|| remaining_ms(steps, pace_ms))
    };
    let steps = text(move || step().map(|step| step_words(step, total())).unwrap_or_default());
    let throughput = text(move || {
        // The values of a lost node are the newest ones for some minutes.
        let rate = now.get().samples_per_second.filter(|_| is_running());
        let rate = rate.map(|rate| show(rate, Unit::PerSecond));
        rate.map(|rate| tr_with("{rate} samples/s per rank", &[("rate", &rate)]))
            .unwrap_or_default()
    });
    let left = text(move || {
        let time = remaining().map(DisplayDuration);
        time.map(|time| tr_with("about {time} left", &[("time", &time)]))
            .unwrap_or_default()
    });
    view! {
        <p class="w-full flex flex-wrap gap-x-4" hidden=move || step().is_none() data-testid="run-progress">
            <span class="font-semibold" title=tr("The last step that any of its ranks finished")>{steps}</span>
            <span class="empty:hidden" title=tr("Samples per second of a rank, now: the median over the ranks")>{throughput}</span>
            <span class="empty:hidden" title=tr("Steps left × time per step of this attempt in the last 30 minutes, with its pauses for checkpoints. Shown only while the pace is steady. The total is the setting “steps” of the recipe.")>{left}</span>
        </p>
    }
}

fn step_words(step: f64, total: Option<f64>) -> String {
    let shown = fixed(step, 0);
    match total.filter(|total| step <= *total) {
        Some(total) => {
            let (share, total) = (show(step / total, Unit::Ratio), fixed(total, 0));
            tr_with(
                "step {step} of {total} ({share})",
                &[("step", &shown), ("total", &total), ("share", &share)],
            )
        }
        None => tr_with("step {step}", &[("step", &shown)]),
    }
}

/// Returns the last step that the newest attempt reported.
fn last_step(run: &Run) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a number of steps fits 53 bits")]
    let as_float = |step: u64| step as f64;
    run.more.attempts.last()?.last_step.map(as_float)
}

/// Returns the query of a metric of the ranks of an attempt. The values of a lost node stay the newest of its ranks for some minutes, while
/// the next attempt trains elsewhere.
fn of_attempt(metric: &str, run: &str, attempt: u32) -> String {
    let of_run = format!("{metric}{{run=\"{run}\"}}");
    match attempt {
        // There is no attempt before it.
        ..=1 => of_run,
        _ => {
            format!("{of_run} and on (node, rank) train_info{{run=\"{run}\",attempt=\"{attempt}\"}}")
        }
    }
}

fn watch_now(live: Live, now: RwSignal<Now>, steps: &str, rates: &str) {
    let query = now_query(steps, rates);
    live.watch(
        |id| Request::WatchInstant { id, query },
        move |message| {
            if let StreamMessage::Frame { series, .. } = message {
                let value = |name: &str| {
                    let column = series.iter().find(|column| column.labels.get("is") == Some(name));
                    column?.values.last().copied().flatten()
                };
                now.set(Now {
                    step: value("step"),
                    samples_per_second: value("rate"),
                });
            }
        },
    );
}

/// Returns the query for the values now. Ranks of a node that is down have no throughput.
fn now_query(steps: &str, rates: &str) -> String {
    let rate = format!("quantile(0.5, {rates} unless on (node) node_up == 0)");
    let part = |query: &str, name: &str| format!("label_replace({query}, \"is\", \"{name}\", \"\", \"\")");
    format!(
        "{} or {}",
        part(&format!("max({steps})"), "step"),
        part(&rate, "rate")
    )
}

fn watch_points(live: Live, points: RwSignal<Vec<StepAt>>, steps: &str) {
    let query = format!("max({steps})");
    live.watch(
        |id| Request::WatchRange {
            id,
            query,
            range_ms: RANGE_MS,
            step_ms: POINT_MS,
            extremes: false,
            end_ms: None,
        },
        move |message| {
            if let StreamMessage::Frame {
                reset,
                times_ms,
                series,
                ..
            } = message
            {
                points.update(|points| take(points, reset, &times_ms, &series));
            }
        },
    );
}

/// Adds the points of a frame, and removes those that have become too old. Removes all if no step has ended for so long that the newest time has
/// none: then there is no pace.
fn take(points: &mut Vec<StepAt>, reset: bool, times_ms: &[TimestampMs], series: &[Column]) {
    if reset {
        points.clear();
    }
    for column in series {
        let values = times_ms.iter().zip(&column.values);
        points.extend(values.filter_map(|(at_ms, step)| {
            Some(StepAt {
                at_ms: *at_ms,
                step: (*step)?,
            })
        }));
    }
    let newest_ms = times_ms.last().copied().unwrap_or_default();
    if points.last().is_some_and(|point| point.at_ms < newest_ms) {
        points.clear();
    }
    points.retain(|point| point.at_ms >= newest_ms - RANGE_MS);
}

#[cfg(test)]
mod tests {
    use domain::series::Labels;

    use super::*;

    #[test]
    fn a_later_attempt_has_only_its_own_values() {
        assert_eq!(of_attempt("train_step", "r-1", 1), "train_step{run=\"r-1\"}");
        assert_eq!(
            of_attempt("train_step", "r-1", 2),
            "train_step{run=\"r-1\"} and on (node, rank) train_info{run=\"r-1\",attempt=\"2\"}"
        );
    }

    #[test]
    fn a_node_that_is_down_has_no_throughput() {
        assert_eq!(
            now_query("train_step", "train_samples_per_second"),
            "label_replace(max(train_step), \"is\", \"step\", \"\", \"\") or \
             label_replace(quantile(0.5, train_samples_per_second unless on (node) node_up == 0), \"is\", \"rate\", \"\", \"\")"
        );
    }

    #[test]
    fn the_step_has_its_total_unless_the_total_is_wrong() {
        for (step, total, expected) in [
            (12_400.0, Some(50_000.0), "step 12400 of 50000 (24.8 %)"),
            (50_000.0, Some(50_000.0), "step 50000 of 50000 (100.0 %)"),
            (50_001.0, Some(50_000.0), "step 50001"),
            (7.0, None, "step 7"),
        ] {
            assert_eq!(step_words(step, total), expected);
        }
    }

    #[test]
    fn points_are_added_and_old_ones_go() {
        let column = |values: &[Option<f64>]| Column {
            labels: Labels::empty(),
            values: values.to_vec(),
            not_finite: vec![],
            min: vec![],
            max: vec![],
        };
        let mut points = Vec::new();
        take(
            &mut points,
            true,
            &[0, 10_000, 20_000],
            &[column(&[Some(1.0), None, Some(3.0)])],
        );
        assert_eq!(points.len(), 2);
        take(&mut points, false, &[RANGE_MS + 10_000], &[column(&[Some(9.0)])]);
        let times: Vec<TimestampMs> = points.iter().map(|point| point.at_ms).collect();
        assert_eq!(times, [20_000, RANGE_MS + 10_000]);
        take(&mut points, false, &[RANGE_MS + 20_000], &[]);
        assert!(points.is_empty(), "nothing was measured");
        take(&mut points, true, &[], &[]);
        assert!(points.is_empty());
    }
}
