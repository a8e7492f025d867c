//! Everything that is known of a run, as decisions need it. On disk it is a [`V1`](crate::run::stored::V1), in the API a
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

/// What the person wants, as opposed to what is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "wish")]
pub enum Wished {
    /// Train to the end.
    Run,
    /// Stop.
    Stop {
        /// Time between SIGTERM and SIGKILL.
        grace_ms: u64,
    },
}

/// A run and all its attempts.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// Its id.
    pub id: RunId,
    /// What was asked for.
    pub spec: Spec,
    /// What is wished.
    pub wished: Wished,
    /// Where it stands; derived from the rest.
    pub state: RunState,
    /// When it was submitted.
    pub submitted_ms: TimestampMs,
    /// When its first rank ran.
    pub started_ms: Option<TimestampMs>,
    /// When it came to its final state.
    pub ended_ms: Option<TimestampMs>,
    /// Why it ended, or why it waits.
    pub outcome: Option<Outcome>,
    /// When the next attempt may begin, while one is due.
    pub restart_at_ms: Option<TimestampMs>,
    /// Attempts, oldest first; never empty.
    pub attempts: Vec<Attempt>,
    /// What it has saved, as its nodes told.
    pub checkpoints: Vec<Checkpoint>,
    /// A stop that waits for a step or a checkpoint, or waited before it became `wished`.
    pub stop: Option<StopPlan>,
    /// Only watched, not managed.
    pub watched: bool,
    /// Where it saves, and what of it a person wants kept.
    pub storage: Storage,
    /// A change of knobs that waits for the current attempt to end, which has been told to.
    pub pending: Option<Box<Pending>>,
    /// Numbers of attempts up to this one may have been used, though the attempts are not known.
    pub attempts_used: Option<AttemptNo>,
    /// An attempt that a node holds and that is not known here. No other begins by itself until a person decides.
    pub unknown_attempt: Option<AttemptNo>,
    /// The last restore of a backup that this run has taken into account.
    pub restored_ms: Option<TimestampMs>,
}

impl Machine {
    /// The attempt that is, or was last, under way.
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

    /// Whether this attempt may still hold processes or ports on a node.
    #[must_use]
    pub fn is_live(&self, attempt: AttemptNo) -> bool {
        self.current().no == attempt && self.current().ended_ms.is_none() && !self.state.is_final()
    }

    /// Whether a node has, or had, a part in an attempt.
    #[must_use]
    pub fn has_part(&self, node: &NodeName, attempt: AttemptNo) -> bool {
        let attempt = self.attempts.iter().find(|known| known.no == attempt);
        attempt.is_some_and(|attempt| attempt.nodes.iter().any(|task| task.node == *node))
    }

    /// Whether a node has, or had, a part in any attempt.
    #[must_use]
    pub fn has_node(&self, node: &NodeName) -> bool {
        self.attempts
            .iter()
            .any(|attempt| self.has_part(node, attempt.no))
    }

    /// Nodes that may hold something of the current attempt.
    pub fn busy_nodes(&self) -> impl Iterator<Item = &NodeName> {
        let live = self.is_live(self.current().no);
        self.current()
            .nodes
            .iter()
            .filter(move |task| live && task.phase != NodePhase::Ended)
            .map(|task| &task.node)
    }
}
