//! Changes that the ranks of a running attempt make in place, without a new attempt; and the ids of all changes of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ident::{AttemptNo, Rank};
use crate::run::knob::{Change, KnobAnswer};
use crate::time::TimestampMs;

/// Maximum number of changes in place of one attempt. The next change makes a new attempt.
pub const IN_PLACE_MAX: usize = 32;

/// Identifies a change of a run: the one that an attempt was made for, or one made while it ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct ChangeId {
    /// The attempt.
    pub attempt: AttemptNo,
    /// Number of the change in place, from 1; 0 for the change that the attempt was made for.
    #[serde(default)]
    pub live: u32,
}

/// A knob of a running attempt that each of its ranks sets for itself at the end of its next step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct InPlaceChange {
    /// Number of the change within the attempt, from 1.
    pub no: u32,
    /// When it was requested.
    pub asked_ms: TimestampMs,
    /// The highest step that was known then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// The change.
    pub change: Change,
    /// How far it has come.
    pub state: InPlaceState,
    /// When every rank had applied it, or when it became clear that not every rank will.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settled_ms: Option<TimestampMs>,
    /// The ranks that have applied it.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub ranks: BTreeSet<Rank>,
    /// The different answers of the ranks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<KnobAnswer>,
    /// Why it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Numbers of the actions that send it to the nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub orders: Vec<u32>,
    /// True if it was refused and the old value was sent to the nodes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub put_back: bool,
}

/// How far a change in place has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InPlaceState {
    /// Some ranks have not answered yet.
    #[default]
    Asked,
    /// Every rank has applied it.
    Taken,
    /// A rank or a node cannot apply it: the old value stays.
    Refused,
    /// The attempt ended, or another change followed, before every rank had answered. The next attempt has the new value.
    Left,
}

impl InPlaceChange {
    /// Returns true unless the change was refused: a refused change has changed nothing.
    #[must_use]
    pub fn is_made(&self) -> bool {
        self.state != InPlaceState::Refused
    }

    /// Returns how far the change has come, as text for users.
    #[must_use]
    pub fn words(&self) -> String {
        let count = self.ranks.len();
        let ranks = match count {
            0 => "no rank".to_owned(),
            1 => "1 rank".to_owned(),
            count => format!("{count} ranks"),
        };
        match self.state {
            InPlaceState::Asked => {
                format!("{ranks} so far; each rank applies it at the end of its next step")
            }
            InPlaceState::Taken => format!("in all ranks ({count})"),
            InPlaceState::Refused => format!(
                "not applied, the old value stays: {}; use `--restart` to apply it in a new attempt",
                self.refused.as_deref().unwrap_or("no reason is known")
            ),
            InPlaceState::Left => {
                format!("in {ranks} before the attempt ended or another change came; the next attempt has it")
            }
        }
    }
}

impl Change {
    /// Returns the id of the change that this one reverts.
    #[must_use]
    pub fn reverted_change(&self) -> Option<ChangeId> {
        let attempt = self.reverts?;
        let live = self.reverts_live.unwrap_or(0);
        Some(ChangeId { attempt, live })
    }
}

impl ChangeId {
    /// Returns the id of the change that an attempt was made for.
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

/// Applies a change to a set of knob values.
pub fn apply_change(knobs: &mut BTreeMap<String, String>, change: &Change) {
    for diff in &change.set {
        match &diff.new {
            Some(new) => knobs.insert(diff.knob.clone(), new.clone()),
            None => knobs.remove(&diff.knob),
        };
    }
}

/// Undoes a change in a set of knob values.
pub fn revert_change(knobs: &mut BTreeMap<String, String>, change: &Change) {
    for diff in &change.set {
        match &diff.old {
            Some(old) => knobs.insert(diff.knob.clone(), old.clone()),
            None => knobs.remove(&diff.knob),
        };
    }
}
