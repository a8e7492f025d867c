//! Compares what was true after a fault with what must be true.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde_json::Value;

use crate::fault::{Fault, STEPS};
use crate::fault_run::{FaultRun, pids};
use crate::fleet::wait;
use crate::orphans;
use crate::training::{Losses, RANKS};

use std::time::Duration;

/// The end of a run is reported at once, but samples come every second, and a machine that was cut off may try again only after a minute.
const SAMPLES_WITHIN: Duration = Duration::from_secs(90);

/// The result of one repeat.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// The final state and the number of attempts are right.
    pub(crate) state: bool,
    /// The cause and the culprit of the first attempt's end are right.
    pub(crate) cause: bool,
    /// The second attempt resumed at the right step, and its losses are those of an undisturbed run. Also true if nothing had to be resumed
    /// and the losses are right.
    pub(crate) resumed: bool,
    /// The curves of steps and losses contain each step of the run once, over all attempts, with the right loss.
    pub(crate) charts: bool,
    /// Number of processes that were left.
    pub(crate) orphans: usize,
    /// Seconds from the fault until the run was in a state other than running.
    pub(crate) detect_s: Option<f64>,
    /// Seconds from the fault until the attempt had ended completely.
    pub(crate) end_s: Option<f64>,
    /// How the fault was done, if there is more than one way.
    pub(crate) how: Option<&'static str>,
    /// What was wrong, in sentences.
    pub(crate) problems: Vec<String>,
    /// The losses of the undisturbed training.
    pub(crate) losses: Losses,
}

impl Verdict {
    /// Returns true if nothing was wrong.
    pub(crate) fn is_right(&self) -> bool {
        self.problems.is_empty()
    }

    fn must(&mut self, is_so: bool, otherwise: impl FnOnce() -> String) -> bool {
        if !is_so {
            self.problems.push(otherwise());
        }
        is_so
    }
}

/// Does a fault to a run, and judges what is true afterwards. `reference` has the right losses of each step; it is `None` for the run that
/// produces it.
pub(crate) fn of(fault: &Fault, reference: Option<&Losses>) -> Verdict {
    let mut verdict = Verdict::default();
    let mut fault_run = match FaultRun::begin(fault) {
        Ok(fault_run) => fault_run,
        Err(error) => {
            verdict
                .problems
                .push(format!("it could not be set up: {error:#}"));
            return verdict;
        }
    };
    let inflicted = (fault.inflict)(&mut fault_run);
    let ended = inflicted.and_then(|()| fault_run.wait_for_any_end());
    if let Err(error) = ended {
        verdict.problems.push(format!("{error:#}"));
    }
    let view = fault_run.view();
    verdict.how = fault_run.fleet.link().map(|link| link.in_words());
    judge_state(&mut verdict, fault, &fault_run, &view);
    judge_cause(&mut verdict, fault, &view);
    judge_training(&mut verdict, fault, &fault_run, &view, reference);
    judge_charts(&mut verdict, fault, &fault_run, &view, reference);
    judge_times(&mut verdict, fault, &fault_run, &view);
    let left = orphans::left_of(&fault_run.run);
    verdict.orphans = left.len();
    verdict.must(left.is_empty(), || {
        format!("processes are left: {}", left.join("; "))
    });
    verdict
}

impl FaultRun {
    /// Waits for the end, in whichever state.
    fn wait_for_any_end(&mut self) -> Result<()> {
        match self.view()["state"].as_str() {
            Some("failed" | "stopped") => Ok(()),
            _ => self.wait_for_end(),
        }
    }
}

fn judge_state(verdict: &mut Verdict, fault: &Fault, fault_run: &FaultRun, view: &Value) {
    let expected = &fault.expected;
    let state = view["state"].as_str().unwrap_or("not to be had");
    let message = view["outcome"]["message"].as_str().unwrap_or_default();
    let attempts = view["attempts"].as_array().map_or(0, Vec::len);
    let well = verdict.must(state == expected.state && attempts == expected.attempts, || {
        format!(
            "the run is {state} after {attempts} attempts, not {} after {}: {message}",
            expected.state, expected.attempts
        )
    });
    let went_on = expected.cause.is_some()
        || fault_run.pids_before.is_empty()
        || verdict.must(pids(view) == fault_run.pids_before, || {
            format!(
                "the processes {:?} did not go on: {:?}",
                fault_run.pids_before,
                pids(view)
            )
        });
    let says_so = verdict.must(message.to_lowercase().contains(expected.final_message), || {
        format!(
            "the run's final message must contain {:?}: {message}",
            expected.final_message
        )
    });
    verdict.state = well && went_on && says_so;
}

fn judge_cause(verdict: &mut Verdict, fault: &Fault, view: &Value) {
    let outcome = &view["attempts"][0]["outcome"];
    let Some(expected) = &fault.expected.cause else {
        verdict.cause = verdict.must(outcome["cause"] == "succeeded", || {
            format!("the attempt did not end well: {outcome}")
        });
        return;
    };
    let message = outcome["message"].as_str().unwrap_or_default().to_lowercase();
    let named = expected.words.iter().any(|word| outcome["cause"] == *word)
        && expected.node.is_none_or(|node| outcome["node"] == node)
        && expected.rank.is_none_or(|rank| outcome["rank"] == rank)
        && message.contains(expected.says);
    verdict.cause = verdict.must(named, || {
        let rank = expected
            .rank
            .map_or(String::new(), |rank| format!(", rank {rank}"));
        let node = expected
            .node
            .map_or(String::new(), |node| format!(", node {node}"));
        format!(
            "the first attempt's end must be put down to {}{rank}{node} (\"{}\"), and is to {outcome}",
            expected.words.join(" or "),
            expected.says
        )
    });
}

fn judge_training(
    verdict: &mut Verdict,
    fault: &Fault,
    fault_run: &FaultRun,
    view: &Value,
    reference: Option<&Losses>,
) {
    let before = verdict.problems.len();
    let attempts = fault.expected.attempts as u64;
    if let Some(step) = fault.expected.resumed_at {
        let reported = &view["attempts"][1]["resumed_from"]["step"];
        let is_expected = if step == 0 {
            reported.is_null()
        } else {
            *reported == step
        };
        verdict.must(is_expected, || {
            format!("attempt 2 must go on from step {step}, and goes on from {reported}")
        });
        let first = fault_run.training.losses(2).keys().map(|(_, step)| *step).min();
        verdict.must(first == Some(step + 1), || {
            format!(
                "attempt 2 must begin with step {}, and began with {first:?}",
                step + 1
            )
        });
    }
    let whole = fault.expected.state != "succeeded" || fault_run.training.has_finished(attempts, STEPS);
    verdict.must(whole, || format!("attempt {attempts} did not train step {STEPS}"));
    for attempt in 1..=attempts {
        let losses = fault_run.training.losses(attempt);
        let other = reference.and_then(|reference| {
            losses
                .iter()
                .find(|(key, loss)| reference.get(key) != Some(*loss))
        });
        verdict.must(other.is_none(), || {
            format!("the losses of attempt {attempt} are not those of an undisturbed run, first at (rank, step) {other:?}")
        });
        verdict.losses.extend(losses);
    }
    verdict.resumed = verdict.problems.len() == before;
}

/// Checks a rank's curve over all attempts. For a step that was trained again, the value of the last attempt counts.
fn judge_charts(
    verdict: &mut Verdict,
    fault: &Fault,
    fault_run: &FaultRun,
    view: &Value,
    reference: Option<&Losses>,
) {
    let before = verdict.problems.len();
    let last = fault_run.training.losses(fault_run.training.newest_attempt());
    let last = last.keys().map(|(_, step)| *step).max().unwrap_or(0);
    for rank in 0..RANKS {
        let samples = |metric: &str| fault_run.curve(metric, rank);
        let stored = wait("the last samples of all steps", SAMPLES_WITHIN, || {
            let (steps, losses) = (samples("train_step"), samples("train_loss"));
            let stored_steps: BTreeSet<u64> = steps.iter().map(|(_, step)| *step as u64).collect();
            steps.len() == losses.len() && (1..=last).all(|step| stored_steps.contains(&step))
        });
        let steps = samples("train_step");
        verdict.must(stored.is_ok(), || {
            let stored_steps: Vec<u64> = steps.iter().map(|(_, step)| *step as u64).collect();
            format!("rank {rank}'s curve has not all steps up to {last}: {stored_steps:?}")
        });
        let losses: BTreeMap<i64, f64> = samples("train_loss").into_iter().collect();
        let joined = joined(&by_attempt(view, &steps), verdict, rank);
        if fault.expected.state == "succeeded" {
            let all: Vec<u64> = (1..=STEPS).collect();
            let found: Vec<u64> = joined.keys().copied().collect();
            verdict.must(found == all, || {
                format!("rank {rank}'s curve has the steps {found:?}")
            });
        }
        let reference = reference.cloned().unwrap_or_else(|| verdict.losses.clone());
        // Compare 32-bit values, as PyTorch has them: a double may lose its last bit in JSON.
        let wrong = joined.iter().find(|(step, at)| {
            let expected = reference.get(&(rank, **step));
            let expected = expected.and_then(|loss| loss.parse::<f32>().ok());
            expected != losses.get(at).map(|loss| *loss as f32)
        });
        let wrong = wrong.map(|(step, at)| (*step, losses.get(at).copied()));
        verdict.must(wrong.is_none(), || {
            format!("rank {rank}'s loss curve is wrong, first at (step, loss) {wrong:?}")
        });
    }
    verdict.charts = verdict.problems.len() == before;
}

/// Groups the samples of steps by the attempt in whose time they are.
fn by_attempt(view: &Value, steps: &[(i64, f64)]) -> Vec<Vec<(i64, u64)>> {
    let attempts = view["attempts"].as_array().cloned().unwrap_or_default();
    let begun: Vec<i64> = attempts
        .iter()
        .filter_map(|attempt| attempt["started_ms"].as_i64())
        .collect();
    let of = |n: usize| {
        let (from, to) = (begun[n], begun.get(n + 1).copied().unwrap_or(i64::MAX));
        let within = steps.iter().filter(|(at, _)| (from..to).contains(at));
        within.map(|(at, step)| (*at, *step as u64)).collect()
    };
    (0..begun.len()).map(of).collect()
}

/// Maps each step to the time of the sample that counts. Within an attempt, every step must come once and in order.
fn joined(attempts: &[Vec<(i64, u64)>], verdict: &mut Verdict, rank: u64) -> BTreeMap<u64, i64> {
    let mut joined = BTreeMap::new();
    for (n, samples) in attempts.iter().enumerate() {
        let steps: Vec<u64> = samples.iter().map(|(_, step)| *step).collect();
        verdict.must(steps.windows(2).all(|pair| pair[1] == pair[0] + 1), || {
            format!("rank {rank}'s steps of attempt {} are {steps:?}", n + 1)
        });
        joined.extend(samples.iter().map(|(at, step)| (*step, *at)));
    }
    joined
}

fn judge_times(verdict: &mut Verdict, fault: &Fault, fault_run: &FaultRun, view: &Value) {
    let (Some(done), Some(_)) = (fault_run.done_ms, fault.expected.cause) else {
        return;
    };
    let since = |at: i64| (at - done) as f64 / 1_000.0;
    verdict.detect_s = fault_run.noticed_ms.map(since);
    verdict.end_s = view["attempts"][0]["ended_ms"].as_i64().map(since);
}
