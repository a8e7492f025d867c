//! Results of an evaluation.

use domain::series::Labels;
use domain::time::TimestampMs;

/// A result, with warnings and remarks.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// The result.
    pub value: Value,
    /// Likely mistakes in the query or its data, each once, with the messages of Prometheus (without the position in the text).
    pub warnings: Vec<String>,
    /// Remarks that need no attention, each once.
    pub infos: Vec<String>,
}

/// The four types of PromQL.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// One sample per series, in the order that the query requires.
    Vector(Vec<VectorSample>),
    /// Samples of several times, sorted by labels.
    Matrix(Vec<MatrixSeries>),
    /// A number at a time.
    Scalar(TimestampMs, f64),
    /// A text at a time.
    String(TimestampMs, String),
}

/// One series at one time.
pub type VectorSample = (Labels, TimestampMs, f64);

/// One series at several times. Times without a sample are left out.
#[derive(Debug, Clone, PartialEq)]
pub struct MatrixSeries {
    /// Labels of the series.
    pub labels: Labels,
    /// Times, ascending.
    pub times: Vec<TimestampMs>,
    /// One value per time.
    pub values: Vec<f64>,
}
