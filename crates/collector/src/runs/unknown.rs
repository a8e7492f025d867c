//! Attempts that nodes hold and that this collector does not know, because its state is that of a backup that was restored.
//!
//! ```text
//! a node's Holding ─▶ Held::Unknown ─▶ noted here and in the store: shown, its node gets no other run, its run no other attempt
//!                                        │
//!          a person's stop ─▶ Stop ──────┤
//!                     it ends by itself ─┴─▶ Ended, or not held any more: forgotten, the node is free
//! ```
//! They are never stopped unasked: training that began after the backup goes on. After a restore no run of before gets nodes until the
//! known nodes have said what they hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use domain::api::runs::UnknownAttemptView;
use domain::event::{Event as LogLine, Severity};
use domain::ident::{AttemptNo, NodeName, RunId};
use domain::run::state::{Event, Held, Machine, NodeCommand, NodeReport};
use domain::time::TimestampMs;
use store::StateStore;
use store::state::StateError;
use store::state::unknown_attempts::{RestoreRecord, UnknownAttempt};

use super::orders::LEFTOVER_STOP;
use super::{RunError, Runs};
use crate::app::Shared;
use crate::changes::Change;

/// After a restore, how long known nodes are waited for. Agents connect again within 15 s of a collector's start, a thousand of them
/// within a minute.
const SETTLES_WITHIN_MS: i64 = 60_000;
/// A node that was heard so long before the backup may still be there.
const SEEN_BEFORE_BACKUP_MS: i64 = 600_000;

/// What is known of attempts that are not known. Its content is in the store as well.
#[derive(Default)]
pub(super) struct Unknown {
    attempts: Mutex<BTreeMap<NodeName, Vec<UnknownAttempt>>>,
    restore: OnceLock<RestoreRecord>,
    /// Nodes that have not said yet what they hold since the restore, and until when they are waited for.
    awaited: Mutex<Option<(BTreeSet<NodeName>, TimestampMs)>>,
}

impl Unknown {
    /// Takes up what is stored.
    pub(super) async fn load(&self, state: &StateStore, now_ms: TimestampMs) -> Result<(), StateError> {
        for attempt in state.unknown_attempts().await? {
            self.lock().entry(attempt.node.clone()).or_default().push(attempt);
        }
        let Some(restore) = state.last_restore().await? else {
            return Ok(());
        };
        let _set_once = self.restore.set(restore);
        if restore.settled_ms.is_none() {
            let nodes = state.nodes().await?.into_iter();
            let awaited = nodes
                .filter(|node| node.inventory.accepts_runs)
                .filter(|node| node.seen_ms > restore.backup_ms - SEEN_BEFORE_BACKUP_MS)
                .map(|node| node.name);
            *self.awaited() = Some((awaited.collect(), now_ms + SETTLES_WITHIN_MS));
        }
        Ok(())
    }

    /// The restore that a run has to take into account: it was submitted before.
    pub(super) fn restore_of(&self, run: &Machine) -> Option<TimestampMs> {
        let restored_ms = self.restore.get()?.restored_ms;
        (run.submitted_ms <= restored_ms && run.restored_ms < Some(restored_ms)).then_some(restored_ms)
    }

    /// The nodes that a run of before the restore has to wait for: they have not said yet what they hold.
    pub(super) fn awaited_by(&self, run: &Machine, now_ms: TimestampMs) -> Option<String> {
        let restored_ms = self.restore.get()?.restored_ms;
        let awaited = self.awaited();
        let (nodes, until_ms) = awaited.as_ref()?;
        if run.submitted_ms > restored_ms || nodes.is_empty() || now_ms >= *until_ms {
            return None;
        }
        let names: Vec<&str> = nodes.iter().map(NodeName::as_str).take(5).collect();
        let more = nodes.len().saturating_sub(names.len());
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        Some(format!(
            "a backup was restored: waits until {}{more} have said what they hold, {} s at most",
            names.join(", "),
            (until_ms - now_ms) / 1_000 + 1
        ))
    }

    /// A node has said what it holds. Returns true if it was the last that was waited for.
    fn has_answered(&self, node: &NodeName) -> bool {
        let mut awaited = self.awaited();
        let Some((nodes, _)) = awaited.as_mut() else {
            return false;
        };
        nodes.remove(node);
        let is_last = nodes.is_empty();
        if is_last {
            *awaited = None;
        }
        is_last
    }

    /// Waits for no node any more, if the time is over. Returns true once.
    fn is_late(&self, now_ms: TimestampMs) -> bool {
        let mut awaited = self.awaited();
        let is_late = awaited
            .as_ref()
            .is_some_and(|(nodes, until_ms)| nodes.is_empty() || now_ms >= *until_ms);
        if is_late {
            *awaited = None;
        }
        is_late
    }

    /// Whether a node holds this attempt, and it is not known here.
    pub(super) fn is_held(&self, node: &NodeName, run: &RunId, attempt: AttemptNo) -> bool {
        let is_it = |held: &UnknownAttempt| held.run == *run && held.attempt == attempt;
        self.lock().get(node).is_some_and(|held| held.iter().any(is_it))
    }

    /// What a node holds, in words; for the reason why it gets no run.
    pub(super) fn on_node(&self, node: &NodeName) -> Option<String> {
        let attempts = self.lock();
        let first = attempts.get(node)?.first()?;
        Some(format!("attempt {} of run {}", first.attempt, first.run))
    }

    /// What is held of one run, on all nodes.
    pub(super) fn of_run(&self, run: &RunId) -> Vec<UnknownAttempt> {
        self.all().into_iter().filter(|held| held.run == *run).collect()
    }

    /// All of it, by node.
    pub(super) fn all(&self) -> Vec<UnknownAttempt> {
        self.lock().values().flatten().cloned().collect()
    }

    fn of_node(&self, node: &NodeName) -> Vec<UnknownAttempt> {
        self.lock().get(node).cloned().unwrap_or_default()
    }

    fn set(&self, node: &NodeName, held: Vec<UnknownAttempt>) {
        if held.is_empty() {
            self.lock().remove(node);
        } else {
            self.lock().insert(node.clone(), held);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeName, Vec<UnknownAttempt>>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn awaited(&self) -> MutexGuard<'_, Option<(BTreeSet<NodeName>, TimestampMs)>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Runs {
    /// Attempts that nodes hold and that are not known here.
    #[must_use]
    pub fn unknown_attempts(&self) -> Vec<UnknownAttemptView> {
        self.unknown.all().iter().map(view).collect()
    }

    /// The same of one run.
    #[must_use]
    pub fn unknown_attempts_of(&self, run: &RunId) -> Vec<UnknownAttemptView> {
        self.unknown.of_run(run).iter().map(view).collect()
    }

    /// Whether a node holds this attempt, and it is not known here.
    #[must_use]
    pub fn holds_unknown(&self, node: &NodeName, run: &RunId, attempt: AttemptNo) -> bool {
        self.unknown.is_held(node, run, attempt)
    }

    /// Refuses another attempt of a run while a node holds one that is not known here: they would write the same checkpoints. A node that
    /// is away and may be gone for good is no reason once a person has asked for the stop: it is sent the stop when it is back.
    pub(super) fn check_none_held(&self, run: &RunId) -> Result<(), RunError> {
        let may_run =
            |held: &UnknownAttempt| held.stop_told_ms.is_none() || self.agents.is_connected(&held.node);
        match self.unknown.of_run(run).into_iter().find(may_run) {
            None => Ok(()),
            Some(UnknownAttempt {
                node, run, attempt, ..
            }) => Err(RunError::HeldUnknown { run, node, attempt }),
        }
    }

    /// Stops what nodes hold of a run without this collector knowing it. A node that is not connected is sent the stop when it is.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn stop_unknown(&self, app: &Shared, run: &RunId, grace_ms: u64) -> Result<(), RunError> {
        for UnknownAttempt { node, .. } in self.unknown.of_run(run) {
            let mut held = self.unknown.of_node(&node);
            for attempt in held.iter_mut().filter(|held| held.run == *run) {
                attempt.stop_told_ms.get_or_insert(app.now_ms());
                let stop = NodeCommand::Stop { grace_ms };
                self.agents
                    .send(&node, run, attempt.attempt, LEFTOVER_STOP, &stop);
            }
            self.keep_unknown(&node, held).await?;
        }
        Ok(())
    }

    /// Of what a node holds, notes the attempts that are not known here, and returns them. Their runs begin no other attempt.
    pub(super) async fn note_unknown(
        &self,
        app: &Shared,
        node: &NodeName,
        held: &[(RunId, AttemptNo)],
    ) -> Result<BTreeSet<(RunId, AttemptNo)>, RunError> {
        let before = self.unknown.of_node(node);
        let (mut unknown, mut known_runs) = (Vec::new(), Vec::new());
        for (run, attempt) in held {
            let noted = before
                .iter()
                .find(|held| held.run == *run && held.attempt == *attempt);
            match self.machine(run).await {
                Ok(machine) if machine.holding(node, *attempt) != Held::Unknown && noted.is_none() => {
                    continue;
                }
                Ok(_) => known_runs.push((run.clone(), *attempt)),
                Err(RunError::Unknown(_)) => {}
                // It may be of a newer version; who can read it, decides.
                Err(RunError::Stored { .. }) => continue,
                Err(error) => return Err(error),
            }
            unknown.push(noted.cloned().unwrap_or_else(|| UnknownAttempt {
                node: node.clone(),
                run: run.clone(),
                attempt: *attempt,
                since_ms: app.now_ms(),
                stop_told_ms: None,
            }));
        }
        self.keep_unknown(node, unknown.clone()).await?;
        for (run, attempt) in known_runs {
            let node = node.clone();
            let event = Event::UnknownAttempt { node, attempt };
            self.take(app, &run, event).await?;
        }
        for new in unknown.iter().filter(|held| !before.contains(held)) {
            self.log_unknown(
                app,
                new,
                Severity::Warning,
                "is not known here and is left alone; see `lockstep run list`",
            )
            .await;
        }
        for stopped in unknown.iter().filter(|held| held.stop_told_ms.is_some()) {
            let stop = NodeCommand::Stop {
                grace_ms: super::orders::LEFTOVER_GRACE_MS,
            };
            self.agents
                .send(node, &stopped.run, stopped.attempt, LEFTOVER_STOP, &stop);
        }
        Ok(unknown.into_iter().map(|held| (held.run, held.attempt)).collect())
    }

    /// All that a node holds is known or noted.
    pub(super) async fn has_said_what_it_holds(&self, app: &Shared, node: &NodeName) -> Result<(), RunError> {
        if self.unknown.has_answered(node) {
            self.state.settle_restores(app.now_ms()).await?;
        }
        Ok(())
    }

    /// Nodes that are away for long after a restore are not waited for.
    pub(super) async fn give_up_awaited(&self, app: &Shared) -> Result<(), RunError> {
        if self.unknown.is_late(app.now_ms()) {
            self.state.settle_restores(app.now_ms()).await?;
        }
        Ok(())
    }

    /// A report of an attempt that is not known: it changes nothing of its run, but its end frees the node. Returns true if it was one,
    /// and nothing else is to be done.
    pub(super) async fn take_of_unknown(
        &self,
        app: &Shared,
        (run, attempt): (&RunId, AttemptNo),
        node: &NodeName,
        report: &NodeReport,
    ) -> Result<bool, RunError> {
        if !self.unknown.is_held(node, run, attempt) {
            return Ok(false);
        }
        let mut held = self.unknown.of_node(node);
        let is_it = |held: &UnknownAttempt| held.run == *run && held.attempt == attempt;
        let it = held.iter().find(|held| is_it(held)).cloned();
        match report {
            // It is known by this.
            NodeReport::Watched(_) => {
                held.retain(|held| !is_it(held));
                self.keep_unknown(node, held).await?;
                Ok(false)
            }
            // What is saved is the run's, whichever attempt saved it.
            NodeReport::Checkpoints(_) => Ok(false),
            report if report.is_end() => {
                held.retain(|held| !is_it(held));
                self.keep_unknown(node, held).await?;
                if let Some(it) = it {
                    let how = how_it_ended(report);
                    self.log_unknown(app, &it, Severity::Info, &format!("has ended: {how}"))
                        .await;
                }
                Ok(true)
            }
            NodeReport::RankExited(exit) if exit.failed() => {
                if let Some(it) = it {
                    let what = format!("is not known here; its rank {} has failed", exit.rank);
                    self.log_unknown(app, &it, Severity::Warning, &what).await;
                }
                Ok(true)
            }
            _ => Ok(true),
        }
    }

    async fn keep_unknown(&self, node: &NodeName, held: Vec<UnknownAttempt>) -> Result<(), RunError> {
        if held != self.unknown.of_node(node) {
            self.state.set_unknown_attempts(node, &held).await?;
            let runs = self.unknown.of_node(node).into_iter().chain(held.clone());
            let runs: BTreeSet<RunId> = runs.map(|held| held.run).collect();
            self.unknown.set(node, held);
            self.changes.send(Change::Nodes);
            for run in runs {
                self.changes.send(Change::Run(run));
            }
        }
        Ok(())
    }

    async fn log_unknown(&self, app: &Shared, held: &UnknownAttempt, severity: Severity, what: &str) {
        let UnknownAttempt {
            node, run, attempt, ..
        } = held;
        tracing::warn!(%node, %run, %attempt, "an attempt that a node holds {what}");
        app.event(LogLine {
            at_ms: app.now_ms(),
            severity,
            kind: "unknown_attempt".to_owned(),
            node: Some(node.to_string()),
            gpu: None,
            run: Some(run.to_string()),
            message: format!("attempt {attempt} of run {run} on node {node} {what}"),
        })
        .await;
    }
}

fn how_it_ended(report: &NodeReport) -> String {
    match report {
        NodeReport::Ended(end) => match (end.code, end.signal) {
            (Some(0), _) => "well".to_owned(),
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "it is not known how".to_owned(),
        },
        _ => "it had not begun".to_owned(),
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
