//! What checkpoints mean to a run's machine: reports are taken, also after its end; pins are kept; orders to
//! remove are given.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::checkpoints::{PruneAnswer, PruneLine};
use crate::run::checkpoint::retention::{Keep, Situation, Verdict, decide};
use crate::run::checkpoint::{
    Checkpoint, CheckpointReport, NodeStorage, Origin, Remain, RemovalOrder, known, resume_point,
};
use crate::run::state::{Event, Machine, NodeCommand, NodeReport, Transition};

/// Pins are few: a person sets each. Beyond, new ones are refused.
pub const PINS_MAX: usize = 1_000;
/// An order that shows no effect is given again after this long.
const TELL_AGAIN_MS: i64 = 60_000;
/// The most that one order removes; the next report brings the next order.
const ORDER_MAX: usize = 64;

impl Machine {
    /// Whether an order that was given earlier still removes nothing that has been pinned or gone on from since, or whose proof is gone.
    #[must_use]
    pub fn may_still_remove(&self, order: &RemovalOrder) -> bool {
        let none = Keep {
            last: Some(0),
            ..Keep::default()
        };
        let verdicts = self.verdicts(none, true);
        let stays = |path: &String| {
            verdicts
                .iter()
                .any(|verdict| verdict.path == *path && !verdict.is_removed())
        };
        !order.remove.iter().any(stays)
    }

    /// What pruning would remove and keep now: the list that the page and a dry run show, and that removal follows.
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
        known::merge(&mut self.checkpoints, node, report, self.submitted_ms);
        let told = NodeStorage {
            folder: report.folder.clone(),
            free_bytes: report.free_bytes,
            latest: report.latest.clone(),
            problem: report.problem.clone(),
            failure: report.failure.clone(),
            proves: report.proves,
        };
        self.storage.nodes.insert(node.to_owned(), told);
    }

    fn verdicts(&self, keep: Keep, by_hand: bool) -> Vec<Verdict> {
        decide(&Situation {
            checkpoints: &self.checkpoints,
            pinned: &self.storage.pinned,
            pinned_by_others: &self.storage.pinned_by_others,
            in_use: &self.checkpoints_in_use(),
            folders: &self.storage.folders(),
            keep,
            by_hand,
        })
    }

    /// The node must see the checkpoint that is to remain: it looks whether it is there before anything is removed. `None` too for a node
    /// whose agent is too old to know what the run wrote.
    fn order_for(&self, node: &str) -> Option<RemovalOrder> {
        let storage = self.storage.nodes.get(node).filter(|storage| storage.proves)?;
        let folder = storage.folder.clone()?;
        let anchor = resume_point(&self.checkpoints)?;
        let anchor = self.checkpoints.iter().find(|one| one.path == anchor.path)?;
        let sight = anchor.seen.get(node)?;
        Some(RemovalOrder {
            folder,
            remove: Vec::new(),
            remain: Remain {
                path: anchor.path.clone(),
                complete: sight.complete,
                mark: sight.mark.clone(),
            },
        })
    }

    /// Of the nodes that can prove the checkpoint. Those whose agents are connected come first.
    fn one_node_of_each_storage(&self, checkpoint: &Checkpoint) -> Vec<String> {
        let away = |node: &str| {
            let task = self
                .current()
                .nodes
                .iter()
                .find(|task| task.node.as_str() == node);
            task.is_none_or(|task| task.away_since_ms.is_some())
        };
        let proving = checkpoint.seen.iter().filter(|(node, sight)| {
            let storage = self.storage.nodes.get(node.as_str());
            sight.origin == Some(Origin::Proven) && storage.is_some_and(|storage| storage.proves)
        });
        let mut proving: Vec<_> = proving.collect();
        proving.sort_by_key(|(node, _)| away(node));
        let mut marks = BTreeSet::new();
        proving.retain(|(_, sight)| marks.insert(sight.mark.as_str()));
        proving.into_iter().map(|(node, _)| node.clone()).collect()
    }
}

impl Transition<'_> {
    /// Takes what an event says of checkpoints, in any state of the run.
    pub(in crate::run) fn take_of_checkpoints(&mut self, event: &Event) {
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
                    self.order_removal(keep, false);
                }
            }
            Event::CheckpointPinned { path, pinned: true } if run.storage.pinned.len() < PINS_MAX => {
                run.storage.pinned.insert(path.clone());
            }
            Event::CheckpointPinned { path, pinned: false } => {
                run.storage.pinned.remove(path);
            }
            Event::PinnedByOthers { paths } => run.storage.pinned_by_others.clone_from(paths),
            Event::PruneRequested { keep_last } => {
                let keep = run.keep_by_hand(*keep_last);
                self.order_removal(keep, true);
            }
            _ => {}
        }
    }

    fn order_removal(&mut self, keep: Keep, by_hand: bool) {
        let (run, now_ms) = (&mut *self.run, self.now_ms);
        let mut orders: BTreeMap<String, RemovalOrder> = BTreeMap::new();
        let verdicts = run.verdicts(keep, by_hand);
        for (at, verdict) in verdicts
            .iter()
            .enumerate()
            .filter(|(_, verdict)| verdict.is_removed())
        {
            let told = run.checkpoints[at].prune_told_ms;
            if told.is_some_and(|told| now_ms - told < TELL_AGAIN_MS) && !by_hand {
                continue;
            }
            for node in run.one_node_of_each_storage(&run.checkpoints[at]) {
                let Some(first) = run.order_for(&node) else {
                    continue;
                };
                let order = orders.entry(node).or_insert(first);
                if order.remove.len() < ORDER_MAX {
                    order.remove.push(verdict.path.clone());
                    run.checkpoints[at].prune_told_ms = Some(now_ms);
                }
            }
        }
        for (node, order) in orders {
            self.command_removal(&node, order);
        }
    }

    /// Under the number of the last attempt that had the node: its agent knows that one.
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

#[cfg(test)]
mod tests;
