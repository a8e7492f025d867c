//! The way to the task of each run, and the last stored state of each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::ident::{AttemptNo, NodeName, RunId};
use domain::run::state::{Action, Event, Machine};
use tokio::sync::{mpsc, oneshot, watch};

use super::error::RunError;

/// Requests that wait for one run's task. Each connection of an agent has at most one report on its way; who comes when it is full, waits.
pub(super) const INBOX_MAX: usize = 256;

/// The tasks of all runs that are under way, and of those that ended a moment ago.
#[derive(Default)]
pub(super) struct Owners {
    by_run: Mutex<HashMap<RunId, Owner>>,
    /// Held while a run is loaded or inserted: there is at most one task of a run.
    pub(super) loading: tokio::sync::Mutex<()>,
    /// Held from the question which checkpoints are pinned until the answer is acted on: what a person pins meanwhile must not be removed.
    pub(super) pins: tokio::sync::Mutex<()>,
}

/// The way to a run's task.
#[derive(Clone)]
pub(super) struct Owner {
    pub(super) inbox: mpsc::Sender<Request>,
    pub(super) stored: watch::Receiver<Arc<Machine>>,
}

/// Something for the task of a run.
pub(super) enum Request {
    Take(Box<Taken>),
    /// Sends commands again that were not accepted.
    SendAgain {
        commands: Vec<Action>,
        reply: oneshot::Sender<Result<(), RunError>>,
    },
}

/// An event, and who waits for it.
pub(super) struct Taken {
    pub(super) event: Event,
    /// The id by which a repeat is known.
    pub(super) id: Option<String>,
    /// The action that is done by it.
    pub(super) done: Option<(AttemptNo, u32)>,
    pub(super) reply: Option<oneshot::Sender<Result<(), RunError>>>,
}

impl Taken {
    /// An event that no one repeats.
    pub(super) fn new(event: Event) -> Self {
        Self {
            event,
            id: None,
            done: None,
            reply: None,
        }
    }

    /// An event that its sender may repeat.
    pub(super) fn with_id(event: Event, id: String, done: Option<(AttemptNo, u32)>) -> Self {
        Self {
            id: Some(id),
            done,
            ..Self::new(event)
        }
    }
}

impl Owners {
    /// The last stored state of a run whose task is there.
    pub(super) fn stored(&self, run: &RunId) -> Option<Arc<Machine>> {
        self.lock().get(run).map(|owner| owner.stored.borrow().clone())
    }

    /// All runs that may still change, oldest first.
    pub(super) fn unfinished(&self) -> Vec<Arc<Machine>> {
        let owners = self.lock();
        let machines = owners.values().map(|owner| owner.stored.borrow().clone());
        let mut unfinished: Vec<_> = machines.filter(|machine| !machine.state.is_final()).collect();
        unfinished.sort_by(|a, b| (a.submitted_ms, &a.id).cmp(&(b.submitted_ms, &b.id)));
        unfinished
    }

    /// Runs under way that have ranks on a node.
    pub(super) fn unfinished_on(&self, node: &NodeName) -> Vec<Arc<Machine>> {
        let mut machines = self.unfinished();
        machines.retain(|run| run.current().nodes.iter().any(|task| task.node == *node));
        machines
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<RunId, Owner>> {
        self.by_run.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
