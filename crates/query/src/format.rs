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

/// A value as `count_values` puts it into a label, where two spellings are two series: of the shortest decimals that read as
/// this number the nearest, and of two equally near ones the even, as in Go.
#[must_use]
pub fn label(value: f64) -> String {
    let shortest = float(value);
    let decimals = shortest.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    if decimals == 0 {
        return shortest;
    }
    let nearest = format!("{value:.decimals$}");
    if nearest.parse() == Ok(value) {
        nearest
    } else {
        shortest
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
    fn of_two_spellings_equally_near_a_label_has_the_even_one() {
        for (value, text) in [
            (553_322.0 + 18.0 / 4_096.0, "553322.0043945312"),
            (836_405.0 + 34.0 / 4_096.0, "836405.0083007812"),
            (1_012_849.001_708_984_4, "1012849.0017089844"),
            (0.1, "0.1"),
            (5e-324, &format!("0.{}5", "0".repeat(323))),
            (-0.0, "-0"),
            (f64::NEG_INFINITY, "-Inf"),
        ] {
            assert_eq!(label(value), text);
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
