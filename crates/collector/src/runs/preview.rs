//! The knobs of a run, and what a change would do before it is made.

use domain::api::runs::{ChangePreview, KnobsView};
use domain::ident::{AttemptNo, RunId};
use domain::incident::action::{Measurements, preview};
use domain::run::state::{KnobRequest, Machine};

use super::Runs;
use super::error::RunError;
use super::knobs::KnobError;

impl Runs {
    /// Returns the knobs of a run with their values, and the changes that can be reverted.
    ///
    /// # Errors
    /// Returns an error if the run is unknown or the store fails.
    pub async fn knobs(&self, run: &RunId) -> Result<KnobsView, RunError> {
        Ok(KnobsView::from(&*self.machine(run).await?))
    }

    /// Returns what a request to change knobs or to exclude a node would do now. Nothing is changed.
    ///
    /// # Errors
    /// Returns the errors that the request itself would have.
    pub async fn preview_change(
        &self,
        run: &RunId,
        request: KnobRequest,
        expected: Option<AttemptNo>,
    ) -> Result<ChangePreview, KnobError> {
        let machine = self.machine(run).await?;
        let Some(pending) = self.possible_change(&machine, &request, expected)? else {
            return Ok(ChangePreview::default());
        };
        let measurements = self.restart_measurements(&machine).await;
        Ok(preview(&machine, &request, &pending, &measurements))
    }

    /// Returns the measurements from which the cost of a new attempt follows.
    pub(super) async fn restart_measurements(&self, run: &Machine) -> Measurements {
        let last_step = self.steps(run).await.values().copied().max();
        Measurements {
            last_step: last_step.max(run.current().last_step()),
            step_s: self.step_seconds(run).await,
            spare_nodes: self.spare_nodes(run),
            ..Measurements::default()
        }
    }
}
