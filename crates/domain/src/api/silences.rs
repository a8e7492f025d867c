//! `/api/silences`, and `POST /api/diagnoses/{id}/acknowledge`, `note`, `silence`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::incident::{Silence, SilenceMatcher, SilenceState};
use crate::time::TimestampMs;

/// `POST /api/diagnoses/{id}/acknowledge`: take a diagnosis on, or give it back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AcknowledgeDiagnosis {
    /// Why, or what is done next.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Give it back instead.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub release: bool,
}

/// `POST /api/diagnoses/{id}/note`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NoteOnDiagnosis {
    /// What to write down; may be empty with `not_a_problem`.
    pub note: String,
    /// It is a false alarm.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub not_a_problem: bool,
}

/// `POST /api/diagnoses/{id}/silence`, and without the default for `matchers` `POST /api/silences`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CreateSilence {
    /// All must match the labels of an alert, `alertname` among them. Of a diagnosis: all its labels when left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub matchers: Vec<SilenceMatcher>,
    /// When it begins; now when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starts_ms: Option<TimestampMs>,
    /// When it ends. Either this or `for_s` is required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends_ms: Option<TimestampMs>,
    /// How long it lasts, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_s: Option<u32>,
    /// Why.
    pub comment: String,
}

/// A silence: `GET /api/silences`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SilenceView {
    /// Its id.
    pub id: String,
    /// Where it stands.
    pub state: SilenceState,
    /// All must match the labels of an alert.
    pub matchers: Vec<SilenceMatcher>,
    /// When it begins.
    pub starts_ms: TimestampMs,
    /// When it ends.
    pub ends_ms: TimestampMs,
    /// When it was made.
    pub created_ms: TimestampMs,
    /// Who made it: the id of a token.
    pub created_by: String,
    /// Why.
    pub comment: String,
    /// Ids of the diagnoses that fire now and that it matches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matches_now: Vec<String>,
}

impl SilenceView {
    /// A silence as it stands now.
    #[must_use]
    pub fn of(silence: &Silence, matches_now: Vec<String>, now_ms: TimestampMs) -> Self {
        Self {
            id: silence.id.clone(),
            state: silence.state(now_ms),
            matchers: silence.matchers.clone(),
            starts_ms: silence.starts_ms,
            ends_ms: silence.ends_ms,
            created_ms: silence.created_ms,
            created_by: silence.created_by.clone(),
            comment: silence.comment.clone(),
            matches_now,
        }
    }
}
