//! `/api/silences`, and `POST /api/diagnoses/{id}/acknowledge`, `note`, `silence`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::incident::{Silence, SilenceMatcher, SilenceState};
use crate::time::TimestampMs;

/// Request body of `POST /api/diagnoses/{id}/acknowledge`: acknowledge a diagnosis, or release it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AcknowledgeDiagnosis {
    /// Why, or what happens next.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// True to release the diagnosis instead.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub release: bool,
}

/// Request body of `POST /api/diagnoses/{id}/note`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NoteOnDiagnosis {
    /// Text of the note; may be empty if `not_a_problem` is true.
    pub note: String,
    /// True to mark the diagnosis as a false alarm.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub not_a_problem: bool,
}

/// Request body of `POST /api/diagnoses/{id}/silence` and `POST /api/silences`. `matchers` has a default only in the former.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CreateSilence {
    /// Matchers for the labels of an alert, including `alertname`. All must match. Default for a diagnosis: all its labels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub matchers: Vec<SilenceMatcher>,
    /// When the silence begins. Default: now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starts_ms: Option<TimestampMs>,
    /// When the silence ends. Either this or `for_s` is required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends_ms: Option<TimestampMs>,
    /// Duration in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_s: Option<u32>,
    /// Why the silence is needed.
    pub comment: String,
}

/// A silence: `GET /api/silences`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SilenceView {
    /// Id of the silence.
    pub id: String,
    /// State of the silence.
    pub state: SilenceState,
    /// Matchers for the labels of an alert. All must match.
    pub matchers: Vec<SilenceMatcher>,
    /// When the silence begins.
    pub starts_ms: TimestampMs,
    /// When the silence ends.
    pub ends_ms: TimestampMs,
    /// When the silence was created.
    pub created_ms: TimestampMs,
    /// Id of the token that created it.
    pub created_by: String,
    /// Why the silence is needed.
    pub comment: String,
    /// Ids of the firing diagnoses that the silence matches now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matches_now: Vec<String>,
}

impl SilenceView {
    /// Returns the view of a silence at the time `now_ms`.
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
