//! Read access to runs: views and lists.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::api::runs::{RunSummary, RunView};
use domain::ident::{NodeName, RunId};
use domain::run::state::Machine;
use query::VectorSample;

use super::Runs;
use super::error::RunError;
use super::stop::set_steps_lost;
use super::stored::{read, unless_unreadable};
use crate::clock;

/// How far back the last step of a rank is searched. Steps that take longer are not shown.
const STEPS_WINDOW_MS: i64 = 3_600_000;

impl Runs {
    /// Returns the full view of a run, with the step that each rank has reached.
    ///
    /// # Errors
    /// Returns an error if the run is unknown or the store fails.
    pub async fn view(&self, run: &RunId) -> Result<RunView, RunError> {
        let machine = self.machine(run).await?;
        let mut view = self.view_of(&machine);
        view.unread_reports = self.parts.state.unread_of(run).await?;
        let steps = self.steps(&machine).await;
        if let Some(attempt) = view.attempts.last_mut() {
            attempt.last_step = attempt.last_step.max(steps.values().copied().max());
        }
        set_steps_lost(&mut view, &machine, steps.values().max().copied());
        let ranks = view
            .attempts
            .last_mut()
            .into_iter()
            .flat_map(|attempt| &mut attempt.nodes)
            .flat_map(|node| &mut node.ranks);
        for rank in ranks {
            rank.step = steps.get(&rank.rank.0).copied().or(rank.step);
        }
        Ok(view)
    }

    /// Returns the view of a run without the ranks' steps.
    ///
    /// # Errors
    /// Returns an error if the run is unknown or the store fails.
    pub async fn stored_view(&self, run: &RunId) -> Result<RunView, RunError> {
        Ok(self.view_of(&*self.machine(run).await?))
    }

    fn view_of(&self, machine: &Machine) -> RunView {
        RunView {
            unknown_attempts: self.unknown_attempts_of(&machine.id),
            ..machine.into()
        }
    }

    /// Returns the newest `limit` runs, the newest first.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn list(&self, limit: u32) -> Result<Vec<RunSummary>, RunError> {
        let records = self.parts.state.runs(limit).await?;
        Ok(records.into_iter().map(|record| record.summary).collect())
    }

    /// Returns the newest runs, and all that have not ended.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub(crate) async fn newest(&self, limit: u32) -> Result<Vec<Arc<Machine>>, RunError> {
        let mut runs = self.owners.unfinished();
        for record in self.parts.state.runs(limit).await? {
            let ended = unless_unreadable(read(record))?.filter(|run| run.state.is_final());
            runs.extend(ended.map(Arc::new));
        }
        Ok(runs)
    }

    /// Returns the active runs, by node.
    #[must_use]
    pub fn by_node(&self) -> BTreeMap<String, Vec<String>> {
        let mut by_node: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for run in self.owners.unfinished() {
            for task in &run.current().nodes {
                let runs = by_node.entry(task.node.to_string()).or_default();
                runs.push(run.id.to_string());
            }
        }
        by_node
    }

    /// Returns the nodes of a run's current attempt, in the order of their ranks.
    ///
    /// # Errors
    /// Returns an error if the run is unknown or the store fails.
    pub async fn nodes_of(&self, run: &RunId) -> Result<Vec<NodeName>, RunError> {
        let machine = self.machine(run).await?;
        let nodes = machine.current().nodes.iter();
        Ok(nodes.map(|task| task.node.clone()).collect())
    }

    /// Returns the last step of each rank of the current attempt.
    pub(super) async fn steps(&self, run: &Machine) -> BTreeMap<u32, u64> {
        let at_ms = run.ended_ms.unwrap_or_else(clock::now_ms);
        let window_ms = (at_ms - run.current().started_ms).clamp(1, STEPS_WINDOW_MS);
        // A run id contains no character that would end the string.
        let query = format!("last_over_time(train_step{{run=\"{}\"}}[{window_ms}ms])", run.id);
        let samples = self.parts.evaluator.samples(&query, at_ms).await;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a saturating cast of a count"
        )]
        let step = |(labels, _, value): VectorSample| Some((labels.get("rank")?.parse().ok()?, value as u64));
        samples.unwrap_or_default().into_iter().filter_map(step).collect()
    }
}
