//! What an attempt changed compared with the one before it. It is stored with the attempt so that it can be reverted.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ident::{AttemptNo, Rank};
use crate::run::knob::{Symptom, Verdict};

/// Maximum number of stored answers of an attempt: one per knob, and as many different failure reasons as a person would read.
pub const ANSWERS_MAX: usize = 32;

/// A change of knobs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Change {
    /// The knobs that were set.
    pub set: Vec<KnobDiff>,
    /// The attempt whose change this one reverts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reverts: Option<AttemptNo>,
    /// Number of the change in place within that attempt that this one reverts; `None` for the change that the attempt was made for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reverts_live: Option<u32>,
    /// True if the change is reverted automatically when the verdict is against it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub auto_revert: bool,
    /// True if a doubled `micro_batch` is tried automatically when the change is kept.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub try_larger_batch: bool,
    /// Why no larger batch was tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_larger_batch: Option<String>,
    /// The change is such a trial, and follows the change of this attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follows: Option<AttemptNo>,
    /// True if a person requested a new attempt with the same knobs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub restart: bool,
    /// Nodes that a person excludes from the run with this change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<String>,
    /// What it repairs, if the attempt before it failed or diverged for a known reason. The verdict is then about the repair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repairs: Option<Symptom>,
    /// Why it was made, if no person requested it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Warnings about values that may be unwise.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The verdict, once both sides have enough steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
}

/// One knob, before and after the change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KnobDiff {
    /// Name of the knob.
    pub knob: String,
    /// The value before; absent if the script's own value applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// The value after; absent if the script's own value applies again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
    /// How the knob is applied.
    pub how: How,
}

/// How a knob is applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "way", rename_all = "lowercase")]
pub enum How {
    /// Through an argument of the script that the run or the recipe declares.
    Flag {
        /// Name of the argument, for example `--num-workers`.
        flag: String,
    },
    /// Through a variable of the script that the run declares.
    Variable {
        /// Name of the variable, for example `NUM_WORKERS`.
        env: String,
    },
    /// Through variables that libraries read.
    Environment {
        /// Names of the variables, for example `NCCL_IB_TIMEOUT`.
        variables: Vec<String>,
    },
    /// By the probe, inside the script: the program that runs differs from its source.
    Injected,
}

/// A change that waits for the end of the attempt before it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pending {
    /// The change.
    pub change: Change,
    /// All knobs after the change.
    pub knobs: BTreeMap<String, String>,
    /// Start from the beginning, without a checkpoint.
    #[serde(default)]
    pub from_start: bool,
}

/// A rank's answer about a knob that its probe should apply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KnobAnswer {
    /// Name of the knob.
    pub knob: String,
    /// The requested value.
    pub value: String,
    /// True if it was applied.
    pub applied: bool,
    /// What was changed, or why it could not be.
    pub detail: String,
    /// The first rank that gave this answer.
    pub rank: Rank,
    /// Number of the change in place within the attempt; absent for knobs that the attempt started with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<u32>,
}

impl Change {
    /// Returns the change as text: `lr_scale=0.5, amp=bf16`.
    #[must_use]
    pub fn words(&self) -> String {
        if self.restart {
            return match self.without.as_slice() {
                [] => "a restart".to_owned(),
                nodes => format!("a restart without {}", nodes.join(", ")),
            };
        }
        let word = |diff: &KnobDiff| value_words(&diff.knob, diff.new.as_deref());
        let words: Vec<String> = self.set.iter().map(word).collect();
        words.join(", ")
    }

    /// Returns the values before the change, as text: `lr_scale=1`, `amp as the script has it`.
    #[must_use]
    pub fn former_values(&self) -> String {
        let word = |diff: &KnobDiff| value_words(&diff.knob, diff.old.as_deref());
        let words: Vec<String> = self.set.iter().map(word).collect();
        words.join(", ")
    }

    /// Returns the cause of the attempt that makes this change.
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

    /// Returns true if the probe changes what the script creates.
    #[must_use]
    pub fn is_injected(&self) -> bool {
        let injected = |diff: &KnobDiff| diff.how == How::Injected && diff.new.is_some();
        self.set.iter().any(injected)
    }
}

fn value_words(knob: &str, value: Option<&str>) -> String {
    match value {
        Some(value) => format!("{knob}={value}"),
        None => format!("{knob} as the script has it"),
    }
}

impl How {
    /// Returns the way as text: `--num-workers`, `NCCL_IB_TIMEOUT`, `injected`.
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
