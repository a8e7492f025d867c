//! Decides which checkpoints are kept and which are removed: a pure function of the list of a run's checkpoints. Automatic retention, a
//! prune by a person, its dry run and the run's page all use [`decide`].
//!
//! ```text
//! never removed: outside of the folder · pinned, by any run · resumed from by a run that has not ended · the last complete full one (by
//!                step and by time) · newer than that one · still being written · cannot be judged · what a kept one links into
//!                · not proven to be this run's · on no node that can carry out an order
//! kept by rule:  the last k full ones · every n steps · the best · model-only ones between full ones that are kept, or without a step in
//!                their name
//! removed:       everything else, incomplete ones included
//! ```
//! Without a complete full checkpoint of this run, nothing is removed at all.

mod reason;

pub use reason::Reason;

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::checkpoint::{Checkpoint, Origin, UNPROVEN_MAX, resume_point, step_of_name};
use crate::time::TimestampMs;

/// The checkpoints that a run keeps, as in its spec: a number for the last k, or `{ last = 3, every = 1000, best = true }`. Empty keeps
/// all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "Written")]
pub struct Keep {
    /// Keep this many of the last full checkpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<u32>,
    /// Keep checkpoints whose step is a multiple of this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<u64>,
    /// Keep the checkpoint with the lowest validation loss.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub best: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Last(u32),
    Rules(Rules),
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct Rules {
    last: Option<u32>,
    every: Option<u64>,
    best: bool,
}

impl From<Written> for Keep {
    fn from(written: Written) -> Self {
        match written {
            Written::Last(last) => Self {
                last: Some(last),
                ..Self::default()
            },
            Written::Rules(Rules { last, every, best }) => Self { last, every, best },
        }
    }
}

impl Keep {
    /// Returns true if nothing is ever removed.
    #[must_use]
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }
}

/// The input of a decision.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    /// All known checkpoints.
    pub checkpoints: &'a [Checkpoint],
    /// Paths that a person pinned in this run.
    pub pinned: &'a BTreeSet<String>,
    /// Paths that other runs have pinned, or resumed from.
    pub pinned_by_others: &'a BTreeSet<String>,
    /// Paths from which attempts of a run that has not ended resumed.
    pub in_use: &'a BTreeSet<String>,
    /// The folders, as the nodes name them, from which checkpoints may be removed.
    pub folders: &'a BTreeSet<String>,
    /// The nodes that can carry out an order: they can prove what the run wrote, and see the checkpoint that must remain.
    pub able_nodes: &'a BTreeSet<String>,
    /// The rule.
    pub keep: Keep,
    /// True if a person requested it: incomplete checkpoints are then removed even without a rule.
    pub by_hand: bool,
}

/// The decision about one checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Path of the checkpoint.
    pub path: String,
    /// Why it is kept or removed.
    pub reason: Reason,
}

impl Verdict {
    /// Returns true if it is removed.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.reason.removes()
    }
}

/// Decides about every checkpoint, in the given order.
#[must_use]
pub fn decide(situation: &Situation<'_>) -> Vec<Verdict> {
    let decision = Decision::new(situation);
    let verdicts = situation
        .checkpoints
        .iter()
        .map(|checkpoint| decision.verdict(checkpoint));
    let mut verdicts: Vec<Verdict> = verdicts.collect();
    keep_linked(situation.checkpoints, &mut verdicts);
    verdicts
}

struct Decision<'a> {
    situation: &'a Situation<'a>,
    /// Complete full checkpoints, furthest first.
    full: Vec<&'a Checkpoint>,
    /// The checkpoint from which training would resume. If two are equally far, [`resume_point`] decides which one.
    anchor: Option<String>,
    /// The last one by time; usually also the furthest.
    newest: Option<&'a Checkpoint>,
    best: Option<&'a Checkpoint>,
}

type Progress = (Option<u64>, Option<TimestampMs>);

impl<'a> Decision<'a> {
    fn new(situation: &'a Situation<'a>) -> Self {
        let mut full: Vec<_> = situation
            .checkpoints
            .iter()
            .filter(|one| one.is_usable())
            .collect();
        full.sort_by_key(|checkpoint| std::cmp::Reverse(checkpoint.progress()));
        let newest = full
            .iter()
            .copied()
            .max_by_key(|checkpoint| checkpoint.finished_ms);
        let scored = situation
            .checkpoints
            .iter()
            .filter(|one| one.complete && !one.foreign && one.val_loss.is_some());
        let best = scored.min_by(|a, b| {
            a.val_loss
                .partial_cmp(&b.val_loss)
                .unwrap_or(std::cmp::Ordering::Equal)
        });
        Self {
            situation,
            anchor: resume_point(situation.checkpoints).map(|at| at.path),
            full,
            newest,
            best,
        }
    }

    fn verdict(&self, checkpoint: &Checkpoint) -> Verdict {
        let kept = self.protected(checkpoint).or_else(|| {
            if checkpoint.complete {
                self.by_rule(checkpoint)
            } else {
                self.kept_while_incomplete(checkpoint)
            }
        });
        let unproven = || (!checkpoint.is_proven()).then(|| not_proven(checkpoint));
        let no_node = || (!self.has_able_node(checkpoint)).then_some(Reason::NoNode);
        Verdict {
            path: checkpoint.path.clone(),
            reason: kept
                .or_else(unproven)
                .or_else(no_node)
                .unwrap_or_else(|| self.removal_reason(checkpoint)),
        }
    }

    /// Returns the reason if no rule may remove the checkpoint.
    fn protected(&self, checkpoint: &Checkpoint) -> Option<Reason> {
        let Situation {
            pinned,
            pinned_by_others,
            in_use,
            folders,
            ..
        } = self.situation;
        let is = |other: Option<&Checkpoint>| other.is_some_and(|other| other.path == checkpoint.path);
        let reason = if !folders.iter().any(|folder| is_inside(&checkpoint.path, folder)) {
            Reason::OutsideFolder
        } else if pinned.contains(&checkpoint.path) {
            Reason::Pinned
        } else if pinned_by_others.contains(&checkpoint.path) {
            Reason::PinnedByAnotherRun
        } else if in_use.contains(&checkpoint.path) {
            Reason::InUse
        } else if checkpoint.foreign {
            not_proven(checkpoint)
        } else if self.anchor.as_ref() == Some(&checkpoint.path) || is(self.newest) {
            Reason::LastComplete
        } else if self.full.is_empty() {
            Reason::NoComplete
        } else if checkpoint.uncertain {
            Reason::Uncertain
        } else if checkpoint.doubt.is_some() {
            Reason::Doubted
        } else if checkpoint.diverged_after.is_some() {
            Reason::Diverged
        } else if self.is_newer_than_the_last(checkpoint) {
            Reason::NewerThanLastComplete
        } else {
            return None;
        };
        Some(reason)
    }

    fn has_able_node(&self, checkpoint: &Checkpoint) -> bool {
        let mut proving = checkpoint
            .seen
            .iter()
            .filter(|(_, view)| view.origin == Some(Origin::Proven));
        proving.any(|(node, _)| self.situation.able_nodes.contains(node))
    }

    /// Compares by time and by step. A checkpoint of unknown age counts as newer.
    fn is_newer_than_the_last(&self, checkpoint: &Checkpoint) -> bool {
        let furthest: Progress = self.full.first().map(|one| one.progress()).unwrap_or_default();
        let newest_ms = self.newest.and_then(|newest| newest.finished_ms);
        let changed_ms = checkpoint.finished_ms.max(checkpoint.changed_ms);
        let later = match (changed_ms, newest_ms) {
            (Some(changed), Some(newest)) => changed > newest,
            _ => true,
        };
        later || checkpoint.step > furthest.0
    }

    fn by_rule(&self, checkpoint: &Checkpoint) -> Option<Reason> {
        let keep = self.situation.keep;
        if keep.is_all() {
            return Some(Reason::KeepsAll);
        }
        // The script itself replaces files such as `best.pth`, and no rule counts them.
        if checkpoint.model_only && step_of_name(file_name(&checkpoint.path)).is_none() {
            return Some(Reason::NoStep);
        }
        if keep.best && self.best.is_some_and(|best| best.path == checkpoint.path) {
            return Some(Reason::Best);
        }
        if let Some(every) = keep.every.filter(|every| *every > 0)
            && checkpoint.step.is_some_and(|step| step.is_multiple_of(every))
        {
            return Some(Reason::Every(every));
        }
        let last = usize::try_from(keep.last.unwrap_or(0)).unwrap_or(usize::MAX);
        let kept = &self.full[..last.min(self.full.len())];
        if kept.iter().any(|one| one.path == checkpoint.path) {
            return Some(Reason::OneOfLast(keep.last.unwrap_or(0)));
        }
        let between = checkpoint.model_only
            && kept
                .last()
                .is_some_and(|oldest| checkpoint.progress() > oldest.progress());
        between.then_some(Reason::ModelOnlyBetweenKept)
    }

    fn kept_while_incomplete(&self, checkpoint: &Checkpoint) -> Option<Reason> {
        if checkpoint.writing {
            return Some(Reason::Writing);
        }
        let all = self.situation.keep.is_all() && !self.situation.by_hand;
        all.then_some(Reason::KeepsAll)
    }

    fn removal_reason(&self, checkpoint: &Checkpoint) -> Reason {
        match self.situation.keep.last {
            _ if !checkpoint.complete => Reason::Incomplete(checkpoint.problem.clone()),
            _ if checkpoint.model_only => Reason::OldModelOnly,
            Some(last) => Reason::OlderThanLast(last),
            None => Reason::NoRule,
        }
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn not_proven(checkpoint: &Checkpoint) -> Reason {
    let mut files: Vec<String> = Vec::new();
    for name in checkpoint.seen.values().flat_map(|view| &view.unproven) {
        if files.len() < UNPROVEN_MAX && !files.contains(name) {
            files.push(name.clone());
        }
    }
    Reason::NotProven(files)
}

/// Returns true if the path is below the folder, by whole names and without `..`.
fn is_inside(path: &str, folder: &str) -> bool {
    let below = path
        .strip_prefix(folder.trim_end_matches('/'))
        .and_then(|rest| rest.strip_prefix('/'));
    below.is_some_and(|rest| !rest.is_empty() && rest.split('/').all(|name| !matches!(name, "" | "." | "..")))
}

fn keep_linked(checkpoints: &[Checkpoint], verdicts: &mut [Verdict]) {
    loop {
        let kept = checkpoints
            .iter()
            .zip(verdicts.iter())
            .filter(|(_, verdict)| !verdict.is_removed());
        let needed: BTreeSet<&String> = kept.flat_map(|(checkpoint, _)| &checkpoint.needs).collect();
        let mut changed = false;
        for verdict in verdicts
            .iter_mut()
            .filter(|verdict| verdict.is_removed() && needed.contains(&verdict.path))
        {
            verdict.reason = Reason::Needed;
            changed = true;
        }
        if !changed {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
