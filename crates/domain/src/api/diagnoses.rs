//! `GET /api/diagnoses/{id}`: one diagnosis with all related information.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::alerts::Diagnosis;
use crate::api::inspect::RankValue;
use crate::event::Severity;
use crate::ident::AttemptNo;
use crate::incident::action::Action;
use crate::incident::{Entry, EntryKind};
use crate::run::knob::Verdict;
use crate::series::Labels;
use crate::time::TimestampMs;

/// Filter of `GET /api/diagnoses?state=`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DiagnosisState {
    /// Firing diagnoses, the most severe first, then the oldest first.
    #[default]
    Firing,
    /// Resolved diagnoses, the latest first.
    Resolved,
    /// Firing diagnoses, then resolved ones.
    All,
}

/// One diagnosis with all related information.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DiagnosisView {
    /// The diagnosis.
    pub diagnosis: Diagnosis,
    /// Why Lockstep concludes this: the cause, then one sentence per witness.
    #[serde(default)]
    pub why: Vec<String>,
    /// Charts of the evidence queries over time. `evidence` of the diagnosis contains the values at the time it fired.
    #[serde(default)]
    pub charts: Vec<EvidenceChart>,
    /// Events and actions on its run and node in the hour before: changes first, then observations, each newest first. The diagnosis itself
    /// and routine states of the run are left out.
    #[serde(default)]
    pub changed_before: Vec<ChangeBefore>,
    /// Diagnoses of the same rule in the 30 days before, newest first.
    #[serde(default)]
    pub similar: Vec<SimilarDiagnosis>,
    /// Actions that are possible now, the most likely first.
    #[serde(default)]
    pub actions: Vec<Action>,
    /// What people did about the diagnosis, oldest first.
    #[serde(default)]
    pub timeline: Vec<TimelineEntry>,
}

/// An evidence query over the duration of a diagnosis, and three times that duration before and after it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EvidenceChart {
    /// What is measured, in words.
    pub title: String,
    /// Query for `/api/v1/query_range`. Its series are those of the culprit and of its peers.
    pub query: String,
    /// Start of the chart.
    pub start_ms: TimestampMs,
    /// End of the chart.
    pub end_ms: TimestampMs,
    /// Time between two values.
    pub step_ms: i64,
    /// Series of the culprit, among those that the query returned when the diagnosis fired. The others belong to its peers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub culprit: Vec<Labels>,
    /// Value beyond which the rule fires (the rule's annotation `threshold_NAME`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<f64>,
}

/// An event or action before a diagnosis that may have caused it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ChangeBefore {
    /// Time of the event or action.
    pub at_ms: TimestampMs,
    /// Identifier for programs: the kind of the event, or the action as in the audit log.
    pub kind: String,
    /// Id of the token that did the action. Absent for events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub who: Option<String>,
    /// Severity of the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<Severity>,
    /// Node of the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// One sentence for people.
    pub text: String,
}

/// An earlier diagnosis of the same rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SimilarDiagnosis {
    /// Id of the diagnosis.
    pub id: String,
    /// What was wrong, in one sentence.
    pub summary: String,
    /// Run of the diagnosis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Attempt of that run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptNo>,
    /// When it began to fire.
    pub fired_ms: TimestampMs,
    /// When it ended; absent while it fires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved_ms: Option<TimestampMs>,
    /// True if a user marked it as a false alarm.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not_a_problem: bool,
    /// What was done about it, in one sentence: the last action, or else the last note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub helped: Option<String>,
}

/// What a user did about a diagnosis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimelineEntry {
    /// When the user did it.
    pub at_ms: TimestampMs,
    /// Id of the user's token.
    pub who: String,
    /// `acknowledged`, `released`, `note`, `not_a_problem`, `silenced` or `acted`.
    pub kind: String,
    /// Text of the note, or title of the action; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// End of the silence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<TimestampMs>,
    /// Run on which the action was carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Attempt that the action made or changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptNo>,
    /// Verdict on the action, with measurements before and after it. Absent until it can be computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
}

/// Request body of `POST /api/diagnoses/{id}/act`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ActOnDiagnosis {
    /// Id of an action that the diagnosis lists.
    pub action: String,
    /// True to report the cost without carrying the action out.
    #[serde(default)]
    pub dry_run: bool,
    /// Paths of the checkpoints that the action removes: exactly those that it listed in `removes`. If it would remove others now, nothing
    /// is removed, and the response is 409 with the new list.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub removes: BTreeSet<String>,
}

/// Response to `POST /api/diagnoses/{id}/act`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ActAnswer {
    /// The action as it is possible now.
    pub action: Action,
    /// True if the action was carried out.
    pub done: bool,
    /// Attempt that the action makes or changes, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptNo>,
    /// Response of each rank, for a trace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub traced: Vec<RankValue>,
}

impl From<&Entry> for TimelineEntry {
    fn from(entry: &Entry) -> Self {
        let until_ms = match &entry.what {
            EntryKind::Silenced { until_ms, .. } => Some(*until_ms),
            _ => None,
        };
        let (run, attempt) = match &entry.what {
            EntryKind::Acted { run, attempt, .. } => (Some(run.clone()), *attempt),
            _ => (None, None),
        };
        Self {
            at_ms: entry.at_ms,
            who: entry.who.clone(),
            kind: entry.what.word().to_owned(),
            note: entry.what.note().to_owned(),
            until_ms,
            run,
            attempt,
            verdict: None,
        }
    }
}
