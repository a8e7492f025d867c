//! Types of Prometheus' query API, for clients in Rust: `/api/v1/query` and `/api/v1/query_range`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::series::Labels;

/// Every response under `/api/v1`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub struct Answer<T> {
    /// `success` or `error`.
    pub status: String,
    /// Result of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<T>,
    /// `bad_data`, `execution`, `timeout`, `canceled`, …
    #[serde(default, rename = "errorType", skip_serializing_if = "Option::is_none")]
    pub error_type: Option<String>,
    /// Error message, one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Warnings about the result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Remarks about the result that need no attention.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub infos: Vec<String>,
}

/// Result of a query.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "resultType", content = "result", rename_all = "lowercase")]
pub enum QueryResult {
    /// One sample per series.
    Vector(Vec<VectorSample>),
    /// The samples of a period, per series.
    Matrix(Vec<MatrixSeries>),
    /// A number.
    Scalar(Point),
    /// A text.
    String(Point),
}

/// Seconds since the epoch, and the value as text (can be `NaN`, `+Inf`, `-Inf`).
pub type Point = (f64, String);

/// One sample of a series.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VectorSample {
    /// Labels of the series.
    pub metric: Labels,
    /// Time and value.
    pub value: Point,
}

/// The samples of one series.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MatrixSeries {
    /// Labels of the series.
    pub metric: Labels,
    /// Times and values.
    pub values: Vec<Point>,
}

/// Prints the shortest text that parses to the same number, never with an exponent. Prometheus uses the same format: Go's
/// `strconv.FormatFloat(v, 'f', -1, 64)`.
#[must_use]
pub fn float(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned()
    } else {
        // `Display` of Rust prints the shortest text that parses to the same number, without an exponent.
        value.to_string()
    }
}
