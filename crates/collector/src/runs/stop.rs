//! Stops that wait: whether there is something to wait for, and at which step all ranks can be told to end.

use domain::api::runs::{RunView, StopAfter};
use domain::ident::RunId;
use domain::run::state::{Machine, StopPoint, agreed_step};
use query::Value;

use super::Runs;
use super::error::RunError;
use crate::clock;

impl Runs {
    /// The moment a stop can wait for.
    ///
    /// # Errors
    /// When there is no such run, when it has nothing to wait for, or when the store fails.
    pub async fn stop_point(&self, run: &RunId, after: StopAfter) -> Result<StopPoint, RunError> {
        let machine = self.machine(run).await?;
        let cannot = |reason: String| RunError::CannotWait {
            run: run.clone(),
            reason,
        };
        if let Some(reason) = machine.cannot_wait() {
            return Err(cannot(reason));
        }
        match after {
            StopAfter::Checkpoint => Ok(StopPoint::Checkpoint),
            StopAfter::Step => {
                let step = self.step_ahead(&machine).await.map_err(cannot)?;
                Ok(StopPoint::Step(step))
            }
        }
    }

    /// A step that no rank has reached and each will hear of in time; else why there is none.
    pub(super) async fn step_ahead(&self, machine: &Machine) -> Result<u64, String> {
        let steps = self.steps(machine).await;
        let silent: Vec<String> = ranks(machine)
            .filter(|rank| !steps.contains_key(rank))
            .map(|rank| rank.to_string())
            .collect();
        if let [first, rest @ ..] = silent.as_slice() {
            let others = if rest.is_empty() { "" } else { " and others" };
            return Err(format!(
                "rank {first}{others} has reported no step, so it would not end there"
            ));
        }
        let highest = steps.values().max().ok_or("no rank has reported a step")?;
        let step_s = self
            .step_seconds(machine)
            .await
            .ok_or("its ranks have not reported how long a step takes")?;
        Ok(agreed_step(*highest, step_s))
    }

    /// The usual time of a step on the rank that is fastest: the median, so that a save or a validation among them does not count.
    pub(super) async fn step_seconds(&self, machine: &Machine) -> Option<f64> {
        let of_run = format!("train_step_seconds{{run=\"{}\"}}", machine.id);
        let query =
            format!("min(quantile_over_time(0.5, {of_run}[2m])) or min(last_over_time({of_run}[1h]))");
        let answer = self.parts.evaluator.instant(&query, clock::now_ms()).await.ok()?;
        let Value::Vector(samples) = answer.value else {
            return None;
        };
        samples.first().map(|(_, _, value)| *value)
    }
}

/// The ranks of the current attempt, by their place in the world.
fn ranks(machine: &Machine) -> impl Iterator<Item = u32> {
    let nodes = machine.current().nodes.iter();
    nodes.flat_map(|task| task.ranks.keys().map(|local| task.first_rank + local))
}

/// Tells in a view what a stop now would lose.
pub(super) fn tell_loss(view: &mut RunView, machine: &Machine, last_step: Option<u64>) {
    view.steps_since_checkpoint = machine.steps_since_checkpoint(last_step);
    if let Some(stop) = &mut view.stop {
        stop.steps_lost = view.steps_since_checkpoint;
    }
}
