//! What is kept and what is removed: a pure decision over the list of a run's checkpoints. Automatic retention, a person's prune, its dry
//! run and the run's page all take their list from [`decide`].
//!
//! ```text
//! never removed: outside of the folder · pinned, by any run · gone on from by a run that has not ended · the last complete full one (by
//!                step and by time) · newer than that one · still in writing · cannot be judged · what a kept one links into
//!                · what is not proven to be this run's
//! kept by rule:  the last k full ones · every n steps · the best · model-only ones between full ones that are kept, or without a step in
//!                their name
//! removed:       everything else, incomplete ones included
//! ```
//! Without a complete full checkpoint of this run nothing is removed at all.

mod reason;

pub use reason::Reason;

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::checkpoint::{Checkpoint, UNPROVEN_MAX, resume_point, step_of_name};
use crate::time::TimestampMs;

/// What a run keeps, as its spec says: a number for the last k, or `{ last = 3, every = 1000, best = true }`. Empty keeps all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "Written")]
pub struct Keep {
    /// The last so many full ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<u32>,
    /// Those whose step is a multiple of this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<u64>,
    /// The one with the lowest validation loss.
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
    /// Whether nothing is ever removed.
    #[must_use]
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }
}

/// What a decision is made from.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    /// All that is known.
    pub checkpoints: &'a [Checkpoint],
    /// Paths that a person wants kept.
    pub pinned: &'a BTreeSet<String>,
    /// Paths that other runs have pinned.
    pub pinned_by_others: &'a BTreeSet<String>,
    /// Paths that attempts of a run that has not ended went on from.
    pub in_use: &'a BTreeSet<String>,
    /// The folders, as the nodes name them, that anything may be removed from.
    pub folders: &'a BTreeSet<String>,
    /// The rule.
    pub keep: Keep,
    /// A person asks: without a rule the incomplete ones go.
    pub by_hand: bool,
}

/// One checkpoint and what becomes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Its path.
    pub path: String,
    /// Why it is kept or removed.
    pub reason: Reason,
}

impl Verdict {
    /// Whether it is removed.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.reason.removes()
    }
}

/// Decides for every checkpoint, in their order.
#[must_use]
pub fn decide(situation: &Situation<'_>) -> Vec<Verdict> {
    let decision = Decision::new(situation);
    let verdicts = situation
        .checkpoints
        .iter()
        .map(|checkpoint| decision.verdict(checkpoint));
    let mut verdicts: Vec<Verdict> = verdicts.collect();
    keep_what_is_needed(situation.checkpoints, &mut verdicts);
    verdicts
}

struct Decision<'a> {
    situation: &'a Situation<'a>,
    /// Full complete ones, furthest first.
    full: Vec<&'a Checkpoint>,
    /// Where training would go on: of two that are equally far, the same one as there.
    anchor: Option<String>,
    /// The last by time; most often also the furthest.
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
                self.may_be_whole_yet(checkpoint)
            }
        });
        let unproven = || (!checkpoint.is_proven()).then(|| not_proven(checkpoint));
        Verdict {
            path: checkpoint.path.clone(),
            reason: kept
                .or_else(unproven)
                .unwrap_or_else(|| self.why_it_goes(checkpoint)),
        }
    }

    /// What no rule can remove.
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
        } else if self.is_newer_than_the_last(checkpoint) {
            Reason::NewerThanLastComplete
        } else {
            return None;
        };
        Some(reason)
    }

    /// By time or by step; of unknown age counts as newer.
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
        // `best.pth` and the like: the script replaces it by itself, and no rule counts it.
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

    fn may_be_whole_yet(&self, checkpoint: &Checkpoint) -> Option<Reason> {
        if checkpoint.writing {
            return Some(Reason::Writing);
        }
        let all = self.situation.keep.is_all() && !self.situation.by_hand;
        all.then_some(Reason::KeepsAll)
    }

    fn why_it_goes(&self, checkpoint: &Checkpoint) -> Reason {
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
    for name in checkpoint.seen.values().flat_map(|sight| &sight.unproven) {
        if files.len() < UNPROVEN_MAX && !files.contains(name) {
            files.push(name.clone());
        }
    }
    Reason::NotProven(files)
}

/// Below the folder, by whole names, without any step upwards.
fn is_inside(path: &str, folder: &str) -> bool {
    let below = path
        .strip_prefix(folder.trim_end_matches('/'))
        .and_then(|rest| rest.strip_prefix('/'));
    below.is_some_and(|rest| !rest.is_empty() && rest.split('/').all(|name| !matches!(name, "" | "." | "..")))
}

fn keep_what_is_needed(checkpoints: &[Checkpoint], verdicts: &mut [Verdict]) {
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
