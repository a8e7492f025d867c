//! All facts about a run, in the form that decisions need. On disk it is a [`V1`](crate::run::stored::V1), in the API a
//! [`RunView`](crate::api::runs::RunView).

use serde::{Deserialize, Serialize};

use crate::ident::{AttemptNo, NodeName, RunId};
use crate::run::checkpoint::{Checkpoint, Storage};
use crate::run::knob::Pending;
use crate::run::spec::Spec;
use crate::run::state::attempt::Attempt;
use crate::run::state::node_task::NodePhase;
use crate::run::state::{Outcome, RunState, StopPlan};
use crate::time::TimestampMs;

/// The state that the person requests, as opposed to the actual state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "wish")]
pub enum DesiredState {
    /// Train to the end.
    Run,
    /// Stop.
    Stop {
        /// Time between SIGTERM and SIGKILL.
        grace_ms: u64,
    },
}

/// A run with all its attempts.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// Id of the run.
    pub id: RunId,
    /// The specification of the run.
    pub spec: Spec,
    /// Who submitted it, in the words of the token that was used. `None` for a run that is only watched, and for one that was submitted
    /// before this was recorded.
    pub owner: Option<String>,
    /// Id of the token with which it was submitted: notes of tokens need not differ. `None` as for `owner`.
    pub submitted_by: Option<String>,
    /// The requested state.
    pub desired: DesiredState,
    /// The actual state; derived from the other fields.
    pub state: RunState,
    /// When it entered that state. `None` if it has been in that state since before this was recorded.
    pub state_since_ms: Option<TimestampMs>,
    /// When it was submitted.
    pub submitted_ms: TimestampMs,
    /// When its first rank ran.
    pub started_ms: Option<TimestampMs>,
    /// When it reached its final state.
    pub ended_ms: Option<TimestampMs>,
    /// Why it ended, or why it waits.
    pub outcome: Option<Outcome>,
    /// When the next attempt may begin, if one is due.
    pub restart_at_ms: Option<TimestampMs>,
    /// Attempts, oldest first; never empty.
    pub attempts: Vec<Attempt>,
    /// The checkpoints of the run, as its nodes reported them.
    pub checkpoints: Vec<Checkpoint>,
    /// A stop that waits for a step or a checkpoint, or that waited before it became `desired`.
    pub stop: Option<StopPlan>,
    /// True if the run is only watched, not managed.
    pub watched: bool,
    /// Where it saves checkpoints, and which of them are pinned.
    pub storage: Storage,
    /// A change of knobs that waits for the end of the current attempt, which has been told to stop.
    pub pending: Option<Box<Pending>>,
    /// Attempt numbers up to this one may have been used, although those attempts are not known.
    pub attempts_used: Option<AttemptNo>,
    /// An attempt that a node holds and the collector does not know. No other attempt begins automatically until a person decides.
    pub unknown_attempt: Option<AttemptNo>,
    /// The last restore of a backup that this run has taken into account.
    pub restored_ms: Option<TimestampMs>,
}

impl Machine {
    /// Returns the attempt that is in progress, or that was the last.
    #[must_use]
    pub fn current(&self) -> &Attempt {
        self.attempts
            .last()
            .expect("a run is made with its first attempt")
    }

    pub(super) fn current_mut(&mut self) -> &mut Attempt {
        self.attempts
            .last_mut()
            .expect("a run is made with its first attempt")
    }

    /// Returns true if this attempt may still hold processes or ports on a node.
    #[must_use]
    pub fn is_live(&self, attempt: AttemptNo) -> bool {
        self.current().no == attempt && self.current().ended_ms.is_none() && !self.state.is_final()
    }

    /// Returns true if the node has, or had, a task of the attempt.
    #[must_use]
    pub fn has_task(&self, node: &NodeName, attempt: AttemptNo) -> bool {
        let attempt = self.attempts.iter().find(|known| known.no == attempt);
        attempt.is_some_and(|attempt| attempt.nodes.iter().any(|task| task.node == *node))
    }

    /// Returns true if the node has, or had, a task of any attempt.
    #[must_use]
    pub fn has_node(&self, node: &NodeName) -> bool {
        self.attempts
            .iter()
            .any(|attempt| self.has_task(node, attempt.no))
    }

    /// Returns the nodes that may hold processes or ports of the current attempt.
    pub fn busy_nodes(&self) -> impl Iterator<Item = &NodeName> {
        let live = self.is_live(self.current().no);
        self.current()
            .nodes
            .iter()
            .filter(move |task| live && task.phase != NodePhase::Ended)
            .map(|task| &task.node)
    }
}
