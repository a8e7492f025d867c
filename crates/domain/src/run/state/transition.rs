//! The transition that one event causes, and the actions that it collects.

use serde::{Deserialize, Serialize};

use crate::ident::{AttemptNo, NodeName};
use crate::run::checkpoint::RemovalOrder;
use crate::run::state::attempt::Attempt;
use crate::run::state::machine::Machine;
use crate::run::state::protocol::NodeCommand;
use crate::time::TimestampMs;

/// An action to carry out after the state that requires it is stored. `(run, attempt, n)` identifies it permanently.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Action {
    /// The attempt that the action belongs to.
    pub attempt: AttemptNo,
    /// Number of the action within the attempt, from 1.
    pub n: u32,
    /// What to do.
    pub task: Task,
}

/// What an action does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "snake_case")]
pub enum Task {
    /// Find this many nodes, then report them with `Placed`.
    Place {
        /// Number of nodes.
        nodes: u32,
    },
    /// Send a command to a node, repeatedly, until the node accepts or refuses it.
    Command {
        /// The node.
        node: NodeName,
        /// The command.
        command: NodeCommand,
    },
}

/// A run while an event is applied: the state changes in place, actions are collected.
#[derive(Debug)]
pub(in crate::run) struct Transition<'a> {
    /// The run, as changed so far.
    pub(in crate::run) run: &'a mut Machine,
    /// When the event happened.
    pub(in crate::run) now_ms: TimestampMs,
    actions: Vec<Action>,
}

impl<'a> Transition<'a> {
    pub(super) fn new(run: &'a mut Machine, now_ms: TimestampMs) -> Self {
        Self {
            run,
            now_ms,
            actions: Vec::new(),
        }
    }

    pub(super) fn into_actions(self) -> Vec<Action> {
        self.actions
    }

    /// Requests nodes for the current attempt.
    pub(super) fn find_nodes(&mut self) {
        let nodes = self.run.spec.node_count();
        let action = self.run.current_mut().action(Task::Place { nodes });
        self.actions.push(action);
    }

    /// Adds a command of the current attempt for a node. Returns the number of the action.
    pub(super) fn command(&mut self, node: &NodeName, command: NodeCommand) -> u32 {
        let attempt = self.run.attempts.len() - 1;
        self.command_of(attempt, node.clone(), command)
    }

    /// Like [`Self::command`], for the attempt with this index in the run's list.
    pub(in crate::run) fn command_of(&mut self, attempt: usize, node: NodeName, command: NodeCommand) -> u32 {
        let action = self.run.attempts[attempt].action(Task::Command { node, command });
        let n = action.n;
        self.actions.push(action);
        n
    }
}

impl Attempt {
    fn action(&mut self, task: Task) -> Action {
        let n = self.next_action;
        self.next_action += 1;
        Action {
            attempt: self.no,
            n,
            task,
        }
    }
}

impl Action {
    /// Returns true if it is a command for this node.
    #[must_use]
    pub fn is_for(&self, node: &NodeName) -> bool {
        matches!(&self.task, Task::Command { node: to, .. } if to == node)
    }

    /// Returns the node and the order, if it removes checkpoints.
    #[must_use]
    pub fn removal(&self) -> Option<(&NodeName, &RemovalOrder)> {
        match &self.task {
            Task::Command {
                node,
                command: NodeCommand::Remove(order),
            } => Some((node, order)),
            _ => None,
        }
    }

    /// Returns true if a later order to the same node removes the same checkpoints, and perhaps more.
    #[must_use]
    pub fn is_repeated_by(&self, later: &Self) -> bool {
        let Some(((node, order), (to, later))) = self.removal().zip(later.removal()) else {
            return false;
        };
        let is_in_later = |path: &String| later.remove.contains(path);
        node == to && order.folder == later.folder && order.remove.iter().all(is_in_later)
    }
}
