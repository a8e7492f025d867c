//! The checkpoints of a run, put together from what its nodes see.
//!
//! Nodes with the same mark look at the same storage. Nodes with different marks have a disk each, and a checkpoint of
//! `torch.distributed.checkpoint` is whole when what `.metadata` names lies on any of them.

use std::collections::BTreeSet;

use crate::run::checkpoint::{Checkpoint, CheckpointReport, Sight, resume_point};

/// The most checkpoints that are kept in mind for one run; the furthest stay.
const KNOWN_MAX: usize = 512;

/// Takes a node's report into what is known.
pub(super) fn merge(known: &mut Vec<Checkpoint>, node: &str, report: &CheckpointReport) {
    forget_gone(known, node, report);
    for told in &report.checkpoints {
        let Some(sight) = told.seen.get(node) else {
            continue;
        };
        match known.iter_mut().find(|checkpoint| checkpoint.path == told.path) {
            Some(checkpoint) => checkpoint.update(node, told, sight),
            None => known.push(Checkpoint {
                seen: [(node.to_owned(), sight.clone())].into(),
                ..told.clone()
            }),
        }
    }
    known.iter_mut().for_each(Checkpoint::judge);
    known.sort_by(|a, b| b.progress().cmp(&a.progress()).then_with(|| a.path.cmp(&b.path)));
    bound(known);
}

fn forget_gone(known: &mut Vec<Checkpoint>, node: &str, report: &CheckpointReport) {
    let told: BTreeSet<&str> = report.checkpoints.iter().map(|told| told.path.as_str()).collect();
    for checkpoint in known.iter_mut() {
        let named = told.contains(checkpoint.path.as_str());
        let gone = !named && report.says_is_gone(&checkpoint.path);
        if let Some(mark) = checkpoint.seen.get(node).map(|sight| sight.mark.clone())
            && gone
        {
            // Gone from the storage is gone for everyone who looks at it.
            checkpoint.seen.retain(|_, sight| sight.mark != mark);
        }
    }
    known.retain(|checkpoint| !checkpoint.seen.is_empty());
}

/// The one that training would go on from stays, whatever else there is.
fn bound(known: &mut Vec<Checkpoint>) {
    if known.len() <= KNOWN_MAX {
        return;
    }
    let anchor = resume_point(known).map(|at| at.path);
    let at = anchor.and_then(|path| known.iter().position(|checkpoint| checkpoint.path == path));
    if let Some(at) = at.filter(|at| *at >= KNOWN_MAX) {
        known.swap(at, KNOWN_MAX - 1);
    }
    known.truncate(KNOWN_MAX);
}

impl Checkpoint {
    fn update(&mut self, node: &str, told: &Self, sight: &Sight) {
        let mut seen = std::mem::take(&mut self.seen);
        seen.insert(node.to_owned(), sight.clone());
        let before = std::mem::replace(self, told.clone());
        // A node without `.metadata`, or whose agent is new, knows less.
        self.step = told.step.or(before.step);
        self.duration_ms = told.duration_ms.or(before.duration_ms);
        self.val_loss = told.val_loss.or(before.val_loss);
        self.changed_ms = told.changed_ms.max(before.changed_ms);
        self.finished_ms = told.finished_ms.or(before.finished_ms);
        self.prune_told_ms = before.prune_told_ms;
        // Saved anew it has another chance.
        self.doubt = before.doubt.filter(|_| self.finished_ms == before.finished_ms);
        if !sight.complete
            && seen
                .values()
                .any(|other| other.complete || !other.missing.is_empty())
        {
            self.model_only = before.model_only;
        }
        self.seen = seen;
    }

    /// Whole for one node is whole; else the parts of all disks are put together.
    fn judge(&mut self) {
        if self.seen.is_empty() {
            return;
        }
        let sights = || self.seen.values();
        let together = sights().any(|sight| {
            !sight.missing.is_empty()
                && sight.missing_more == 0
                && !sight.writing
                && sight
                    .missing
                    .iter()
                    .all(|shard| self.elsewhere(&sight.mark, shard))
        });
        let complete = sights().any(|sight| sight.complete) || together;
        let writing = !complete && sights().any(|sight| sight.writing);
        let told = sights()
            .filter(|sight| sight.problem.is_some())
            .max_by_key(|sight| sight.missing.len());
        let problem = told.and_then(|sight| sight.problem.clone()).filter(|_| !complete);
        let mut marks = BTreeSet::new();
        let disks: Vec<_> = sights()
            .filter(|sight| marks.insert(sight.mark.as_str()))
            .collect();
        let bytes = disks.iter().map(|sight| sight.bytes).sum();
        let own_bytes = disks.iter().map(|sight| sight.own_bytes).sum();
        (self.complete, self.writing, self.problem) = (complete, writing, problem);
        (self.bytes, self.own_bytes) = (bytes, own_bytes);
    }

    fn elsewhere(&self, mark: &str, shard: &str) -> bool {
        let has = |sight: &&Sight| {
            sight.mark != mark && !sight.writing && sight.parts.iter().any(|part| part == shard)
        };
        self.seen.values().any(|sight| has(&sight))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sight(mark: &str, complete: bool) -> Sight {
        Sight {
            mark: mark.into(),
            complete,
            bytes: 10,
            own_bytes: 5,
            ..Sight::default()
        }
    }

    fn told(node: &str, step: u64, sight: Sight) -> Checkpoint {
        Checkpoint {
            path: format!("/c/step-{step}"),
            step: Some(step),
            seen: [(node.to_owned(), sight)].into(),
            ..Checkpoint::default()
        }
    }

    fn report(checkpoints: Vec<Checkpoint>) -> CheckpointReport {
        CheckpointReport {
            checkpoints,
            ..CheckpointReport::default()
        }
    }

    #[test]
    fn shared_storage_is_counted_once_and_gone_for_all_at_once() {
        let mut known = Vec::new();
        merge(&mut known, "a", &report(vec![told("a", 1, sight("m", true))]));
        merge(&mut known, "b", &report(vec![told("b", 1, sight("m", false))]));
        assert!(known[0].complete, "whole for one is whole");
        assert_eq!(
            (known[0].bytes, known[0].own_bytes, known[0].seen.len()),
            (10, 5, 2)
        );
        merge(&mut known, "b", &report(vec![]));
        assert_eq!(known, [], "b sees that it is gone, so it is gone for a");
    }

    #[test]
    fn a_partial_report_takes_away_only_what_it_names_as_gone() {
        let mut known = Vec::new();
        let both = vec![told("a", 1, sight("m", true)), told("a", 2, sight("n", true))];
        merge(&mut known, "a", &report(both));
        let partial = CheckpointReport {
            partial: true,
            gone: vec!["/c/step-1".into()],
            ..CheckpointReport::default()
        };
        merge(&mut known, "a", &partial);
        assert_eq!(known.iter().map(|c| c.step).collect::<Vec<_>>(), [Some(2)]);
    }

    #[test]
    fn shards_on_separate_disks_are_put_together() {
        let mut known = Vec::new();
        let first = Sight {
            missing: vec!["__1_0.distcp".into()],
            problem: Some("shard __1_0.distcp is missing".into()),
            ..sight("disk-a", false)
        };
        let second = |parts: &[&str]| Sight {
            parts: parts.iter().map(|part| (*part).to_owned()).collect(),
            problem: Some(".metadata is missing".into()),
            ..sight("disk-b", false)
        };
        merge(&mut known, "a", &report(vec![told("a", 1, first)]));
        assert!(!known[0].complete);
        assert_eq!(known[0].problem.as_deref(), Some("shard __1_0.distcp is missing"));
        merge(
            &mut known,
            "b",
            &report(vec![told("b", 1, second(&["__2_0.distcp"]))]),
        );
        assert!(!known[0].complete);
        merge(
            &mut known,
            "b",
            &report(vec![told("b", 1, second(&["__1_0.distcp"]))]),
        );
        assert!(known[0].complete && known[0].problem.is_none());
        assert_eq!(known[0].bytes, 20);
    }

    #[test]
    fn a_flood_leaves_the_one_to_go_on_from() {
        let mut known = Vec::new();
        let mut all: Vec<_> = (2..2_000)
            .map(|step| told("a", step, sight(&step.to_string(), false)))
            .collect();
        all.push(told("a", 1, sight("good", true)));
        merge(&mut known, "a", &report(all));
        assert_eq!(known.len(), KNOWN_MAX);
        assert_eq!(resume_point(&known).and_then(|at| at.step), Some(1));
    }
}
