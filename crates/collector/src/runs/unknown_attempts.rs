//! Attempts that nodes hold and that this collector does not know, because it runs on a restored backup.
//!
//! ```text
//! a node's Holding ─▶ HeldAttempt::Unknown ─▶ recorded here and in the store: shown, its node gets no other run, its run no other attempt
//!                                        │
//!             a user's stop ─▶ Stop ─────┤
//!               the attempt ends itself ─┴─▶ Ended, or no longer held: removed, the node is free
//! ```
//! They are never stopped automatically: training that began after the backup continues. After a restore, older runs get no nodes until the
//! known nodes have reported what they hold.

mod decide;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use domain::ident::{AttemptId, NodeName, RunId};
use domain::run::state::Machine;
use domain::time::TimestampMs;
use store::StateStore;
use store::state::StateError;
use store::state::unknown_attempts::{RestoreRecord, UnknownAttempt};

/// How long known nodes are waited for after a restore. Agents reconnect within 15 s after a collector's start, a thousand of them within a
/// minute.
const SETTLES_WITHIN_MS: i64 = 60_000;
/// A node that was connected this long before the backup may still exist.
const SEEN_BEFORE_BACKUP_MS: i64 = 600_000;

/// The recorded unknown attempts. They are also in the store.
#[derive(Default)]
pub(super) struct UnknownAttempts {
    attempts: Mutex<BTreeMap<NodeName, Vec<UnknownAttempt>>>,
    restore: OnceLock<RestoreRecord>,
    /// Nodes that have not reported yet since the restore what they hold, and the time until which they are waited for.
    awaited: Mutex<Option<(BTreeSet<NodeName>, TimestampMs)>>,
}

impl UnknownAttempts {
    /// Loads the stored state.
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

    /// Returns the time of a restore that a run has not processed yet: the run was submitted before the restore.
    pub(super) fn restore_of(&self, run: &Machine) -> Option<TimestampMs> {
        let restored_ms = self.restore.get()?.restored_ms;
        (run.submitted_ms <= restored_ms && run.restored_ms < Some(restored_ms)).then_some(restored_ms)
    }

    /// Returns the reason why a run from before the restore must wait: nodes have not reported yet what they hold.
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
            "a backup was restored: waits until {}{more} have reported what they hold, at most {} s",
            names.join(", "),
            (until_ms - now_ms) / 1_000 + 1
        ))
    }

    /// Records that a node has reported what it holds. Returns true if it was the last awaited node.
    pub(super) fn has_answered(&self, node: &NodeName) -> bool {
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

    /// Ends the wait for nodes when the time limit is over. Returns true once.
    pub(super) fn is_late(&self, now_ms: TimestampMs) -> bool {
        let mut awaited = self.awaited();
        let is_late = awaited
            .as_ref()
            .is_some_and(|(nodes, until_ms)| nodes.is_empty() || now_ms >= *until_ms);
        if is_late {
            *awaited = None;
        }
        is_late
    }

    /// Returns true if a node holds this attempt as an unknown one.
    pub(super) fn is_held(&self, node: &NodeName, attempt: &AttemptId) -> bool {
        let is_it = |held: &UnknownAttempt| held.run == attempt.run && held.attempt == attempt.no;
        self.lock().get(node).is_some_and(|held| held.iter().any(is_it))
    }

    /// Describes what a node holds, for the reason why it gets no run.
    pub(super) fn on_node(&self, node: &NodeName) -> Option<String> {
        let attempts = self.lock();
        let first = attempts.get(node)?.first()?;
        Some(format!("attempt {} of run {}", first.attempt, first.run))
    }

    /// Returns the unknown attempts of one run, on all nodes.
    pub(super) fn of_run(&self, run: &RunId) -> Vec<UnknownAttempt> {
        self.all().into_iter().filter(|held| held.run == *run).collect()
    }

    /// Returns all unknown attempts, by node.
    pub(super) fn all(&self) -> Vec<UnknownAttempt> {
        self.lock().values().flatten().cloned().collect()
    }

    pub(super) fn of_node(&self, node: &NodeName) -> Vec<UnknownAttempt> {
        self.lock().get(node).cloned().unwrap_or_default()
    }

    pub(super) fn set(&self, node: &NodeName, held: Vec<UnknownAttempt>) {
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
