//! Changes that the ranks of a running attempt take over in place, without another attempt, and the order of all changes of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ident::{AttemptNo, Rank};
use crate::run::knob::{Change, KnobAnswer};
use crate::time::TimestampMs;

/// Changes in place that one attempt keeps; the next one is another attempt.
pub const LIVE_MAX: usize = 32;

/// A change of a run: the one an attempt was made for, or one made while it ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ChangeId {
    /// The attempt.
    pub attempt: AttemptNo,
    /// Which of its changes in place, from 1; 0 for the one it was made for.
    #[serde(default)]
    pub live: u32,
}

/// One knob of a running attempt, set by each of its ranks for itself at the end of its next step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LiveChange {
    /// Its number within the attempt, from 1.
    pub no: u32,
    /// When it was asked for.
    pub asked_ms: TimestampMs,
    /// The highest step that was known then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// What.
    pub change: Change,
    /// How far it has come.
    pub state: LiveState,
    /// When every rank had it, or it became clear that they will not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settled_ms: Option<TimestampMs>,
    /// The ranks that have it.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub ranks: BTreeSet<Rank>,
    /// What they said, each word once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<KnobAnswer>,
    /// Why it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The actions that bring it to the nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub orders: Vec<u32>,
    /// It was refused, and the nodes have been told the value before.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub put_back: bool,
}

/// How far a change in place has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LiveState {
    /// Ranks have still to answer.
    #[default]
    Asked,
    /// Every rank has it.
    Taken,
    /// A rank or a node cannot: the value before stays.
    Refused,
    /// The attempt ended, or another change came, before every rank had answered. The next attempt has it.
    Left,
}

impl LiveChange {
    /// Whether it counts: what was refused has changed nothing.
    #[must_use]
    pub fn is_made(&self) -> bool {
        self.state != LiveState::Refused
    }

    /// How far it has come, for people.
    #[must_use]
    pub fn words(&self) -> String {
        let count = self.ranks.len();
        let ranks = match count {
            0 => "no rank".to_owned(),
            1 => "1 rank".to_owned(),
            count => format!("{count} ranks"),
        };
        match self.state {
            LiveState::Asked => format!("{ranks} so far; each takes it over at the end of its next step"),
            LiveState::Taken => format!("in all ranks ({count})"),
            LiveState::Refused => format!(
                "not turned, the value before stays: {}; `--restart` makes another attempt with it",
                self.refused.as_deref().unwrap_or("no reason is known")
            ),
            LiveState::Left => {
                format!("in {ranks} before the attempt ended or another change came; the next attempt has it")
            }
        }
    }
}

impl Change {
    /// The change that this takes back.
    #[must_use]
    pub fn taken_back(&self) -> Option<ChangeId> {
        let attempt = self.reverts?;
        let live = self.reverts_live.unwrap_or(0);
        Some(ChangeId { attempt, live })
    }
}

impl ChangeId {
    /// The one that an attempt was made for.
    #[must_use]
    pub fn of(attempt: AttemptNo) -> Self {
        Self { attempt, live: 0 }
    }
}

impl fmt::Display for ChangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.live {
            0 => write!(f, "attempt {}", self.attempt),
            live => write!(f, "attempt {} in place, its change {live}", self.attempt),
        }
    }
}

/// Sets or clears what a change sets.
pub fn turn(knobs: &mut BTreeMap<String, String>, change: &Change) {
    for diff in &change.set {
        match &diff.new {
            Some(new) => knobs.insert(diff.knob.clone(), new.clone()),
            None => knobs.remove(&diff.knob),
        };
    }
}

/// The other way round.
pub fn turn_back(knobs: &mut BTreeMap<String, String>, change: &Change) {
    for diff in &change.set {
        match &diff.old {
            Some(old) => knobs.insert(diff.knob.clone(), old.clone()),
            None => knobs.remove(&diff.knob),
        };
    }
}
