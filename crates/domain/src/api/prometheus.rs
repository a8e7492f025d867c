//! Shapes of Prometheus' query API, for clients in Rust: `/api/v1/query` and `/api/v1/query_range`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::series::Labels;

/// The envelope of every answer under `/api/v1`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub struct Answer<T> {
    /// `success` or `error`.
    pub status: String,
    /// The answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<T>,
    /// `bad_data`, `execution`, `timeout`, `canceled`, …
    #[serde(default, rename = "errorType", skip_serializing_if = "Option::is_none")]
    pub error_type: Option<String>,
    /// A sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Things to know about the answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Harmless oddities.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub infos: Vec<String>,
}

/// What a query gave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "resultType", content = "result", rename_all = "lowercase")]
pub enum QueryResult {
    /// One sample a series.
    Vector(Vec<VectorSample>),
    /// A range of samples a series.
    Matrix(Vec<MatrixSeries>),
    /// A number.
    Scalar(Point),
    /// A text.
    String(Point),
}

/// Seconds since the epoch, and the value as text (`NaN`, `+Inf`, `-Inf` among them).
pub type Point = (f64, String);

/// One series' sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VectorSample {
    /// Its labels.
    pub metric: Labels,
    /// Time and value.
    pub value: Point,
}

/// One series' samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MatrixSeries {
    /// Its labels.
    pub metric: Labels,
    /// Times and values.
    pub values: Vec<Point>,
}

/// The shortest text that reads back as the same number, never with an exponent: what Go's
/// `strconv.FormatFloat(v, 'f', -1, 64)` gives, which Prometheus uses.
#[must_use]
pub fn float(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned()
    } else {
        // Rust's `Display` is the shortest round trip without an exponent, the same contract.
        value.to_string()
    }
}
