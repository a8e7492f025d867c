//! `/api/rules`, `/api/alerts`, `/api/diagnoses`, `/api/webhooks`, `/api/events`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::event::Severity;
use crate::ident::AttemptNo;
use crate::incident::{Confidence, Handling, NamedCulprit};
use crate::series::Labels;
use crate::time::TimestampMs;

/// State of an alert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AlertState {
    /// The condition is true, but not yet for the rule's `for` duration.
    Pending,
    /// The condition has been true for the rule's `for` duration.
    Firing,
    /// The condition is no longer true.
    Resolved,
}

/// One alert: a rule and a label set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AlertView {
    /// Hash of rule and labels. Stays the same during the life of the alert.
    pub fingerprint: String,
    /// Name of the rule.
    pub rule: String,
    /// State of the alert.
    pub state: AlertState,
    /// Severity, from the label `severity`.
    pub severity: Severity,
    /// Labels of the alert, including `alertname`.
    pub labels: Labels,
    /// Annotations with expanded templates.
    pub annotations: Labels,
    /// Last value of the rule's expression for which the condition was true, also for a resolved alert. After a restart of the collector
    /// it is the value at the last change of state, until the condition is true in an evaluation. NaN and infinities are written as in
    /// Prometheus.
    pub value: String,
    /// When the condition was first true.
    pub active_ms: TimestampMs,
    /// When the alert began to fire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fired_ms: Option<TimestampMs>,
    /// When the alert was resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved_ms: Option<TimestampMs>,
    /// Results of the rule's evidence queries at the time the alert fired.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<Evidence>,
}

/// State of the rank that an alert's labels name, from the rule's annotation `rank_state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankState {
    /// The other ranks wait for it.
    Late,
    /// It makes no progress.
    Stuck,
}

impl AlertView {
    /// Returns the state of the rank, if the rule has the annotation `rank_state`.
    #[must_use]
    pub fn rank_state(&self) -> Option<RankState> {
        match self.annotations.get("rank_state")? {
            "late" => Some(RankState::Late),
            "stuck" => Some(RankState::Stuck),
            _ => None,
        }
    }

    /// Returns true if the page of the run shows the same information as notes (the rule's annotation `shown_as`).
    #[must_use]
    pub fn is_shown_as_notes(&self) -> bool {
        self.annotations.get("shown_as") == Some("notes")
    }
}

/// One measurement that supports a diagnosis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// What was measured, in words.
    pub title: String,
    /// Query that measured it; empty for log lines.
    pub query: String,
    /// Result of the query, one value per series.
    pub values: Vec<EvidenceValue>,
    /// Log lines, instead of values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<String>,
}

/// One value of an evidence query.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EvidenceValue {
    /// Labels of the series.
    pub labels: Labels,
    /// Value; NaN and infinities are written as in Prometheus.
    pub value: String,
}

/// A firing or resolved alert as a diagnosis: `GET /api/diagnoses`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnosis {
    /// The alert that the diagnosis is made from.
    #[serde(flatten)]
    pub alert: AlertView,
    /// What is wrong, in one sentence (annotation `summary`).
    pub summary: String,
    /// Why Lockstep concludes this: the cause of a straggler if it is known, otherwise the annotation `cause`.
    pub cause: String,
    /// What to do (annotation `advice`).
    pub advice: String,
    /// Culprit as text: node, GPU, run or rank, from the labels.
    pub culprit: String,
    /// Id of the diagnosis. Stays the same while the diagnosis is stored, also after its end.
    #[serde(default)]
    pub id: String,
    /// Culprit as typed fields.
    #[serde(default)]
    pub who: NamedCulprit,
    /// Run of the diagnosis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Attempt of that run at the time the diagnosis fired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptNo>,
    /// Confidence in the diagnosis.
    #[serde(default)]
    pub confidence: Confidence,
    /// What people did about the diagnosis.
    #[serde(default)]
    pub handling: Handling,
}

/// Kind of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RuleKind {
    /// The rule makes alerts.
    #[default]
    Alerting,
    /// The rule records series.
    Recording,
}

/// One rule: `GET /api/rules`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RuleView {
    /// File that contains the rule.
    #[serde(default)]
    pub file: String,
    /// Group that contains the rule.
    pub group: String,
    /// Kind of the rule.
    #[serde(default)]
    pub kind: RuleKind,
    /// Name of the rule.
    pub name: String,
    /// PromQL expression.
    pub expr: String,
    /// How long the condition must be true before the alert fires.
    pub for_ms: i64,
    /// How long the alert continues to fire after the condition is no longer true.
    #[serde(default)]
    pub keep_firing_ms: i64,
    /// Labels that the rule adds.
    pub labels: Labels,
    /// Annotations, templates not expanded.
    pub annotations: Labels,
    /// Current alerts of the rule.
    pub alerts: Vec<AlertView>,
    /// When an alert of the rule last began to fire. Absent if no stored alert of the rule has fired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_fired_ms: Option<TimestampMs>,
    /// When the rule was last evaluated.
    pub evaluated_ms: TimestampMs,
    /// Duration of the last evaluation, in seconds.
    pub duration_s: f64,
    /// Error of the last evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A receiver of notifications: `GET /api/webhooks`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WebhookView {
    /// Id of the webhook.
    pub id: String,
    /// URL of the receiver: scheme, host and port only, because the rest of such a URL is often secret.
    pub url: String,
    /// Number of notifications waiting for delivery.
    pub pending: u64,
    /// Error of the last failed delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// When the last successful delivery took place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_ms: Option<TimestampMs>,
}

/// Request body of `POST /api/webhooks`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct CreateWebhook {
    /// URL of the receiver, `http` or `https`.
    pub url: String,
    /// Signing secret in the format of Standard Webhooks (`whsec_…`). If absent, the collector makes one and returns it once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// Response to `POST /api/webhooks`. The only response that contains the secret.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct NewWebhook {
    /// Id of the webhook.
    pub id: String,
    /// Signing secret.
    pub secret: String,
}
