//! The inbox of each run's task, and the last stored state of each run.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::ident::{AttemptNo, NodeName, RunId};
use domain::run::state::{Action, Event, Machine};
use tokio::sync::{mpsc, oneshot, watch};

use super::error::RunError;

/// Bound of the requests that wait for one run's task. Each connection of an agent sends one report at a time. If the inbox is full, the
/// sender waits.
pub(super) const INBOX_MAX: usize = 256;

/// The tasks of all active runs, and of those that ended a moment ago.
#[derive(Default)]
pub(super) struct Owners {
    by_run: Mutex<HashMap<RunId, Owner>>,
    /// Held while a run is loaded or inserted, so that a run has at most one task.
    pub(super) loading: tokio::sync::Mutex<()>,
    /// Held from the query of the pinned checkpoints until its result is used: a checkpoint that a user pins meanwhile must not be removed.
    pub(super) pins: tokio::sync::Mutex<()>,
}

/// The inbox of a run's task, and the run's last stored state.
#[derive(Clone)]
pub(super) struct Owner {
    pub(super) inbox: mpsc::Sender<Request>,
    pub(super) stored: watch::Receiver<Arc<Machine>>,
}

/// A request to the task of a run.
pub(super) enum Request {
    Take(Box<PendingEvent>),
    /// Sends commands again that were not accepted.
    SendAgain {
        commands: Vec<Action>,
        reply: oneshot::Sender<Result<(), RunError>>,
    },
}

/// An event, and the sender that waits for its result.
pub(super) struct PendingEvent {
    pub(super) event: Event,
    /// The id by which a repeated event is recognised.
    pub(super) id: Option<String>,
    /// The action that this event completes.
    pub(super) done: Option<(AttemptNo, u32)>,
    pub(super) reply: Option<oneshot::Sender<Result<(), RunError>>>,
}

impl PendingEvent {
    /// Creates an event that is never repeated.
    pub(super) fn new(event: Event) -> Self {
        Self {
            event,
            id: None,
            done: None,
            reply: None,
        }
    }

    /// Creates an event that its sender may repeat.
    pub(super) fn with_id(event: Event, id: String, done: Option<(AttemptNo, u32)>) -> Self {
        Self {
            id: Some(id),
            done,
            ..Self::new(event)
        }
    }
}

impl Owners {
    /// Returns the last stored state of a run that has a task.
    pub(super) fn stored(&self, run: &RunId) -> Option<Arc<Machine>> {
        self.lock().get(run).map(|owner| owner.stored.borrow().clone())
    }

    /// Returns all runs that have not ended, oldest first.
    pub(super) fn unfinished(&self) -> Vec<Arc<Machine>> {
        let owners = self.lock();
        let machines = owners.values().map(|owner| owner.stored.borrow().clone());
        let mut unfinished: Vec<_> = machines.filter(|machine| !machine.state.is_final()).collect();
        unfinished.sort_by(|a, b| (a.submitted_ms, &a.id).cmp(&(b.submitted_ms, &b.id)));
        unfinished
    }

    /// Returns the active runs that have ranks on a node.
    pub(super) fn unfinished_on(&self, node: &NodeName) -> Vec<Arc<Machine>> {
        let mut machines = self.unfinished();
        machines.retain(|run| run.current().nodes.iter().any(|task| task.node == *node));
        machines
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<RunId, Owner>> {
        self.by_run.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
