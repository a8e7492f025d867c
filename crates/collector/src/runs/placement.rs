//! The task that assigns nodes to runs. No other code does, so two runs never get the same GPUs.
//!
//! ```text
//! submit, a run's task ─ Placement::request ─┐
//!                                            ├─▶ candidates ─▶ choose ─▶ Placed │ CannotPlace ─▶ the run's task
//! once per second, if a run waits ───────────┘
//! ```

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use domain::ident::{AttemptNo, RunId};
use domain::run::state::{Action, Event, Exclusion, Machine, Task};
use domain::time::TimestampMs;
use tokio::sync::{Notify, oneshot};
use tokio::time::{MissedTickBehavior, interval};

use super::Runs;
use super::error::RunError;
use super::node_choice::{self, NotEnoughNodes};
use super::stored::unless_unreadable;
use crate::clock;

/// How often runs that wait look for nodes.
const EVERY: Duration = Duration::from_secs(1);
/// Every this many ticks, placement actions of ended runs are processed too, and marked as done.
const ALL_TICKS: u64 = 10;

/// Runs that wait for nodes and have not been processed yet.
#[derive(Default)]
pub(super) struct Placement {
    requests: Mutex<Vec<PlacementRequest>>,
    wake: Notify,
}

/// An attempt that needs nodes.
struct PlacementRequest {
    run: RunId,
    attempt: AttemptNo,
    /// The action that is done once the attempt has nodes.
    n: u32,
    nodes: u32,
    attempted: Option<oneshot::Sender<()>>,
}

impl Placement {
    /// Requests nodes for those of the actions that need them.
    pub(super) fn request(&self, run: &RunId, actions: &[Action]) {
        self.push(PlacementRequest::all_of(run, actions));
    }

    fn push(&self, requests: Vec<PlacementRequest>) {
        if !requests.is_empty() {
            self.lock().extend(requests);
            self.wake.notify_one();
        }
    }

    fn take(&self) -> Vec<PlacementRequest> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<PlacementRequest>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PlacementRequest {
    /// Returns the request of an action, if it needs nodes.
    fn of(run: &RunId, attempt: AttemptNo, n: u32, task: &Task) -> Option<Self> {
        match *task {
            Task::Place { nodes } => Some(Self {
                run: run.clone(),
                attempt,
                n,
                nodes,
                attempted: None,
            }),
            Task::Command { .. } => None,
        }
    }

    fn all_of(run: &RunId, actions: &[Action]) -> Vec<Self> {
        let requests = actions
            .iter()
            .filter_map(|action| Self::of(run, action.attempt, action.n, &action.task));
        requests.collect()
    }
}

impl Runs {
    /// Waits until one search for nodes has been made. A run that gets none continues to wait.
    pub(super) async fn place_now(&self, run: &RunId, actions: &[Action]) {
        let mut requests = PlacementRequest::all_of(run, actions);
        let Some(last) = requests.last_mut() else {
            return;
        };
        let (attempted, answer) = oneshot::channel();
        last.attempted = Some(attempted);
        self.placement.push(requests);
        let _attempted_or_stopping = answer.await;
    }

    /// Assigns nodes to runs until the collector stops. What fails is tried again at the next tick.
    pub(super) async fn place_runs(self: Arc<Self>) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut tick = 0_u64;
        loop {
            let requests = tokio::select! {
                () = self.placement.wake.notified() => Ok(self.placement.take()),
                _ = ticks.tick() => {
                    tick += 1;
                    self.waiting(tick.is_multiple_of(ALL_TICKS)).await
                }
            };
            match requests {
                Ok(requests) => self.place_all(requests).await,
                Err(error) => tracing::error!(%error, "runs that wait for nodes cannot be read"),
            }
        }
    }

    /// Returns the stored placement actions.
    async fn waiting(&self, all: bool) -> Result<Vec<PlacementRequest>, RunError> {
        let waits = |run: &Arc<Machine>| run.current().nodes.is_empty();
        if !all && !self.owners.unfinished().iter().any(waits) {
            return Ok(Vec::new());
        }
        let pending = self.parts.state.pending_actions().await?.into_iter();
        let requests = pending.filter_map(|(run, stored)| {
            let task = serde_json::from_value(stored.action).ok()?;
            PlacementRequest::of(&run, stored.attempt, stored.n, &task)
        });
        Ok(requests.collect())
    }

    async fn place_all(self: &Arc<Self>, requests: Vec<PlacementRequest>) {
        for request in requests {
            let placed = self.place(&request).await;
            if let Err(error) = unless_unreadable(placed) {
                tracing::error!(run = %request.run, %error, "nodes for a run cannot be chosen");
            }
            if let Some(attempted) = request.attempted {
                let _gone = attempted.send(());
            }
        }
    }

    async fn place(self: &Arc<Self>, request: &PlacementRequest) -> Result<(), RunError> {
        let PlacementRequest { run, attempt, n, .. } = request;
        let machine = self.machine(run).await?;
        let still_needed = !machine.state.is_final()
            && machine.current().no == *attempt
            && machine.current().nodes.is_empty();
        if still_needed && !self.find_nodes(&machine, request).await? {
            return Ok(());
        }
        Ok(self
            .parts
            .state
            .action_done(run, *attempt, *n, clock::now_ms())
            .await?)
    }

    /// Returns the nodes that may currently be chosen for a run.
    pub(super) fn candidates(&self, machine: &Machine, now_ms: TimestampMs) -> Vec<node_choice::Candidate> {
        self.candidates_without(&machine.current().placement.excluded, now_ms)
    }

    /// Returns the nodes that may currently be chosen for a run that excludes some.
    pub(super) fn candidates_without(
        &self,
        excluded: &[Exclusion],
        now_ms: TimestampMs,
    ) -> Vec<node_choice::Candidate> {
        let nodes = node_choice::Nodes {
            records: self.parts.live.records(),
            agents: &self.agents,
            runs: self.by_node(),
            unknown: &self.unknown,
            critical: (self.parts.critical_nodes)(),
        };
        nodes.candidates(excluded, now_ms)
    }

    /// Chooses nodes and reports the result to the run. Returns true if there were enough.
    async fn find_nodes(
        self: &Arc<Self>,
        machine: &Machine,
        request: &PlacementRequest,
    ) -> Result<bool, RunError> {
        let now_ms = clock::now_ms();
        let found = match self.unknown.awaited_by(machine, now_ms) {
            Some(reason) => Err(NotEnoughNodes {
                reason,
                permanent: false,
            }),
            None => node_choice::choose(self.candidates(machine, now_ms), request.nodes),
        };
        let (attempt, has_nodes) = (request.attempt, found.is_ok());
        let event = match found {
            Ok(nodes) => Event::Placed { attempt, nodes },
            Err(NotEnoughNodes { reason, permanent }) => Event::CannotPlace { reason, permanent },
        };
        self.take(&request.run, event).await?;
        Ok(has_nodes)
    }
}
