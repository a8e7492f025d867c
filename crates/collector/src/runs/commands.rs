//! Commands to agents, ended attempts that nodes still hold, and what connects and disconnects of agents mean for runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain::ident::{AttemptId, NodeName, RunId};
use domain::run::state::{ATTEMPT_MAX, Action, Event, Machine, NodeCommand, NodePhase, NodeTask, Task};
use domain::time::TimestampMs;

use super::Runs;
use super::error::RunError;
use super::stored::unless_unreadable;
use crate::clock;

/// A node that is connected this long after it was recorded as away counts as back, in whatever order the two were recorded.
const RECONCILE_MS: i64 = 5_000;
/// The id of the stop command for an attempt that has ended for this collector. Actions count from 1 and never reach this number.
pub(super) const LEFTOVER_STOP: u32 = u32::MAX;
/// Time between SIGTERM and SIGKILL for such an attempt.
pub(super) const LEFTOVER_GRACE_MS: u64 = 30_000;
/// Bound of the attempts that one node can hold: more than an agent follows. A node that reports more is not believed, and gets no run.
const HELD_MAX: usize = 256;

impl Runs {
    /// Handles the report of an agent on the attempts that it holds: notifies its runs, and sends the commands again that it has not
    /// accepted. Unknown attempts are recorded first, because no run may begin another attempt while a node still holds one.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn node_back(self: &Arc<Self>, node: &NodeName, held: &[AttemptId]) -> Result<(), RunError> {
        if held.len() > HELD_MAX || held.iter().any(|held| held.no > ATTEMPT_MAX) {
            tracing::error!(%node, attempts = held.len(), "a node reports attempts that cannot be valid; it gets no runs");
            return Ok(());
        }
        let unknown = self.note_unknown(node, held).await?;
        for run in self.owners.unfinished_on(node) {
            let holds = held
                .iter()
                .any(|held| held.run == run.id && held.no == run.current().no);
            let event = Event::NodeBack {
                node: node.clone(),
                holds,
            };
            self.take(&run.id, event).await?;
        }
        let known: Vec<_> = held
            .iter()
            .filter(|held| !unknown.contains(held))
            .cloned()
            .collect();
        self.stop_leftovers(node, &known).await?;
        // All attempts that the node holds are now known or recorded.
        if self.unknown.has_answered(node) {
            self.parts.state.settle_restores(clock::now_ms()).await?;
        }
        self.send_pending(Some(node)).await
    }

    /// Handles the end of an agent's connection.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn node_lost(self: &Arc<Self>, node: &NodeName) -> Result<(), RunError> {
        if self.agents.is_connected(node) {
            return Ok(());
        }
        for run in self.owners.unfinished_on(node) {
            self.take(&run.id, Event::NodeLost { node: node.clone() }).await?;
        }
        Ok(())
    }

    /// Stops the ended attempts that a node still holds, and records them: the node gets no new attempt until they are gone. `held`
    /// contains no unknown attempts.
    pub(super) async fn stop_leftovers(&self, node: &NodeName, held: &[AttemptId]) -> Result<(), RunError> {
        let mut leftovers = BTreeSet::new();
        for attempt in held {
            match self.machine(&attempt.run).await {
                Ok(machine) if machine.is_live(attempt.no) => {}
                Ok(_) => {
                    let stop = NodeCommand::Stop {
                        grace_ms: LEFTOVER_GRACE_MS,
                    };
                    self.agents.send(node, attempt, LEFTOVER_STOP, &stop);
                    leftovers.insert(attempt.clone());
                }
                Err(RunError::Unknown(run)) => {
                    leftovers.insert(attempt.clone());
                    tracing::warn!(%node, %run, "a node holds an unknown run");
                }
                Err(error @ RunError::Stored { .. }) => {
                    leftovers.insert(attempt.clone());
                    tracing::error!(%node, %error, "an attempt that a node holds is left alone");
                }
                Err(error) => return Err(error),
            }
        }
        self.agents.set_leftovers(node, leftovers);
        Ok(())
    }

    /// Sends commands again that were never accepted, to one node or to all.
    pub(super) async fn send_pending(self: &Arc<Self>, to: Option<&NodeName>) -> Result<(), RunError> {
        let mut by_run: BTreeMap<RunId, Vec<Action>> = BTreeMap::new();
        for (run, stored) in self.parts.state.pending_actions().await? {
            let Ok(task @ Task::Command { .. }) = serde_json::from_value(stored.action) else {
                continue;
            };
            let (attempt, n) = (stored.attempt, stored.n);
            let command = Action { attempt, n, task };
            if to.is_none_or(|to| command.is_for(to)) {
                by_run.entry(run).or_default().push(command);
            }
        }
        for (run, commands) in by_run {
            let sent = self.send_again(&run, commands).await;
            unless_unreadable(sent)?;
        }
        Ok(())
    }

    pub(super) fn send_commands(&self, run: &RunId, actions: &[Action]) {
        for action in actions {
            if let Task::Command { node, command } = &action.task {
                let attempt = AttemptId::new(run.clone(), action.attempt);
                self.send(node, &attempt, action.n, command);
            }
        }
    }

    /// Adds on the way to the node what the stored command does not contain: the secrets, and how long an order to remove checkpoints is still
    /// valid.
    fn send(&self, node: &NodeName, attempt: &AttemptId, n: u32, command: &NodeCommand) {
        match command {
            NodeCommand::Start(start) if !start.spec.secrets.is_empty() => {
                let mut start = start.clone();
                start.secrets = self.secrets.of(&attempt.run);
                self.agents.send(node, attempt, n, &NodeCommand::Start(start));
            }
            NodeCommand::Remove(order) => {
                let mut order = order.as_sent(clock::now_ms());
                let remaining_ms = self.removal_ages.remaining_ms(attempt, n);
                order.valid_ms = order.valid_ms.map(|valid_ms| valid_ms.min(remaining_ms));
                self.agents.send(node, attempt, n, &NodeCommand::Remove(order));
            }
            command => self.agents.send(node, attempt, n, command),
        }
    }

    /// Returns an event if the series show that the ranks made steps. While they do, a disconnected node is only unreachable.
    pub(super) async fn stepped(&self, run: &Machine) -> Option<Event> {
        let step = self.steps(run).await.into_values().max()?;
        let is_further = run
            .current()
            .progress
            .highest_step
            .is_none_or(|before| before < step);
        is_further.then_some(Event::Stepped {
            attempt: run.current().no,
            step,
        })
    }

    /// Returns events for nodes whose recorded connection state is wrong: after a restart of the collector all nodes are away until they
    /// connect.
    pub(super) fn seen_of_nodes(&self, run: &Machine, now_ms: TimestampMs) -> Vec<Event> {
        let event = |task: &NodeTask| match (self.agents.is_connected(&task.node), task.away_since_ms) {
            (false, None) => Some(Event::NodeLost {
                node: task.node.clone(),
            }),
            (true, Some(since)) if now_ms - since > RECONCILE_MS => Some(Event::NodeBack {
                node: task.node.clone(),
                holds: true,
            }),
            _ => None,
        };
        run.current()
            .nodes
            .iter()
            .filter(|task| task.phase != NodePhase::Ended)
            .filter_map(event)
            .collect()
    }
}
