//! What an evaluation gives.

use domain::series::Labels;
use domain::time::TimestampMs;

/// A result, and what to know about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// The result.
    pub value: Value,
    /// Likely mistakes in the query or its data, each once, as Prometheus words them (without the position in the text).
    pub warnings: Vec<String>,
    /// Harmless oddities, each once.
    pub infos: Vec<String>,
}

/// The four types of PromQL.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// One sample a series, in the order the query asked for.
    Vector(Vec<VectorSample>),
    /// Samples over time, sorted by labels.
    Matrix(Vec<MatrixSeries>),
    /// A number at a time.
    Scalar(TimestampMs, f64),
    /// A text at a time.
    String(TimestampMs, String),
}

/// One series at one time.
pub type VectorSample = (Labels, TimestampMs, f64);

/// One series over time; times without a sample are left out.
#[derive(Debug, Clone, PartialEq)]
pub struct MatrixSeries {
    /// Its labels.
    pub labels: Labels,
    /// Ascending.
    pub times: Vec<TimestampMs>,
    /// As many values.
    pub values: Vec<f64>,
}
