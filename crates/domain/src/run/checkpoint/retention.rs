//! What is kept and what goes: a pure decision over the list of a run's checkpoints.
//!
//! ```text
//! never goes: the last complete full one (by step and by time) · pinned · gone on from by a run that has not ended
//!             · newer than the last complete one · still in writing · cannot be judged · outside of the folder
//!             · what one that stays links into
//! stays by rule: the last k full ones · every n steps · the best · model-only ones between full ones that stay
//! goes: everything else, incomplete ones included
//! ```
//! Without a complete full checkpoint nothing goes at all.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::run::checkpoint::{Checkpoint, resume_point};
use crate::time::TimestampMs;

/// What a run keeps, as its spec says: a number for the last k, or `{ last = 3, every = 1000, best = true }`. Empty keeps all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Which one.
    pub path: String,
    /// Whether it goes.
    pub removed: bool,
    /// Why, in words.
    pub reason: String,
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
            .filter(|one| one.complete && one.val_loss.is_some());
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
        Verdict {
            path: checkpoint.path.clone(),
            removed: kept.is_none(),
            reason: kept.unwrap_or_else(|| self.why_it_goes(checkpoint)),
        }
    }

    /// What no rule can remove.
    fn protected(&self, checkpoint: &Checkpoint) -> Option<String> {
        let Situation {
            pinned,
            in_use,
            folders,
            ..
        } = self.situation;
        let is = |other: Option<&Checkpoint>| other.is_some_and(|other| other.path == checkpoint.path);
        let reason = if !folders.iter().any(|folder| is_inside(&checkpoint.path, folder)) {
            "it is outside of the run's checkpoint folder"
        } else if pinned.contains(&checkpoint.path) {
            "pinned"
        } else if in_use.contains(&checkpoint.path) {
            "the run goes on from it"
        } else if self.anchor.as_ref() == Some(&checkpoint.path) || is(self.newest) {
            "the last complete one"
        } else if self.full.is_empty() {
            "there is no complete full checkpoint"
        } else if checkpoint.uncertain {
            "it cannot be told what is in it"
        } else if checkpoint.doubt.is_some() {
            "an attempt could not go on from it: it stays to be looked at"
        } else if self.is_newer_than_the_last(checkpoint) {
            "newer than the last complete one"
        } else {
            return None;
        };
        Some(reason.into())
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

    fn by_rule(&self, checkpoint: &Checkpoint) -> Option<String> {
        let keep = self.situation.keep;
        if keep.is_all() {
            return Some("the run keeps all".into());
        }
        if keep.best && self.best.is_some_and(|best| best.path == checkpoint.path) {
            return Some("the best by validation loss".into());
        }
        if let Some(every) = keep.every.filter(|every| *every > 0)
            && checkpoint.step.is_some_and(|step| step.is_multiple_of(every))
        {
            return Some(format!("every {every} steps"));
        }
        let last = usize::try_from(keep.last.unwrap_or(0)).unwrap_or(usize::MAX);
        let kept = &self.full[..last.min(self.full.len())];
        if kept.iter().any(|one| one.path == checkpoint.path) {
            return Some(format!("one of the last {last}"));
        }
        let between = checkpoint.model_only
            && kept
                .last()
                .is_some_and(|oldest| checkpoint.progress() > oldest.progress());
        between.then(|| "model-only, between full ones that stay".into())
    }

    fn may_be_whole_yet(&self, checkpoint: &Checkpoint) -> Option<String> {
        if checkpoint.writing {
            return Some("it may still be in writing".into());
        }
        let all = self.situation.keep.is_all() && !self.situation.by_hand;
        all.then(|| "the run keeps all".into())
    }

    fn why_it_goes(&self, checkpoint: &Checkpoint) -> String {
        match (&checkpoint.problem, checkpoint.complete) {
            (Some(problem), false) => format!("incomplete, and older than a complete one: {problem}"),
            (None, false) => "incomplete, and older than a complete one".into(),
            _ if checkpoint.model_only => "model-only, and older than the full ones that stay".into(),
            _ => match self.situation.keep.last {
                Some(last) => format!("older than the last {last}"),
                None => "no rule keeps it".into(),
            },
        }
    }
}

/// Below the folder, by whole names, without any step upwards.
fn is_inside(path: &str, folder: &str) -> bool {
    let below = path
        .strip_prefix(folder.trim_end_matches('/'))
        .and_then(|rest| rest.strip_prefix('/'));
    below.is_some_and(|rest| !rest.is_empty() && rest.split('/').all(|name| !matches!(name, "" | "." | "..")))
}

fn keep_what_is_needed(checkpoints: &[Checkpoint], verdicts: &mut [Verdict]) {
    let kept = |verdicts: &[Verdict]| -> BTreeSet<String> {
        let staying = checkpoints
            .iter()
            .zip(verdicts)
            .filter(|(_, verdict)| !verdict.removed);
        staying
            .flat_map(|(checkpoint, _)| checkpoint.needs.iter().cloned())
            .collect()
    };
    loop {
        let needed = kept(verdicts);
        let mut changed = false;
        for verdict in verdicts
            .iter_mut()
            .filter(|verdict| verdict.removed && needed.contains(&verdict.path))
        {
            verdict.removed = false;
            verdict.reason = "files of one that stays are in it".into();
            changed = true;
        }
        if !changed {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
