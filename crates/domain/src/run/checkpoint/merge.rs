//! The checkpoints of a run, combined from what its nodes see.
//!
//! Nodes with the same mark see the same storage. Nodes with different marks have separate disks, and a checkpoint of
//! `torch.distributed.checkpoint` is complete if all files that `.metadata` names are on any of them.
//!
//! A checkpoint belongs to this run if any node says so. If no node can tell, as with agents that do not record who wrote a file, it
//! belongs to this run if it was finished after the run was submitted.

use std::collections::BTreeSet;

use crate::run::checkpoint::{Checkpoint, CheckpointOnNode, CheckpointReport, Origin, resume_point};
use crate::time::TimestampMs;

/// Maximum number of checkpoints that are stored for one run; the furthest ones stay.
const KNOWN_MAX: usize = 512;

/// Merges a node's report into the known checkpoints of a run that was submitted at `since_ms`.
pub(super) fn merge(
    known: &mut Vec<Checkpoint>,
    node: &str,
    report: &CheckpointReport,
    since_ms: TimestampMs,
) {
    forget_gone(known, node, report);
    for told in &report.checkpoints {
        let Some(view) = told.seen.get(node) else {
            continue;
        };
        match known.iter_mut().find(|checkpoint| checkpoint.path == told.path) {
            Some(checkpoint) => checkpoint.update(node, told, view),
            None => known.push(Checkpoint {
                seen: [(node.to_owned(), view.after(None))].into(),
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
        let gone = !named && report.is_gone(&checkpoint.path);
        if let Some(mark) = checkpoint.seen.get(node).map(|view| view.mark.clone())
            && gone
        {
            // What is gone from a storage is gone for every node that sees this storage.
            checkpoint.seen.retain(|_, view| view.mark != mark);
        }
    }
    known.retain(|checkpoint| !checkpoint.seen.is_empty());
}

/// Removes the least advanced checkpoints. The one that training would resume from always stays.
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
    fn update(&mut self, node: &str, told: &Self, view: &CheckpointOnNode) {
        let mut seen = std::mem::take(&mut self.seen);
        let now = view.after(seen.get(node));
        seen.insert(node.to_owned(), now);
        let before = std::mem::replace(self, told.clone());
        // A node without `.metadata`, or with a new agent, knows less.
        self.step = told.step.or(before.step);
        self.duration_ms = told.duration_ms.or(before.duration_ms);
        self.val_loss = told.val_loss.or(before.val_loss);
        self.changed_ms = told.changed_ms.max(before.changed_ms);
        self.finished_ms = told.finished_ms.or(before.finished_ms);
        self.prune_told_ms = before.prune_told_ms;
        // If the script saved it again, it may be used again.
        self.doubt = before.doubt.filter(|_| self.finished_ms == before.finished_ms);
        if !view.complete
            && seen
                .values()
                .any(|other| other.complete || !other.missing.is_empty())
        {
            self.model_only = before.model_only;
        }
        self.seen = seen;
    }

    /// Complete for one node means complete; otherwise the parts on all disks are combined.
    fn judge(&mut self) {
        if self.seen.is_empty() {
            return;
        }
        let views = || self.seen.values();
        let together = views().any(|view| {
            !view.missing.is_empty()
                && view.missing_more == 0
                && !view.writing
                && view.missing.iter().all(|shard| self.elsewhere(&view.mark, shard))
        });
        let complete = views().any(|view| view.complete) || together;
        let writing = !complete && views().any(|view| view.writing);
        let told = views()
            .filter(|view| view.problem.is_some())
            .max_by_key(|view| view.missing.len());
        let problem = told.and_then(|view| view.problem.clone()).filter(|_| !complete);
        let mut marks = BTreeSet::new();
        let disks: Vec<_> = views().filter(|view| marks.insert(view.mark.as_str())).collect();
        let bytes = disks.iter().map(|view| view.bytes).sum();
        let own_bytes = disks.iter().map(|view| view.own_bytes).sum();
        (self.complete, self.writing, self.problem) = (complete, writing, problem);
        (self.bytes, self.own_bytes) = (bytes, own_bytes);
    }

    /// Returns true if it was there before the run: by what the nodes report, or by its age if no node can tell.
    fn is_foreign(&self, since_ms: TimestampMs) -> bool {
        let any = |is: fn(Origin) -> bool| self.seen.values().filter_map(|view| view.origin).any(is);
        if any(|origin| matches!(origin, Origin::Proven | Origin::SinceStart)) {
            return false;
        }
        let changed_ms = self.finished_ms.or(self.changed_ms);
        any(|origin| origin == Origin::BeforeStart) || changed_ms.is_some_and(|changed| changed < since_ms)
    }

    fn elsewhere(&self, mark: &str, shard: &str) -> bool {
        let has = |view: &&CheckpointOnNode| {
            view.mark != mark && !view.writing && view.parts.iter().any(|part| part == shard)
        };
        self.seen.values().any(|view| has(&view))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(mark: &str, complete: bool) -> CheckpointOnNode {
        CheckpointOnNode {
            mark: mark.into(),
            complete,
            bytes: 10,
            own_bytes: 5,
            ..CheckpointOnNode::default()
        }
    }

    fn told(node: &str, step: u64, view: CheckpointOnNode) -> Checkpoint {
        Checkpoint {
            path: format!("/c/step-{step}"),
            step: Some(step),
            seen: [(node.to_owned(), view)].into(),
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
        merge(&mut known, "a", &report(vec![told("a", 1, view("m", true))]), 0);
        merge(&mut known, "b", &report(vec![told("b", 1, view("m", false))]), 0);
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
        let both = vec![told("a", 1, view("m", true)), told("a", 2, view("n", true))];
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
        let first = CheckpointOnNode {
            missing: vec!["__1_0.distcp".into()],
            problem: Some("shard __1_0.distcp is missing".into()),
            ..view("disk-a", false)
        };
        let second = |parts: &[&str]| CheckpointOnNode {
            parts: parts.iter().map(|part| (*part).to_owned()).collect(),
            problem: Some(".metadata is missing".into()),
            ..view("disk-b", false)
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
    fn why_a_checkpoint_was_not_removed_stays_until_another_is_saved_in_its_place() {
        let kept = |mark: &str, reason: Option<&str>| CheckpointOnNode {
            not_removed: reason.map(str::to_owned),
            ..view(mark, true)
        };
        let mut known = Vec::new();
        for (node, view, expected) in [
            ("a", kept("m", Some("in use")), "in use (on a)"),
            ("a", kept("m", None), "in use (on a)"),
            ("b", kept("disk-b", Some("in use")), "in use (on a, b)"),
            (
                "b",
                kept("disk-b", Some("a link")),
                "a link (on b); in use (on a)",
            ),
            ("a", kept("saved again", None), "a link (on b)"),
        ] {
            merge(&mut known, node, &report(vec![told(node, 1, view)]), 0);
            assert_eq!(known[0].not_removed().as_deref(), Some(expected));
        }
    }

    #[test]
    fn what_no_node_saw_appear_is_of_the_run_only_if_it_is_younger() {
        let foreign = |origins: &[Option<Origin>], finished_ms| {
            let mut known = Vec::new();
            for (n, origin) in origins.iter().enumerate() {
                let (node, origin) = (n.to_string(), *origin);
                let seen = CheckpointOnNode {
                    origin,
                    ..view("m", true)
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
    fn too_many_checkpoints_do_not_displace_the_one_to_resume_from() {
        let mut known = Vec::new();
        let mut all: Vec<_> = (2..2_000)
            .map(|step| told("a", step, view(&step.to_string(), false)))
            .collect();
        all.push(told("a", 1, view("good", true)));
        merge(&mut known, "a", &report(all), 0);
        assert_eq!(known.len(), KNOWN_MAX);
        assert_eq!(resume_point(&known).and_then(|at| at.step), Some(1));
    }
}
