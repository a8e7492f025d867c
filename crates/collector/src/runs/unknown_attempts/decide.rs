//! What happens to unknown attempts that nodes hold: they are recorded, shown, stopped on request of a user, and removed at their end.

use std::collections::BTreeSet;
use std::sync::Arc;

use domain::api::runs::UnknownAttemptView;
use domain::event::{Event as LogLine, Severity};
use domain::ident::{AttemptId, NodeName, RunId};
use domain::run::state::{Event, HeldAttempt, NodeCommand, NodeReport};
use store::state::unknown_attempts::UnknownAttempt;

use crate::changes::Change;
use crate::clock;
use crate::runs::Runs;
use crate::runs::commands::{LEFTOVER_GRACE_MS, LEFTOVER_STOP};
use crate::runs::error::RunError;

impl Runs {
    /// Returns the unknown attempts that nodes hold.
    #[must_use]
    pub fn unknown_attempts(&self) -> Vec<UnknownAttemptView> {
        self.unknown.all().iter().map(view).collect()
    }

    /// Returns the unknown attempts of one run.
    #[must_use]
    pub fn unknown_attempts_of(&self, run: &RunId) -> Vec<UnknownAttemptView> {
        self.unknown.of_run(run).iter().map(view).collect()
    }

    /// Rejects another attempt of a run while a node holds an unknown one: both would write the same checkpoints. After a user has
    /// requested the stop, a disconnected node, which may be gone for good, does not count: it gets the stop when it reconnects.
    pub(in crate::runs) fn check_none_held(&self, run: &RunId) -> Result<(), RunError> {
        let may_run =
            |held: &UnknownAttempt| held.stop_told_ms.is_none() || self.agents.is_connected(&held.node);
        match self.unknown.of_run(run).into_iter().find(may_run) {
            None => Ok(()),
            Some(UnknownAttempt {
                node, run, attempt, ..
            }) => Err(RunError::HeldUnknown { run, node, attempt }),
        }
    }

    /// Stops the unknown attempts of a run. A disconnected node gets the stop when it reconnects.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn stop_unknown(self: &Arc<Self>, run: &RunId, grace_ms: u64) -> Result<(), RunError> {
        for UnknownAttempt { node, .. } in self.unknown.of_run(run) {
            let mut held = self.unknown.of_node(&node);
            for unknown in held.iter_mut().filter(|held| held.run == *run) {
                unknown.stop_told_ms.get_or_insert(clock::now_ms());
                let stop = NodeCommand::Stop { grace_ms };
                self.agents.send(&node, &id(unknown), LEFTOVER_STOP, &stop);
            }
            self.keep_unknown(&node, held).await?;
        }
        Ok(())
    }

    /// Records which of a node's held attempts are unknown, and returns them. Their runs begin no other attempt.
    pub(in crate::runs) async fn note_unknown(
        self: &Arc<Self>,
        node: &NodeName,
        held: &[AttemptId],
    ) -> Result<BTreeSet<AttemptId>, RunError> {
        let before = self.unknown.of_node(node);
        let (mut unknown, mut known_runs) = (Vec::new(), Vec::new());
        for attempt in held {
            let noted = before
                .iter()
                .find(|held| held.run == attempt.run && held.attempt == attempt.no);
            match self.machine(&attempt.run).await {
                Ok(machine)
                    if machine.held_attempt(node, attempt.no) != HeldAttempt::Unknown && noted.is_none() =>
                {
                    continue;
                }
                Ok(_) => known_runs.push(attempt),
                Err(RunError::Unknown(_)) => {}
                // It may be of a newer version. A collector that can read it decides.
                Err(RunError::Stored { .. }) => continue,
                Err(error) => return Err(error),
            }
            unknown.push(noted.cloned().unwrap_or_else(|| UnknownAttempt {
                node: node.clone(),
                run: attempt.run.clone(),
                attempt: attempt.no,
                since_ms: clock::now_ms(),
                stop_told_ms: None,
            }));
        }
        self.keep_unknown(node, unknown.clone()).await?;
        for held in known_runs {
            let (node, attempt) = (node.clone(), held.no);
            let event = Event::UnknownAttempt { node, attempt };
            self.take(&held.run, event).await?;
        }
        for new in unknown.iter().filter(|held| !before.contains(held)) {
            self.log_unknown(
                new,
                Severity::Warning,
                "is unknown to this collector and is left alone; see `lockstep run list`",
            )
            .await;
        }
        for stopped in unknown.iter().filter(|held| held.stop_told_ms.is_some()) {
            let stop = NodeCommand::Stop {
                grace_ms: LEFTOVER_GRACE_MS,
            };
            self.agents.send(node, &id(stopped), LEFTOVER_STOP, &stop);
        }
        Ok(unknown.iter().map(id).collect())
    }

    /// Ends the wait for nodes that stay away for long after a restore.
    pub(in crate::runs) async fn give_up_awaited(self: &Arc<Self>) -> Result<(), RunError> {
        if self.unknown.is_late(clock::now_ms()) {
            self.parts.state.settle_restores(clock::now_ms()).await?;
        }
        Ok(())
    }

    /// Handles a report of an unknown attempt. It does not change its run, but the end of the attempt frees the node. Returns true if the
    /// report is handled completely.
    pub(in crate::runs) async fn take_of_unknown(
        self: &Arc<Self>,
        attempt: &AttemptId,
        node: &NodeName,
        report: &NodeReport,
    ) -> Result<bool, RunError> {
        if !self.unknown.is_held(node, attempt) {
            return Ok(false);
        }
        let mut held = self.unknown.of_node(node);
        let is_it = |held: &UnknownAttempt| id(held) == *attempt;
        let it = held.iter().find(|held| is_it(held)).cloned();
        match report {
            // This report makes the run known.
            NodeReport::Watched(_) => {
                held.retain(|held| !is_it(held));
                self.keep_unknown(node, held).await?;
                Ok(false)
            }
            // Checkpoints belong to the run, whichever attempt saved them.
            NodeReport::Checkpoints(_) => Ok(false),
            report if report.is_end() => {
                held.retain(|held| !is_it(held));
                self.keep_unknown(node, held).await?;
                if let Some(it) = it {
                    let how = how_it_ended(report);
                    self.log_unknown(&it, Severity::Info, &format!("has ended: {how}"))
                        .await;
                }
                Ok(true)
            }
            NodeReport::RankExited(exit) if exit.failed() => {
                if let Some(it) = it {
                    let what = format!("is unknown to this collector; its rank {} has failed", exit.rank);
                    self.log_unknown(&it, Severity::Warning, &what).await;
                }
                Ok(true)
            }
            _ => Ok(true),
        }
    }

    async fn keep_unknown(&self, node: &NodeName, held: Vec<UnknownAttempt>) -> Result<(), RunError> {
        if held != self.unknown.of_node(node) {
            self.parts.state.set_unknown_attempts(node, &held).await?;
            let runs = self.unknown.of_node(node).into_iter().chain(held.clone());
            let runs: BTreeSet<RunId> = runs.map(|held| held.run).collect();
            self.unknown.set(node, held);
            self.parts.changes.send(Change::Nodes);
            for run in runs {
                self.parts.changes.send(Change::Run(run));
            }
        }
        Ok(())
    }

    async fn log_unknown(self: &Arc<Self>, held: &UnknownAttempt, severity: Severity, what: &str) {
        let UnknownAttempt {
            node, run, attempt, ..
        } = held;
        tracing::warn!(%node, %run, %attempt, "an attempt that a node holds {what}");
        let message = format!("attempt {attempt} of run {run} on node {node} {what}");
        let line = LogLine {
            node: Some(node.to_string()),
            run: Some(run.to_string()),
            ..LogLine::new(clock::now_ms(), severity, "unknown_attempt", message)
        };
        self.parts.events.append(line).await;
    }
}

fn id(held: &UnknownAttempt) -> AttemptId {
    AttemptId::new(held.run.clone(), held.attempt)
}

fn how_it_ended(report: &NodeReport) -> String {
    match report {
        NodeReport::Ended(end) => match (end.code, end.signal) {
            (Some(0), _) => "well".to_owned(),
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "exit status unknown".to_owned(),
        },
        _ => "it had not started".to_owned(),
    }
}

fn view(held: &UnknownAttempt) -> UnknownAttemptView {
    UnknownAttemptView {
        node: held.node.to_string(),
        run: held.run.to_string(),
        attempt: held.attempt,
        since_ms: held.since_ms,
        stopping: held.stop_told_ms.is_some(),
    }
}
