//! What was true after a fault, against what must be.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde_json::Value;

use crate::fault::{Fault, STEPS};
use crate::fleet::wait;
use crate::orphans;
use crate::scene::{Scene, pids};
use crate::training::{Losses, RANKS};

use std::time::Duration;

/// The end of a run is told at once, samples come every second; a machine that was gone may take a minute to try again.
const SAMPLES_WITHIN: Duration = Duration::from_secs(90);

/// What was true after one repeat.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// The last state is the right one, after the right number of attempts.
    pub(crate) state: bool,
    /// The first attempt's end is put down to the right cause and culprit.
    pub(crate) cause: bool,
    /// The second attempt went on at the right step, and its losses are those of a run that nobody disturbed; true as well
    /// when nothing had to be resumed and the losses are those.
    pub(crate) resumed: bool,
    /// The curves of steps and losses have each step of the run once, over all attempts, with the true loss.
    pub(crate) charts: bool,
    /// Processes that were left.
    pub(crate) orphans: usize,
    /// From the fault until the run was anything but running.
    pub(crate) detect_s: Option<f64>,
    /// From the fault until nothing of the attempt was left.
    pub(crate) end_s: Option<f64>,
    /// How it was done, when there is more than one way.
    pub(crate) how: Option<&'static str>,
    /// What was not as it must be, in sentences.
    pub(crate) problems: Vec<String>,
    /// What the undisturbed training's losses were.
    pub(crate) losses: Losses,
}

impl Verdict {
    /// Whether all was as it must be.
    pub(crate) fn right(&self) -> bool {
        self.problems.is_empty()
    }

    fn must(&mut self, is_so: bool, otherwise: impl FnOnce() -> String) -> bool {
        if !is_so {
            self.problems.push(otherwise());
        }
        is_so
    }
}

/// Does a fault to a run of its own, and judges what is true after it. `reference` is what each step's losses must be; none for
/// the run that makes it.
pub(crate) fn of(fault: &Fault, reference: Option<&Losses>) -> Verdict {
    let mut verdict = Verdict::default();
    let mut scene = match Scene::begin(fault) {
        Ok(scene) => scene,
        Err(error) => {
            verdict
                .problems
                .push(format!("it could not be set up: {error:#}"));
            return verdict;
        }
    };
    let inflicted = (fault.inflict)(&mut scene);
    let ended = inflicted.and_then(|()| scene.ended_somehow());
    if let Err(error) = ended {
        verdict.problems.push(format!("{error:#}"));
    }
    let view = scene.view();
    verdict.how = scene.fleet.link().map(|link| link.in_words());
    judge_state(&mut verdict, fault, &scene, &view);
    judge_cause(&mut verdict, fault, &view);
    judge_training(&mut verdict, fault, &scene, &view, reference);
    judge_charts(&mut verdict, fault, &scene, &view, reference);
    judge_times(&mut verdict, fault, &scene, &view);
    let left = orphans::left_of(&scene.run);
    verdict.orphans = left.len();
    verdict.must(left.is_empty(), || {
        format!("processes are left: {}", left.join("; "))
    });
    verdict
}

impl Scene {
    /// Waits for the end, whichever it is.
    fn ended_somehow(&mut self) -> Result<()> {
        match self.view()["state"].as_str() {
            Some("failed" | "stopped") => Ok(()),
            _ => self.ended(),
        }
    }
}

fn judge_state(verdict: &mut Verdict, fault: &Fault, scene: &Scene, view: &Value) {
    let right = &fault.right;
    let state = view["state"].as_str().unwrap_or("not to be had");
    let message = view["outcome"]["message"].as_str().unwrap_or_default();
    let attempts = view["attempts"].as_array().map_or(0, Vec::len);
    let well = verdict.must(state == right.state && attempts == right.attempts, || {
        format!(
            "the run is {state} after {attempts} attempts, not {} after {}: {message}",
            right.state, right.attempts
        )
    });
    let went_on = right.cause.is_some()
        || scene.pids_before.is_empty()
        || verdict.must(pids(view) == scene.pids_before, || {
            format!(
                "the processes {:?} did not go on: {:?}",
                scene.pids_before,
                pids(view)
            )
        });
    let said = verdict.must(message.to_lowercase().contains(right.last_word), || {
        format!("the run's last word must say {:?}: {message}", right.last_word)
    });
    verdict.state = well && went_on && said;
}

fn judge_cause(verdict: &mut Verdict, fault: &Fault, view: &Value) {
    let outcome = &view["attempts"][0]["outcome"];
    let Some(right) = &fault.right.cause else {
        verdict.cause = verdict.must(outcome["cause"] == "succeeded", || {
            format!("the attempt did not end well: {outcome}")
        });
        return;
    };
    let message = outcome["message"].as_str().unwrap_or_default().to_lowercase();
    let named = right.words.iter().any(|word| outcome["cause"] == *word)
        && right.node.is_none_or(|node| outcome["node"] == node)
        && right.rank.is_none_or(|rank| outcome["rank"] == rank)
        && message.contains(right.says);
    verdict.cause = verdict.must(named, || {
        let rank = right.rank.map_or(String::new(), |rank| format!(", rank {rank}"));
        let node = right.node.map_or(String::new(), |node| format!(", node {node}"));
        format!(
            "the first attempt's end must be put down to {}{rank}{node} (\"{}\"), and is to {outcome}",
            right.words.join(" or "),
            right.says
        )
    });
}

fn judge_training(
    verdict: &mut Verdict,
    fault: &Fault,
    scene: &Scene,
    view: &Value,
    reference: Option<&Losses>,
) {
    let before = verdict.problems.len();
    let attempts = fault.right.attempts as u64;
    if let Some(step) = fault.right.resumed_at {
        let told = &view["attempts"][1]["resumed_from"]["step"];
        let as_told = if step == 0 { told.is_null() } else { *told == step };
        verdict.must(as_told, || {
            format!("attempt 2 must go on from step {step}, and is told to from {told}")
        });
        let first = scene.training.losses(2).keys().map(|(_, step)| *step).min();
        verdict.must(first == Some(step + 1), || {
            format!(
                "attempt 2 must begin with step {}, and began with {first:?}",
                step + 1
            )
        });
    }
    let whole = fault.right.state != "succeeded" || scene.training.has_finished(attempts, STEPS);
    verdict.must(whole, || format!("attempt {attempts} did not train step {STEPS}"));
    for attempt in 1..=attempts {
        let losses = scene.training.losses(attempt);
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

/// A rank's curve over all attempts: a step that was trained again counts as the last attempt trained it.
fn judge_charts(
    verdict: &mut Verdict,
    fault: &Fault,
    scene: &Scene,
    view: &Value,
    reference: Option<&Losses>,
) {
    let before = verdict.problems.len();
    let last = scene.training.losses(scene.training.newest_attempt());
    let last = last.keys().map(|(_, step)| *step).max().unwrap_or(0);
    for rank in 0..RANKS {
        let samples = |metric: &str| scene.curve(metric, rank);
        let stored = wait("the last samples of all steps", SAMPLES_WITHIN, || {
            let (steps, losses) = (samples("train_step"), samples("train_loss"));
            let told: BTreeSet<u64> = steps.iter().map(|(_, step)| *step as u64).collect();
            steps.len() == losses.len() && (1..=last).all(|step| told.contains(&step))
        });
        let steps = samples("train_step");
        verdict.must(stored.is_ok(), || {
            let told: Vec<u64> = steps.iter().map(|(_, step)| *step as u64).collect();
            format!("rank {rank}'s curve has not all steps up to {last}: {told:?}")
        });
        let losses: BTreeMap<i64, f64> = samples("train_loss").into_iter().collect();
        let joined = joined(&by_attempt(view, &steps), verdict, rank);
        if fault.right.state == "succeeded" {
            let all: Vec<u64> = (1..=STEPS).collect();
            let found: Vec<u64> = joined.keys().copied().collect();
            verdict.must(found == all, || {
                format!("rank {rank}'s curve has the steps {found:?}")
            });
        }
        let reference = reference.cloned().unwrap_or_else(|| verdict.losses.clone());
        // As PyTorch has them, in 32 bits: the way of a double through JSON may cost its last bit.
        let wrong = joined.iter().find(|(step, at)| {
            let right = reference.get(&(rank, **step));
            let right = right.and_then(|loss| loss.parse::<f32>().ok());
            right != losses.get(at).map(|loss| *loss as f32)
        });
        let wrong = wrong.map(|(step, at)| (*step, losses.get(at).copied()));
        verdict.must(wrong.is_none(), || {
            format!("rank {rank}'s loss curve is wrong, first at (step, loss) {wrong:?}")
        });
    }
    verdict.charts = verdict.problems.len() == before;
}

/// Samples of steps by the attempt in whose time they lie.
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

/// Step → time of the sample that counts. Within an attempt every step comes once, behind the one before it.
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

fn judge_times(verdict: &mut Verdict, fault: &Fault, scene: &Scene, view: &Value) {
    let (Some(done), Some(_)) = (scene.done_ms, fault.right.cause) else {
        return;
    };
    let since = |at: i64| (at - done) as f64 / 1_000.0;
    verdict.detect_s = scene.noticed_ms.map(since);
    verdict.end_s = view["attempts"][0]["ended_ms"].as_i64().map(since);
}
