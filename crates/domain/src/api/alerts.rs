//! `/api/rules`, `/api/alerts`, `/api/diagnoses`, `/api/webhooks`, `/api/events`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::event::Severity;
use crate::ident::AttemptNo;
use crate::incident::{Confidence, Handling, NamedCulprit};
use crate::series::Labels;
use crate::time::TimestampMs;

/// Where an alert stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AlertState {
    /// The condition holds, but not yet for long enough.
    Pending,
    /// It has held for the rule's `for`.
    Firing,
    /// It held, and no longer does.
    Resolved,
}

/// One alert: a rule and a label set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AlertView {
    /// Stable over its life: hash of rule and labels.
    pub fingerprint: String,
    /// The rule's name.
    pub rule: String,
    /// Where it stands.
    pub state: AlertState,
    /// How bad, from the label `severity`.
    pub severity: Severity,
    /// The alert's labels, `alertname` among them.
    pub labels: Labels,
    /// Annotations with templates expanded.
    pub annotations: Labels,
    /// The value of the rule's expression when last seen (first, when resolved). NaN and infinities as Prometheus writes them.
    pub value: String,
    /// When the condition was first seen.
    pub active_ms: TimestampMs,
    /// When it began to fire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fired_ms: Option<TimestampMs>,
    /// When it was resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved_ms: Option<TimestampMs>,
    /// Values of the rule's evidence queries when it fired.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<Evidence>,
}

/// What an alert says of the rank its labels name: the rule's annotation `rank_state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankState {
    /// The others wait for it.
    Late,
    /// It does nothing.
    Stuck,
}

impl AlertView {
    /// What it says of its rank, if its rule says anything.
    #[must_use]
    pub fn rank_state(&self) -> Option<RankState> {
        match self.annotations.get("rank_state")? {
            "late" => Some(RankState::Late),
            "stuck" => Some(RankState::Stuck),
            _ => None,
        }
    }

    /// Whether the page of its run lists the same as notes (the rule's annotation `shown_as`).
    #[must_use]
    pub fn is_shown_as_notes(&self) -> bool {
        self.annotations.get("shown_as") == Some("notes")
    }
}

/// One measured fact behind a diagnosis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// What was measured, in words.
    pub title: String,
    /// The query that measured it; empty for lines of a log.
    pub query: String,
    /// What it gave, one a series.
    pub values: Vec<EvidenceValue>,
    /// Lines of a log, in place of values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<String>,
}

/// One value of an evidence query.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EvidenceValue {
    /// The series.
    pub labels: Labels,
    /// Its value, NaN and infinities as Prometheus writes them.
    pub value: String,
}

/// An alert that fires or has fired, read as a diagnosis: `GET /api/diagnoses`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnosis {
    /// The alert behind it.
    #[serde(flatten)]
    pub alert: AlertView,
    /// One sentence: what is wrong (annotation `summary`).
    pub summary: String,
    /// Why it is believed to be so (annotation `cause`).
    pub cause: String,
    /// What to do (annotation `advice`).
    pub advice: String,
    /// Who or what: node, GPU, run, rank, from the labels.
    pub culprit: String,
    /// Its id: the same as long as it is kept, also after it has ended.
    #[serde(default)]
    pub id: String,
    /// The culprit by type.
    #[serde(default)]
    pub who: NamedCulprit,
    /// The run it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The attempt of that run when it fired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptNo>,
    /// How sure it is.
    #[serde(default)]
    pub confidence: Confidence,
    /// What people did about it.
    #[serde(default)]
    pub handling: Handling,
}

/// What a rule makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RuleKind {
    /// Alerts.
    #[default]
    Alerting,
    /// Series.
    Recording,
}

/// One rule: `GET /api/rules`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RuleView {
    /// The file it was read from.
    #[serde(default)]
    pub file: String,
    /// The group it is in.
    pub group: String,
    /// What it makes.
    #[serde(default)]
    pub kind: RuleKind,
    /// Its name.
    pub name: String,
    /// Its expression.
    pub expr: String,
    /// How long the condition must hold.
    pub for_ms: i64,
    /// How long it goes on firing after the condition ended.
    #[serde(default)]
    pub keep_firing_ms: i64,
    /// Labels it adds.
    pub labels: Labels,
    /// Annotations as written.
    pub annotations: Labels,
    /// Alerts it has now.
    pub alerts: Vec<AlertView>,
    /// When it was last evaluated, and how long that took.
    pub evaluated_ms: TimestampMs,
    /// Seconds of the last evaluation.
    pub duration_s: f64,
    /// What went wrong in the last evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A receiver of alerts: `GET /api/webhooks`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WebhookView {
    /// Its id.
    pub id: String,
    /// Where it is posted to: scheme, host and port only, since the rest of such addresses is often a secret.
    pub url: String,
    /// Deliveries waiting.
    pub pending: u64,
    /// What went wrong last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// When it last worked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_ms: Option<TimestampMs>,
}

/// `POST /api/webhooks`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct CreateWebhook {
    /// `http` or `https` URL.
    pub url: String,
    /// `whsec_…` secret of Standard Webhooks; made and shown once when empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// The one time a webhook's secret is shown.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct NewWebhook {
    /// Its id.
    pub id: String,
    /// The signing secret.
    pub secret: String,
}
