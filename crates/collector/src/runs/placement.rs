//! The task that gives runs their nodes. It alone does: two runs are never given the same GPUs.
//!
//! ```text
//! submit, a run's task ─ Placement::ask ─┐
//!                                        ├─▶ candidates ─▶ choose ─▶ Placed │ CannotPlace ─▶ the run's task
//! once per second, if a run waits ───────┘
//! ```

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use domain::ident::{AttemptNo, RunId};
use domain::run::state::{Action, Event, Machine, Task};
use domain::time::TimestampMs;
use tokio::sync::{Notify, oneshot};
use tokio::time::{MissedTickBehavior, interval};

use super::Runs;
use super::error::RunError;
use super::place::{self, TooFew};
use super::stored::unless_unreadable;
use crate::clock;

/// How often runs that wait look for nodes.
const EVERY: Duration = Duration::from_secs(1);
/// Every so many times, also what runs that have ended had waited for: it is noted as done then.
const ALL_TICKS: u64 = 10;

/// Runs that wait for nodes, and have not been looked at yet.
#[derive(Default)]
pub(super) struct Placement {
    asked: Mutex<Vec<Wanted>>,
    wake: Notify,
}

/// An attempt that needs nodes.
struct Wanted {
    run: RunId,
    attempt: AttemptNo,
    /// The action that is done once it has them.
    n: u32,
    nodes: u32,
    looked: Option<oneshot::Sender<()>>,
}

impl Placement {
    /// Has nodes looked for, for those of the actions that want it.
    pub(super) fn ask(&self, run: &RunId, actions: &[Action]) {
        self.push(Wanted::all_of(run, actions));
    }

    fn push(&self, wanted: Vec<Wanted>) {
        if !wanted.is_empty() {
            self.lock().extend(wanted);
            self.wake.notify_one();
        }
    }

    fn take(&self) -> Vec<Wanted> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Wanted>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wanted {
    /// What an action of a run wants, if it wants nodes.
    fn of(run: &RunId, attempt: AttemptNo, n: u32, task: &Task) -> Option<Self> {
        match *task {
            Task::Place { nodes } => Some(Self {
                run: run.clone(),
                attempt,
                n,
                nodes,
                looked: None,
            }),
            Task::Command { .. } => None,
        }
    }

    fn all_of(run: &RunId, actions: &[Action]) -> Vec<Self> {
        let wanted = actions
            .iter()
            .filter_map(|action| Self::of(run, action.attempt, action.n, &action.task));
        wanted.collect()
    }
}

impl Runs {
    /// Waits until nodes were looked for once; a run that gets none waits on.
    pub(super) async fn place_now(&self, run: &RunId, actions: &[Action]) {
        let mut wanted = Wanted::all_of(run, actions);
        let Some(last) = wanted.last_mut() else {
            return;
        };
        let (looked, answer) = oneshot::channel();
        last.looked = Some(looked);
        self.placement.push(wanted);
        let _looked_or_stopping = answer.await;
    }

    /// Gives runs their nodes until the collector stops. What does not succeed is tried again at the next tick.
    pub(super) async fn place_runs(self: Arc<Self>) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut tick = 0_u64;
        loop {
            let wanted = tokio::select! {
                () = self.placement.wake.notified() => Ok(self.placement.take()),
                _ = ticks.tick() => {
                    tick += 1;
                    self.waiting(tick.is_multiple_of(ALL_TICKS)).await
                }
            };
            match wanted {
                Ok(wanted) => self.place_all(wanted).await,
                Err(error) => tracing::error!(%error, "runs that wait for nodes cannot be read"),
            }
        }
    }

    /// What runs wait for, as it is stored.
    async fn waiting(&self, all: bool) -> Result<Vec<Wanted>, RunError> {
        let waits = |run: &Arc<Machine>| run.current().nodes.is_empty();
        if !all && !self.owners.unfinished().iter().any(waits) {
            return Ok(Vec::new());
        }
        let pending = self.parts.state.pending_actions().await?.into_iter();
        let wanted = pending.filter_map(|(run, stored)| {
            let task = serde_json::from_value(stored.action).ok()?;
            Wanted::of(&run, stored.attempt, stored.n, &task)
        });
        Ok(wanted.collect())
    }

    async fn place_all(self: &Arc<Self>, wanted: Vec<Wanted>) {
        for wanted in wanted {
            let placed = self.place(&wanted).await;
            if let Err(error) = unless_unreadable(placed) {
                tracing::error!(run = %wanted.run, %error, "nodes cannot be looked for");
            }
            if let Some(looked) = wanted.looked {
                let _gone = looked.send(());
            }
        }
    }

    async fn place(self: &Arc<Self>, wanted: &Wanted) -> Result<(), RunError> {
        let Wanted { run, attempt, n, .. } = wanted;
        let machine = self.machine(run).await?;
        let still_wanted = !machine.state.is_final()
            && machine.current().no == *attempt
            && machine.current().nodes.is_empty();
        if still_wanted && !self.find_nodes(&machine, wanted).await? {
            return Ok(());
        }
        Ok(self
            .parts
            .state
            .action_done(run, *attempt, *n, clock::now_ms())
            .await?)
    }

    /// Nodes that may take a part of a run, as things stand.
    pub(super) fn candidates(&self, machine: &Machine, now_ms: TimestampMs) -> Vec<place::Candidate> {
        let nodes = place::Nodes {
            records: self.parts.live.records(),
            agents: &self.agents,
            runs: self.by_node(),
            unknown: &self.unknown,
            critical: (self.parts.critical_nodes)(),
        };
        nodes.candidates(&machine.current().placement.excluded, now_ms)
    }

    /// Whether there are enough nodes; the run is told either way.
    async fn find_nodes(self: &Arc<Self>, machine: &Machine, wanted: &Wanted) -> Result<bool, RunError> {
        let now_ms = clock::now_ms();
        let found = match self.unknown.awaited_by(machine, now_ms) {
            Some(reason) => Err(TooFew {
                reason,
                hopeless: false,
            }),
            None => place::choose(self.candidates(machine, now_ms), wanted.nodes),
        };
        let (attempt, has_nodes) = (wanted.attempt, found.is_ok());
        let event = match found {
            Ok(nodes) => Event::Placed { attempt, nodes },
            Err(TooFew { reason, hopeless }) => Event::CannotPlace { reason, hopeless },
        };
        self.take(&wanted.run, event).await?;
        Ok(has_nodes)
    }
}
