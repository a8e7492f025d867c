//! `GET /api/diagnoses/{id}/bundle`: one file about a diagnosis, for a ticket or for people without access to the collector.
//!
//! It contains no specification of a run, so no environment variables and no secrets.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::diagnoses::DiagnosisView;
use crate::api::findings::RunFindings;
use crate::api::prometheus::MatrixSeries;
use crate::event::Event;
use crate::time::TimestampMs;

/// A diagnosis with the measurements and events around it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DiagnosisBundle {
    /// Version of the collector.
    pub version: String,
    /// When the file was made, by the collector's clock.
    pub made_ms: TimestampMs,
    /// The diagnosis with its evidence, context and history.
    pub diagnosis: DiagnosisView,
    /// Values of the charts of the diagnosis, in the same order.
    #[serde(default)]
    pub chart_values: Vec<ChartValues>,
    /// Current findings of the analysers about its run. Absent if it has no run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub findings: Option<RunFindings>,
    /// Events of its run and its node, from one hour before it to its end, newest first.
    #[serde(default)]
    pub events: Vec<Event>,
}

/// Values of one chart.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ChartValues {
    /// Query of the chart.
    pub query: String,
    /// Values of each series, as in a response of `/api/v1/query_range`. Series of the culprit come first.
    pub series: Vec<MatrixSeries>,
    /// Number of series that were left out because there are too many.
    #[serde(skip_serializing_if = "is_zero")]
    pub series_left_out: usize,
    /// Why there are no values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}
