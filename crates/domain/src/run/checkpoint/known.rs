//! The checkpoints of a run, put together from what its nodes see.
//!
//! Nodes with the same mark look at the same storage. Nodes with different marks have a disk each, and a checkpoint of
//! `torch.distributed.checkpoint` is whole when what `.metadata` names lies on any of them.
//!
//! A checkpoint is this run's if any node says so. Where no node can tell, as with agents that do not know who wrote what, it is this run's
//! if it was finished after the run was submitted.

use std::collections::BTreeSet;

use crate::run::checkpoint::{Checkpoint, CheckpointReport, Origin, Sight, resume_point};
use crate::time::TimestampMs;

/// The most checkpoints that are kept in mind for one run; the furthest stay.
const KNOWN_MAX: usize = 512;

/// Takes a node's report into what is known of a run that was submitted at `since_ms`.
pub(super) fn merge(
    known: &mut Vec<Checkpoint>,
    node: &str,
    report: &CheckpointReport,
    since_ms: TimestampMs,
) {
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
    for checkpoint in known.iter_mut() {
        checkpoint.judge();
        checkpoint.foreign = checkpoint.is_foreign(since_ms);
    }
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

    /// Whether it was there before the run: what the nodes say, and its age where none of them can tell.
    fn is_foreign(&self, since_ms: TimestampMs) -> bool {
        let any = |is: fn(Origin) -> bool| self.seen.values().filter_map(|sight| sight.origin).any(is);
        if any(|origin| matches!(origin, Origin::Proven | Origin::SinceStart)) {
            return false;
        }
        let changed_ms = self.finished_ms.or(self.changed_ms);
        any(|origin| origin == Origin::BeforeStart) || changed_ms.is_some_and(|changed| changed < since_ms)
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
        merge(&mut known, "a", &report(vec![told("a", 1, sight("m", true))]), 0);
        merge(&mut known, "b", &report(vec![told("b", 1, sight("m", false))]), 0);
        assert!(known[0].complete, "whole for one is whole");
        assert_eq!(
            (known[0].bytes, known[0].own_bytes, known[0].seen.len()),
            (10, 5, 2)
        );
        merge(&mut known, "b", &report(vec![]), 0);
        assert_eq!(known, [], "b sees that it is gone, so it is gone for a");
    }

    #[test]
    fn a_partial_report_takes_away_only_what_it_names_as_gone() {
        let mut known = Vec::new();
        let both = vec![told("a", 1, sight("m", true)), told("a", 2, sight("n", true))];
        merge(&mut known, "a", &report(both), 0);
        let partial = CheckpointReport {
            partial: true,
            gone: vec!["/c/step-1".into()],
            ..CheckpointReport::default()
        };
        merge(&mut known, "a", &partial, 0);
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
        merge(&mut known, "a", &report(vec![told("a", 1, first)]), 0);
        assert!(!known[0].complete);
        assert_eq!(known[0].problem.as_deref(), Some("shard __1_0.distcp is missing"));
        merge(
            &mut known,
            "b",
            &report(vec![told("b", 1, second(&["__2_0.distcp"]))]),
            0,
        );
        assert!(!known[0].complete);
        merge(
            &mut known,
            "b",
            &report(vec![told("b", 1, second(&["__1_0.distcp"]))]),
            0,
        );
        assert!(known[0].complete && known[0].problem.is_none());
        assert_eq!(known[0].bytes, 20);
    }

    #[test]
    fn what_no_node_saw_appear_is_of_the_run_only_if_it_is_younger() {
        let foreign = |origins: &[Option<Origin>], finished_ms| {
            let mut known = Vec::new();
            for (n, origin) in origins.iter().enumerate() {
                let (node, origin) = (n.to_string(), *origin);
                let seen = Sight {
                    origin,
                    ..sight("m", true)
                };
                let one = Checkpoint {
                    finished_ms: Some(finished_ms),
                    ..told(&node, 1, seen)
                };
                merge(&mut known, &node, &report(vec![one]), 100);
            }
            known[0].foreign
        };
        let (proven, since, before) = (
            Some(Origin::Proven),
            Some(Origin::SinceStart),
            Some(Origin::BeforeStart),
        );
        for (origins, finished_ms, expected) in [
            (&[proven][..], 50, false),
            (&[since], 50, false),
            (&[before], 150, true),
            (&[before, since], 150, false),
            (&[None], 150, false),
            (&[None], 50, true),
            (&[Some(Origin::Unknown)], 50, true),
            (&[Some(Origin::Unknown), since], 50, false),
        ] {
            assert_eq!(
                foreign(origins, finished_ms),
                expected,
                "{origins:?} at {finished_ms}"
            );
        }
    }

    #[test]
    fn a_flood_leaves_the_one_to_go_on_from() {
        let mut known = Vec::new();
        let mut all: Vec<_> = (2..2_000)
            .map(|step| told("a", step, sight(&step.to_string(), false)))
            .collect();
        all.push(told("a", 1, sight("good", true)));
        merge(&mut known, "a", &report(all), 0);
        assert_eq!(known.len(), KNOWN_MAX);
        assert_eq!(resume_point(&known).and_then(|at| at.step), Some(1));
    }
}
