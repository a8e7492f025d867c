//! What an attempt changed against the one before it, kept with the attempt so that it can be taken back.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ident::{AttemptNo, Rank};
use crate::run::knob::Verdict;

/// Answers kept of an attempt: each knob's, and as many different reasons why it failed as a person would read.
pub const ANSWERS_MAX: usize = 32;

/// A change of knobs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Change {
    /// What was set, by name.
    pub set: Vec<KnobDiff>,
    /// The attempt whose change this takes back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reverts: Option<AttemptNo>,
    /// Which of that attempt's changes in place it takes back; none for the one that attempt was made for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reverts_live: Option<u32>,
    /// It is taken back by itself when the verdict is against it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub auto_revert: bool,
    /// When it is kept, a doubled `micro_batch` is tried by itself.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub try_larger_batch: bool,
    /// Why none was tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_larger_batch: Option<String>,
    /// It is that trial, and follows from the change of this attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follows: Option<AttemptNo>,
    /// A person asked for another attempt with the same knobs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub restart: bool,
    /// Nodes that a person takes out of the run with it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<String>,
    /// Why it was made when no person asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What may be unwise about it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Whether it was worth it, once steps of both sides tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
}

/// One knob, before and after.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KnobDiff {
    /// Its name.
    pub knob: String,
    /// Its value before; none where the script has its own way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// Its value since; none where the script has its own way again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
    /// How it is turned.
    pub how: How,
}

/// How a knob is turned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "way", rename_all = "lowercase")]
pub enum How {
    /// By an argument of the script that the run or the recipe declares.
    Flag {
        /// Like `--num-workers`.
        flag: String,
    },
    /// By a variable of the script that the run declares.
    Variable {
        /// Like `NUM_WORKERS`.
        env: String,
    },
    /// By variables that libraries read.
    Environment {
        /// Like `NCCL_IB_TIMEOUT`.
        variables: Vec<String>,
    },
    /// By the probe, inside the script: what runs is not what is written.
    Injected,
}

/// A change that waits for the attempt before it to end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pending {
    /// What.
    pub change: Change,
    /// All knobs with it.
    pub knobs: BTreeMap<String, String>,
    /// Begin anew, from no checkpoint.
    #[serde(default)]
    pub from_start: bool,
}

/// What a rank said of a knob that the probe was to turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KnobAnswer {
    /// The knob.
    pub knob: String,
    /// The value it was asked for.
    pub value: String,
    /// Whether it was turned.
    pub applied: bool,
    /// What was changed, or why not.
    pub detail: String,
    /// The first rank that said so.
    pub rank: Rank,
    /// Which of the attempt's changes in place it answers; none for what the attempt began with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<u32>,
}

impl Change {
    /// `lr_scale=0.5, amp=bf16`.
    #[must_use]
    pub fn words(&self) -> String {
        if self.restart {
            return match self.without.as_slice() {
                [] => "a restart".to_owned(),
                nodes => format!("a restart without {}", nodes.join(", ")),
            };
        }
        let word = |diff: &KnobDiff| match &diff.new {
            Some(new) => format!("{}={new}", diff.knob),
            None => format!("{} as the script has it", diff.knob),
        };
        let words: Vec<String> = self.set.iter().map(word).collect();
        words.join(", ")
    }

    /// Why the attempt was made.
    #[must_use]
    pub fn cause(&self) -> &'static str {
        match (self.reverts, &self.reason) {
            (None, _) if self.follows.is_some() => "larger micro_batch tried by itself",
            (None, _) if !self.without.is_empty() => "node excluded by a person",
            (None, _) if self.restart => "restarted by a person",
            (None, _) => "knob applied",
            (Some(_), None) => "knob reverted",
            (Some(_), Some(_)) => "knob reverted by itself",
        }
    }

    /// Whether the probe changes what the script makes.
    #[must_use]
    pub fn is_injected(&self) -> bool {
        let injected = |diff: &KnobDiff| diff.how == How::Injected && diff.new.is_some();
        self.set.iter().any(injected)
    }
}

impl How {
    /// For people: `--num-workers`, `NCCL_IB_TIMEOUT`, `injected`.
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Self::Flag { flag } => flag.trim_end_matches('=').to_owned(),
            Self::Variable { env } => env.clone(),
            Self::Environment { variables } => variables.join(", "),
            Self::Injected => "injected".into(),
        }
    }
}
