//! Stops that wait: whether the run can wait, and at which step all ranks end.

use domain::api::runs::{RunView, StopAfter};
use domain::ident::RunId;
use domain::run::state::{Machine, StopPoint, agreed_step};

use super::Runs;
use super::error::RunError;
use crate::clock;

impl Runs {
    /// Returns the point that a stop waits for.
    ///
    /// # Errors
    /// Returns an error if the run is unknown, if it cannot wait, or if the store fails.
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

    /// Returns a step that no rank has reached and that each rank learns of in time, or the reason why there is none.
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

    /// Returns the median step time of the fastest rank, in seconds. The median excludes steps with a save or a validation.
    pub(super) async fn step_seconds(&self, machine: &Machine) -> Option<f64> {
        let of_run = format!("train_step_seconds{{run=\"{}\"}}", machine.id);
        let query =
            format!("min(quantile_over_time(0.5, {of_run}[2m])) or min(last_over_time({of_run}[1h]))");
        let samples = self.parts.evaluator.samples(&query, clock::now_ms()).await.ok()?;
        samples.first().map(|(_, _, value)| *value)
    }
}

/// Returns the global ranks of the current attempt.
fn ranks(machine: &Machine) -> impl Iterator<Item = u32> {
    let nodes = machine.current().nodes.iter();
    nodes.flat_map(|task| task.ranks.keys().map(|local| task.first_rank + local))
}

/// Sets in a view how many steps a stop now would lose.
pub(super) fn set_steps_lost(view: &mut RunView, machine: &Machine, last_step: Option<u64>) {
    view.steps_since_checkpoint = machine.steps_since_checkpoint(last_step);
    if let Some(stop) = &mut view.stop {
        stop.steps_lost = view.steps_since_checkpoint;
    }
}
