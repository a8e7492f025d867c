//! Results as Prometheus' HTTP API writes them: times in seconds, values as text.

pub use domain::api::prometheus::float;
use domain::api::prometheus::{MatrixSeries as ApiSeries, Point, QueryResult, VectorSample as ApiSample};
use domain::time::TimestampMs;

use crate::output::{MatrixSeries, Value};

/// The body of an answer.
#[must_use]
pub fn query_result(value: &Value) -> QueryResult {
    match value {
        Value::Vector(samples) => QueryResult::Vector(
            samples
                .iter()
                .map(|(labels, time, value)| ApiSample {
                    metric: labels.clone(),
                    value: point(*time, *value),
                })
                .collect(),
        ),
        Value::Matrix(series) => QueryResult::Matrix(series.iter().map(api_series).collect()),
        Value::Scalar(time, value) => QueryResult::Scalar(point(*time, *value)),
        Value::String(time, text) => QueryResult::String((seconds(*time), text.clone())),
    }
}

fn api_series(series: &MatrixSeries) -> ApiSeries {
    let points = series
        .times
        .iter()
        .zip(&series.values)
        .map(|(time, value)| point(*time, *value));
    ApiSeries {
        metric: series.labels.clone(),
        values: points.collect(),
    }
}

fn point(time: TimestampMs, value: f64) -> Point {
    (seconds(time), float(value))
}

/// Milliseconds as seconds; exact to the millisecond for any date of this era.
#[must_use]
pub fn seconds(time: TimestampMs) -> f64 {
    time as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::series::Labels;

    #[test]
    fn values_are_written_as_prometheus_writes_them() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (0.1, "0.1"),
            (1.0 / 3.0, "0.3333333333333333"),
            (1e21, "1000000000000000000000"),
            (1e-7, "0.0000001"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (domain::series::STALE, "NaN"),
        ] {
            assert_eq!(float(value), text);
        }
    }

    #[test]
    fn times_are_in_seconds() {
        let value = Value::Vector(vec![(Labels::empty(), 1_435_781_430_781, 2.5)]);
        let QueryResult::Vector(samples) = query_result(&value) else {
            panic!("a vector stays a vector")
        };
        assert_eq!(samples[0].value, (1_435_781_430.781, "2.5".to_owned()));
        assert_eq!(
            query_result(&Value::String(1_000, "hi".into())),
            QueryResult::String((1.0, "hi".to_owned()))
        );
    }
}
