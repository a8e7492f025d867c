//! `GET /api/diagnoses/{id}`: one diagnosis with everything that is known around it.

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

/// Which diagnoses: `GET /api/diagnoses?state=`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DiagnosisState {
    /// Those that fire now, worst and oldest first.
    #[default]
    Firing,
    /// Those that have ended, the latest first.
    Resolved,
    /// Those that fire, then those that have ended.
    All,
}

/// One diagnosis with everything that is known around it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DiagnosisView {
    /// The diagnosis.
    pub diagnosis: Diagnosis,
    /// Why it is believed to be so: the cause, then each witness, a sentence each.
    #[serde(default)]
    pub why: Vec<String>,
    /// What to look at, as queries over time. Their values at the moment when it fired are `evidence` of the diagnosis.
    #[serde(default)]
    pub charts: Vec<EvidenceChart>,
    /// What happened to its run and node in the hour before, the newest first.
    #[serde(default)]
    pub changed_before: Vec<ChangeBefore>,
    /// Diagnoses of the same rule in the 30 days before, the newest first.
    #[serde(default)]
    pub similar: Vec<SimilarDiagnosis>,
    /// What can be done about it now, the likeliest first.
    #[serde(default)]
    pub actions: Vec<Action>,
    /// What people did about it, oldest first.
    #[serde(default)]
    pub timeline: Vec<TimelineEntry>,
}

/// A query over the time of a diagnosis and three times as much around it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EvidenceChart {
    /// What is measured, in words.
    pub title: String,
    /// The query, for `/api/v1/query_range`. Its series are the culprit's and those of its peers.
    pub query: String,
    /// Where the chart begins.
    pub start_ms: TimestampMs,
    /// Where it ends.
    pub end_ms: TimestampMs,
    /// Time between two values.
    pub step_ms: i64,
    /// Which of the series the query gave when it fired are the culprit's own; the others are its peers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub culprit: Vec<Labels>,
    /// The value beyond which the rule fires (the rule's annotation `threshold_NAME`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<f64>,
}

/// Something that happened before a diagnosis and may have caused it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ChangeBefore {
    /// When.
    pub at_ms: TimestampMs,
    /// A word for programs: the kind of the event, or the action as in the audit log.
    pub kind: String,
    /// Who did it: the id of a token. Absent for events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub who: Option<String>,
    /// How bad, of events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<Severity>,
    /// The node, of events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// A sentence.
    pub text: String,
}

/// An earlier diagnosis of the same rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SimilarDiagnosis {
    /// Its id.
    pub id: String,
    /// What was wrong.
    pub summary: String,
    /// Its run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The attempt of that run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptNo>,
    /// When it began to fire.
    pub fired_ms: TimestampMs,
    /// When it ended; absent while it fires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved_ms: Option<TimestampMs>,
    /// It was a false alarm, as a person said.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not_a_problem: bool,
    /// What was done about it, in a sentence: the last action, else the last note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub helped: Option<String>,
}

/// What a person did about a diagnosis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimelineEntry {
    /// When.
    pub at_ms: TimestampMs,
    /// The id of the token.
    pub who: String,
    /// `acknowledged`, `released`, `note`, `not_a_problem`, `silenced`, `acted`.
    pub kind: String,
    /// What was written, or the title of an action; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Until when, of a silence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<TimestampMs>,
    /// The run that an action was done to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The attempt that an action made or changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptNo>,
    /// Figures before and after an action, and whether it was worth it, once steps of both sides tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
}

/// `POST /api/diagnoses/{id}/act`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ActOnDiagnosis {
    /// The id of an action that the diagnosis lists.
    pub action: String,
    /// Only say what it would cost.
    #[serde(default)]
    pub dry_run: bool,
}

/// What was done, or would be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ActAnswer {
    /// The action as it is possible now.
    pub action: Action,
    /// Whether it was carried out.
    pub done: bool,
    /// The attempt that it makes or changes, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptNo>,
    /// What each rank answered, of a trace.
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
