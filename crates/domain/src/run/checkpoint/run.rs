//! Checkpoints in the state machine of a run: reports are accepted, also after the run's end; pins are stored; removal orders are given.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::checkpoints::{PruneAnswer, PruneLine};
use crate::run::checkpoint::requested::NO_ANSWER;
use crate::run::checkpoint::retention::{Keep, Reason, Situation, Verdict, decide};
use crate::run::checkpoint::{
    Checkpoint, CheckpointReport, LastComplete, NodeStorage, Origin, Prune, RemovalOrder, RequestedRemoval,
    RequiredCheckpoint, SaveFailure, merge, resume_point,
};
use crate::run::state::{Event, Machine, NodeCommand, NodeReport, Transition};
use crate::time::TimestampMs;

/// Maximum number of pins of a run. A person sets each pin; further ones are refused.
pub const PINS_MAX: usize = 1_000;
/// Minimum time between two automatic orders for the same checkpoint, in milliseconds. An order that may still be carried out, or that was
/// refused, is usually repeated later: see [`requested`](super::requested).
const RESEND_AFTER_MS: i64 = 60_000;
/// Maximum number of checkpoints that one automatic order removes; the next report leads to the next order. After a prune by a person none
/// follows, so its order contains all that the person has seen: at most the stored ones.
const ORDER_MAX: usize = 64;
/// Maximum number of prunes that are stored for one run: the last ones.
const PRUNES_MAX: usize = 8;
/// Why an order is dropped after [`RemovalOrder::VALID_MS`].
const EXPIRED: &str =
    "the order to remove it has expired, because the node did not confirm it within 15 minutes; prune again";

impl Machine {
    /// Returns true if an earlier order is still safe: no checkpoint in it was pinned or resumed from since, and all of them are still
    /// proven.
    #[must_use]
    pub fn may_still_remove(&self, order: &RemovalOrder) -> bool {
        let mut kept = self.verdicts_on_ordered().into_iter().filter(must_be_kept);
        !kept.any(|verdict| order.remove.contains(&verdict.path))
    }

    /// Returns the verdicts without any rule: it was checked when the order was given.
    fn verdicts_on_ordered(&self) -> Vec<Verdict> {
        let none = Keep {
            last: Some(0),
            ..Keep::default()
        };
        self.verdicts(none, true)
    }

    /// Records why an order is dropped that its node has not accepted, for each of its checkpoints.
    fn note_dropped(&mut self, node: &str, order: &RemovalOrder, now_ms: TimestampMs) {
        let verdicts = self.verdicts_on_ordered();
        let mut ordered = verdicts
            .iter()
            .filter(|verdict| order.remove.contains(&verdict.path));
        // If the clock was set back, the order seems to be younger than it is.
        let has_expired = order.remaining_ms(now_ms) == 0 || !ordered.any(must_be_kept);
        for (checkpoint, verdict) in self.checkpoints.iter_mut().zip(verdicts) {
            let Some(view) = checkpoint.seen.get_mut(node) else {
                continue;
            };
            // A later request has an answer of its own.
            let requested_ms = view.requested_removal.as_ref().map(|requested| requested.at_ms);
            if !order.remove.contains(&verdict.path) || requested_ms > order.ordered_ms {
                continue;
            }
            view.not_removed_order_ms = order.ordered_ms;
            view.not_removed = Some(if has_expired {
                EXPIRED.to_owned()
            } else if must_be_kept(&verdict) {
                format!("it must be kept now: {}", verdict.reason)
            } else {
                "another checkpoint of the same order must be kept now, so the order was dropped; prune again"
                    .to_owned()
            });
        }
    }

    /// Returns true if a node has not answered an order for too long: the event [`Tick`](Event::Tick) then records that.
    #[must_use]
    pub fn has_overdue_removal(&self, now_ms: TimestampMs) -> bool {
        let mut views = self.checkpoints.iter().flat_map(|one| one.seen.values());
        views.any(|view| view.is_answer_overdue(now_ms))
    }

    /// Records that nodes have not answered orders. An answer that comes later replaces this reason.
    fn note_overdue_removals(&mut self, now_ms: TimestampMs) {
        let views = self.checkpoints.iter_mut().flat_map(|one| one.seen.values_mut());
        for view in views.filter(|view| view.is_answer_overdue(now_ms)) {
            view.not_removed = Some(NO_ANSWER.to_owned());
            view.not_removed_order_ms = view.requested_removal.as_ref().map(|requested| requested.at_ms);
        }
    }

    /// Returns what a prune would remove and keep now: the page and a dry run show this list, and a removal follows it.
    #[must_use]
    pub fn prune_answer(&self, keep_last: Option<u32>) -> PruneAnswer {
        let verdicts = self.verdicts(self.keep_by_hand(keep_last), true);
        let mut answer = PruneAnswer::default();
        for (verdict, checkpoint) in verdicts.into_iter().zip(&self.checkpoints) {
            let lines = if verdict.is_removed() {
                &mut answer.removed
            } else {
                &mut answer.kept
            };
            lines.push(PruneLine {
                path: verdict.path,
                reason: verdict.reason.to_string(),
                kind: verdict.reason.kind().to_owned(),
                own_bytes: checkpoint.own_bytes,
            });
        }
        answer
    }

    fn keep_by_hand(&self, keep_last: Option<u32>) -> Keep {
        match keep_last {
            Some(last) => Keep {
                last: Some(last),
                ..self.spec.keep_checkpoints
            },
            None => self.spec.keep_checkpoints,
        }
    }

    fn knows_node(&self, node: &str) -> bool {
        let mut tasks = self.attempts.iter().flat_map(|attempt| &attempt.nodes);
        tasks.any(|task| task.node.as_str() == node)
    }

    fn saw(&mut self, node: &str, report: &CheckpointReport) {
        let has_open_prune = self.storage.prunes.iter().any(Prune::is_open);
        let before = has_open_prune.then(|| self.complete());
        merge::merge(&mut self.checkpoints, node, report, self.submitted_ms);
        self.mark_diverged_checkpoints();
        let told = NodeStorage {
            folder: report.folder.clone(),
            free_bytes: report.free_bytes,
            latest: report.latest.clone(),
            problem: report.problem.clone(),
            failure: report.failure.clone(),
            proves: report.proves,
        };
        let known = self.storage.nodes.insert(node.to_owned(), told);
        if let Some(before) = before {
            self.follow_prunes(&before, known.and_then(|known| known.failure).as_ref(), report);
        }
    }

    /// Returns the complete checkpoints, with the times at which they were finished.
    fn complete(&self) -> BTreeMap<String, Option<TimestampMs>> {
        let complete = self.checkpoints.iter().filter(|checkpoint| checkpoint.complete);
        complete
            .map(|checkpoint| (checkpoint.path.clone(), checkpoint.finished_ms))
            .collect()
    }

    /// Updates what followed a prune after a report. `before` and `failed_before` are the state before the report.
    fn follow_prunes(
        &mut self,
        before: &BTreeMap<String, Option<TimestampMs>>,
        failed_before: Option<&SaveFailure>,
        report: &CheckpointReport,
    ) {
        let is_new = |checkpoint: &&Checkpoint| {
            checkpoint.complete && before.get(&checkpoint.path) != Some(&checkpoint.finished_ms)
        };
        let saved = self.checkpoints.iter().find(is_new);
        let saved = saved.map(|checkpoint| checkpoint.path.clone());
        let failed = report
            .failure
            .as_ref()
            .filter(|failure| Some(*failure) != failed_before);
        let free_bytes = self.storage.free_bytes();
        let open = self.storage.prunes.iter_mut().filter(|prune| prune.is_open());
        for prune in open {
            let had_space = prune.left == 0;
            prune.follow(&self.checkpoints, free_bytes);
            if prune.saved.is_none() {
                prune.saved.clone_from(&saved);
            }
            if had_space && prune.failed.is_none() {
                prune.failed = failed.cloned();
            }
        }
    }

    /// Records a prune that removes something. `seen` are the checkpoints that the person agreed to remove.
    fn note_prune(&mut self, keep: Keep, seen: &BTreeSet<String>, now_ms: TimestampMs) {
        let verdicts = self.verdicts(keep, true).into_iter().zip(&self.checkpoints);
        let removes: BTreeMap<String, u64> = verdicts
            .filter(|(verdict, _)| verdict.is_removed() && seen.contains(&verdict.path))
            .map(|(verdict, checkpoint)| (verdict.path, checkpoint.own_bytes))
            .collect();
        if removes.is_empty() {
            return;
        }
        let free_bytes = self.storage.free_bytes();
        let prunes = &mut self.storage.prunes;
        let no = prunes.last().map_or(1, |last| last.no + 1);
        prunes.push(Prune::new(no, removes, free_bytes, now_ms));
        let surplus = prunes.len().saturating_sub(PRUNES_MAX);
        prunes.drain(..surplus);
    }

    fn verdicts(&self, keep: Keep, by_hand: bool) -> Vec<Verdict> {
        let able_nodes: BTreeSet<String> = self.empty_orders().into_keys().collect();
        decide(&Situation {
            checkpoints: &self.checkpoints,
            pinned: &self.storage.pinned,
            pinned_by_others: &self.storage.pinned_by_others,
            in_use: &self.checkpoints_in_use(),
            folders: &self.storage.folders(),
            able_nodes: &able_nodes,
            keep,
            by_hand,
        })
    }

    /// Returns the checkpoint that must remain.
    fn last_complete(&self) -> Option<&Checkpoint> {
        let anchor = resume_point(&self.checkpoints)?;
        self.checkpoints.iter().find(|one| one.path == anchor.path)
    }

    /// Returns what is recorded for each checkpoint that is ordered to be removed now.
    fn requested_removal(&self, now_ms: TimestampMs) -> RequestedRemoval {
        let nodes = self.storage.nodes.values();
        let failures = nodes.filter_map(|node| node.failure.as_ref());
        RequestedRemoval {
            at_ms: now_ms,
            remain: self.last_complete().map(LastComplete::from),
            failed_ms: failures.map(|failure| failure.at_ms).max(),
        }
    }

    /// Returns an order without paths for each node that can carry one out. The node must see the checkpoint that is to remain, because it
    /// checks that before it removes anything. An agent that is too old to know what the run wrote gets no order.
    fn empty_orders(&self) -> BTreeMap<String, RemovalOrder> {
        let Some(anchor) = self.last_complete() else {
            return BTreeMap::new();
        };
        let proving = self.storage.nodes.iter().filter(|(_, storage)| storage.proves);
        let order = |(node, storage): (&String, &NodeStorage)| {
            let view = anchor.seen.get(node)?;
            let order = RemovalOrder {
                folder: storage.folder.clone()?,
                remove: Vec::new(),
                remain: RequiredCheckpoint {
                    path: anchor.path.clone(),
                    complete: view.complete,
                    mark: view.mark.clone(),
                },
                ..RemovalOrder::default()
            };
            Some((node.clone(), order))
        };
        proving.filter_map(order).collect()
    }

    /// Returns one node of each storage, among those that can prove that the run wrote the checkpoint. Nodes that can carry out an order come
    /// first, then those whose agents are connected.
    fn one_node_of_each_storage(
        &self,
        checkpoint: &Checkpoint,
        orders: &BTreeMap<String, RemovalOrder>,
    ) -> Vec<String> {
        let away = |node: &str| {
            let task = self
                .current()
                .nodes
                .iter()
                .find(|task| task.node.as_str() == node);
            task.is_none_or(|task| task.away_since_ms.is_some())
        };
        let proving = checkpoint.seen.iter().filter(|(node, view)| {
            let storage = self.storage.nodes.get(node.as_str());
            view.origin == Some(Origin::Proven) && storage.is_some_and(|storage| storage.proves)
        });
        let mut proving: Vec<_> = proving.collect();
        proving.sort_by_key(|(node, _)| (!orders.contains_key(node.as_str()), away(node)));
        let mut marks = BTreeSet::new();
        proving.retain(|(_, view)| marks.insert(view.mark.as_str()));
        proving.into_iter().map(|(node, _)| node.clone()).collect()
    }
}

impl Transition<'_> {
    /// Applies what an event says about checkpoints, in any state of the run.
    pub(in crate::run) fn apply_checkpoint_event(&mut self, event: &Event) {
        let run = &mut *self.run;
        match event {
            Event::Reported {
                node,
                report: NodeReport::Checkpoints(report),
                ..
            } if run.knows_node(node.as_str()) => {
                run.saw(node.as_str(), report);
                let keep = run.spec.keep_checkpoints;
                if !keep.is_all() {
                    self.order_removal(keep, None);
                }
            }
            Event::CheckpointPinned { path, pinned: true } if run.storage.pinned.len() < PINS_MAX => {
                run.storage.pinned.insert(path.clone());
            }
            Event::CheckpointPinned { path, pinned: false } => {
                run.storage.pinned.remove(path);
            }
            Event::PinnedByOthers { paths } => run.storage.pinned_by_others.clone_from(paths),
            Event::Tick => run.note_overdue_removals(self.now_ms),
            Event::RemovalDropped { node, order } => run.note_dropped(node.as_str(), order, self.now_ms),
            Event::PruneRequested { keep_last, seen } => {
                let keep = run.keep_by_hand(*keep_last);
                run.note_prune(keep, seen, self.now_ms);
                self.order_removal(keep, Some(seen));
            }
            _ => {}
        }
    }

    /// Orders the removal of what no rule keeps; for a person, only of the checkpoints that the person has seen. Records why a checkpoint
    /// that the person has seen is not removed, or not from every storage.
    fn order_removal(&mut self, keep: Keep, seen: Option<&BTreeSet<String>>) {
        let (run, now_ms) = (&mut *self.run, self.now_ms);
        let by_hand = seen.is_some();
        let is_requested = |path: &String| seen.is_none_or(|seen| seen.contains(path));
        let mut orders = run.empty_orders();
        let request = run.requested_removal(now_ms);
        let verdicts = run.verdicts(keep, by_hand);
        for (at, verdict) in verdicts
            .iter()
            .enumerate()
            .filter(|(_, verdict)| is_requested(&verdict.path))
        {
            if by_hand {
                let reason = (!verdict.is_removed()).then(|| verdict.reason.to_string());
                for view in run.checkpoints[at].seen.values_mut() {
                    // Without an order, until a node gets one below.
                    view.requested_removal = Some(RequestedRemoval {
                        at_ms: now_ms,
                        ..RequestedRemoval::default()
                    });
                    (view.not_removed, view.not_removed_order_ms) = (reason.clone(), None);
                }
            }
            let told = run.checkpoints[at].prune_told_ms;
            let is_recent = |told: TimestampMs| (0..RESEND_AFTER_MS).contains(&(now_ms - told));
            let is_told = told.is_some_and(is_recent) && !by_hand;
            if !verdict.is_removed() || is_told {
                continue;
            }
            for node in run.one_node_of_each_storage(&run.checkpoints[at], &orders) {
                let checkpoint = &mut run.checkpoints[at];
                let waits = !by_hand && checkpoint.awaits_change(&node, &request);
                let Some(view) = checkpoint.seen.get_mut(&node) else {
                    continue;
                };
                if let Some(order) = orders.get_mut(&node) {
                    if !waits && (by_hand || order.remove.len() < ORDER_MAX) {
                        order.remove.push(verdict.path.clone());
                        order.marks.insert(verdict.path.clone(), view.mark.clone());
                        view.requested_removal = Some(request.clone());
                        checkpoint.prune_told_ms = Some(now_ms);
                    }
                } else {
                    let reason = Reason::NoNode.to_string();
                    (view.not_removed, view.not_removed_order_ms) = (Some(reason), None);
                }
            }
        }
        for (node, mut order) in orders {
            if !order.remove.is_empty() {
                order.ordered_ms = Some(now_ms);
                self.command_removal(&node, order);
            }
        }
    }

    /// Uses the number of the last attempt that had a task on the node, because its agent knows that attempt.
    fn command_removal(&mut self, node: &str, order: RemovalOrder) {
        let mut attempts = self.run.attempts.iter().enumerate().rev();
        let last = attempts.find_map(|(at, attempt)| {
            let task = attempt.nodes.iter().find(|task| task.node.as_str() == node)?;
            Some((at, task.node.clone()))
        });
        if let Some((attempt, node)) = last {
            self.command_of(attempt, node, NodeCommand::Remove(order));
        }
    }
}

/// Returns true if an order must not remove the checkpoint. An order names the checkpoint that must remain on its node, so it stays valid
/// if the run continues on other nodes.
fn must_be_kept(verdict: &Verdict) -> bool {
    !verdict.is_removed() && verdict.reason != Reason::NoNode
}

#[cfg(test)]
mod tests;
