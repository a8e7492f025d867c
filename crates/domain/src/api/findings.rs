//! `GET /api/runs/{id}/findings`: findings of the analysers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::diagnosis::finding::{Finding, Witness};
use crate::ident::AttemptNo;
use crate::time::TimestampMs;

/// Findings of the analysers for the current attempt of a run, or for its last one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RunFindings {
    /// Attempt of the findings; absent if nothing was analysed yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptNo>,
    /// When the analysers last ran, by the collector's clock.
    pub at_ms: TimestampMs,
    /// When the attempt ended. The findings are then the last ones before the end; they are kept for one hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over_since_ms: Option<TimestampMs>,
    /// Root causes first, then suspects and symptoms.
    pub findings: Vec<FindingView>,
}

/// A finding, as data and in words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FindingView {
    /// The finding.
    #[serde(flatten)]
    pub finding: Finding,
    /// The whole finding in one sentence.
    pub sentence: String,
    /// Each witness in words, in the order of `witnesses`.
    pub evidence: Vec<String>,
}

impl From<Finding> for FindingView {
    fn from(finding: Finding) -> Self {
        Self {
            sentence: finding.sentence(),
            evidence: finding.witnesses.iter().map(Witness::words).collect(),
            finding,
        }
    }
}
