//! Results as Prometheus' HTTP API writes them: times in seconds, values as text.
//!
//! ```text
//! {"resultType":"matrix","result":[{"metric":{"gpu":"0"},"values":[[1435781430.781,"2.5"],…]},…]}
//! ```
//! A panel asks for ten thousands of numbers, so they go straight into the bytes of the answer.

use std::io::Write;

pub use domain::api::prometheus::float;
use domain::series::Labels;
use domain::time::TimestampMs;

use crate::output::Value;

/// Room for a time and a value of usual length, so that an answer seldom moves while it grows.
const POINT_BYTES: usize = 28;
/// Values are tried as decimals with as many digits behind the point: what sensors give.
const DECIMALS_POWER: f64 = 1_000.0;
/// Below, a decimal has at most 15 digits, and no two of those are the same number: the one found is the shortest.
const DECIMAL_MAX: f64 = 1e15;
/// From here on up, and below the other, Prometheus writes an exponent.
const EXPONENT_FROM: f64 = 1e21;
const EXPONENT_BELOW: f64 = 1e-6;

/// Writes the data of an answer.
pub fn write(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Vector(samples) => write_all(out, "vector", samples, |out, (labels, time, value)| {
            write_metric(out, labels);
            out.extend_from_slice(b",\"value\":");
            write_point(out, *time, *value);
        }),
        Value::Matrix(series) => {
            let points: usize = series.iter().map(|series| series.times.len()).sum();
            out.reserve(points * POINT_BYTES);
            write_all(out, "matrix", series, |out, series| {
                write_metric(out, &series.labels);
                out.extend_from_slice(b",\"values\":");
                write_points(out, &series.times, &series.values);
            });
        }
        Value::Scalar(time, value) => {
            write_type(out, "scalar");
            write_point(out, *time, *value);
        }
        Value::String(time, text) => {
            write_type(out, "string");
            out.push(b'[');
            write_seconds(out, *time);
            out.push(b',');
            write_text(out, text);
            out.push(b']');
        }
    }
    out.push(b'}');
}

fn write_type(out: &mut Vec<u8>, name: &str) {
    out.extend_from_slice(b"{\"resultType\":\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\",\"result\":");
}

/// A list of objects, each written without its outer braces.
fn write_all<T>(out: &mut Vec<u8>, name: &str, things: &[T], write: impl Fn(&mut Vec<u8>, &T)) {
    write_type(out, name);
    out.push(b'[');
    for (at, thing) in things.iter().enumerate() {
        out.extend_from_slice(if at == 0 { &b"{"[..] } else { b",{" });
        write(out, thing);
        out.push(b'}');
    }
    out.push(b']');
}

/// A series' labels: `"metric":{…}`.
pub fn write_metric(out: &mut Vec<u8>, labels: &Labels) {
    out.extend_from_slice(b"\"metric\":{");
    for (at, label) in labels.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write_text(out, &label.name);
        out.push(b':');
        write_text(out, &label.value);
    }
    out.push(b'}');
}

fn write_text(out: &mut Vec<u8>, text: &str) {
    let is_plain = |byte: u8| byte >= b' ' && byte != b'"' && byte != b'\\';
    if text.bytes().all(is_plain) {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    } else {
        serde_json::to_writer(out, text).expect("a text can be written to memory");
    }
}

fn write_points(out: &mut Vec<u8>, times: &[TimestampMs], values: &[f64]) {
    out.push(b'[');
    for (at, (time, value)) in times.iter().zip(values).enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write_point(out, *time, *value);
    }
    out.push(b']');
}

/// One sample: `[time,"value"]`.
pub fn write_point(out: &mut Vec<u8>, time: TimestampMs, value: f64) {
    out.push(b'[');
    write_seconds(out, time);
    out.extend_from_slice(b",\"");
    write_float(out, value);
    out.extend_from_slice(b"\"]");
}

/// Milliseconds as seconds: three digits behind the point, or none.
fn write_seconds(out: &mut Vec<u8>, time: TimestampMs) {
    if time < 0 {
        out.push(b'-');
    }
    let ms = time.unsigned_abs();
    write_integer(out, ms / 1_000);
    let [hundreds, tens, ones] = digits(ms % 1_000);
    if !ms.is_multiple_of(1_000) {
        out.extend_from_slice(&[b'.', hundreds, tens, ones]);
    }
}

fn write_integer(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// The three digits of a number below a thousand.
fn digits(number: u64) -> [u8; 3] {
    [number / 100, number / 10 % 10, number % 10].map(|digit| b'0' + digit as u8)
}

/// The shortest text that reads back as the same number, with an exponent only for the very small and the very large.
fn write_float(out: &mut Vec<u8>, value: f64) {
    if write_decimal(out, value) {
        return;
    }
    let size = value.abs();
    if size == 0.0 {
        out.extend_from_slice(if value.is_sign_negative() {
            &b"-0"[..]
        } else {
            b"0"
        });
        return;
    }
    if size.is_finite() && !(EXPONENT_BELOW..EXPONENT_FROM).contains(&size) {
        write_with_exponent(out, value);
        return;
    }
    if !value.is_finite() {
        out.extend_from_slice(float(value).as_bytes());
        return;
    }
    let mut buffer = zmij::Buffer::new();
    let text = buffer.format_finite(value);
    if text.contains('e') {
        out.extend_from_slice(float(value).as_bytes());
    } else {
        out.extend_from_slice(text.strip_suffix(".0").unwrap_or(text).as_bytes());
    }
}

/// Writes an integer or a number with up to three digits behind the point; whether it was one.
fn write_decimal(out: &mut Vec<u8>, value: f64) -> bool {
    let thousandths = value * DECIMALS_POWER;
    let rounded = (thousandths.abs() + 0.5) as u64;
    // A zero may be a negative one.
    let fits = thousandths.abs() < DECIMAL_MAX && rounded != 0;
    if !fits || (rounded as f64 / DECIMALS_POWER).to_bits() != value.abs().to_bits() {
        return false;
    }
    if value < 0.0 {
        out.push(b'-');
    }
    write_integer(out, rounded / 1_000);
    let behind = digits(rounded % 1_000);
    let length = behind
        .iter()
        .rposition(|digit| *digit != b'0')
        .map_or(0, |last| last + 1);
    if length > 0 {
        out.push(b'.');
        out.extend_from_slice(&behind[..length]);
    }
    true
}

/// As Go writes it: a sign and at least two digits of exponent.
fn write_with_exponent(out: &mut Vec<u8>, value: f64) {
    let text = format!("{value:e}");
    let (number, exponent) = text.split_once('e').expect("it is written with an exponent");
    let (sign, size) = match exponent.strip_prefix('-') {
        Some(size) => ('-', size),
        None => ('+', exponent),
    };
    write!(out, "{number}e{sign}{size:0>2}").expect("memory takes all that is written");
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use domain::api::prometheus::QueryResult;
    use proptest::prelude::*;

    use super::*;
    use crate::output::MatrixSeries;

    fn written_float(value: f64) -> String {
        let mut out = Vec::new();
        write_float(&mut out, value);
        String::from_utf8(out).unwrap()
    }

    fn written(value: &Value) -> String {
        let mut out = Vec::new();
        write(&mut out, value);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn values_are_written_as_prometheus_writes_them() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (-17.25, "-17.25"),
            (0.1, "0.1"),
            (0.001, "0.001"),
            (0.0015, "0.0015"),
            (999_999_999_999.999, "999999999999.999"),
            (1.0 / 3.0, "0.3333333333333333"),
            (9_007_199_254_740_993.0, "9007199254740992"),
            (81_920_000_000.0, "81920000000"),
            (1e17, "100000000000000000"),
            (123_456_789_012_345_680_000.0, "123456789012345680000"),
            (1e21, "1e+21"),
            (-1.5e300, "-1.5e+300"),
            (1e-6, "0.000001"),
            (1e-7, "1e-07"),
            (5e-324, "5e-324"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (domain::series::STALE, "NaN"),
        ] {
            assert_eq!(written_float(value), text);
        }
    }

    proptest! {
        #[test]
        fn values_are_the_shortest_that_read_back(bits in any::<u64>(), thousandths in -1_i64 << 52..1 << 52, power in 0..5) {
            for value in [f64::from_bits(bits), thousandths as f64 / 10_f64.powi(power)] {
                let text = written_float(value);
                let size = value.abs();
                if value.is_finite() {
                    prop_assert_eq!(text.parse::<f64>().unwrap().to_bits(), value.to_bits());
                }
                if size == 0.0 || (EXPONENT_BELOW..EXPONENT_FROM).contains(&size) {
                    prop_assert_eq!(text, float(value));
                }
            }
        }
    }

    #[test]
    fn times_are_in_seconds() {
        for (time, text) in [
            (1_435_781_430_781, "1435781430.781"),
            (1_435_781_430_080, "1435781430.080"),
            (1_435_781_430_000, "1435781430"),
            (-1_500, "-1.500"),
            (0, "0"),
        ] {
            assert_eq!(
                written(&Value::Scalar(time, 1.0)),
                format!(r#"{{"resultType":"scalar","result":[{text},"1"]}}"#)
            );
        }
    }

    #[test]
    fn every_type_reads_back() {
        let labels = Labels::new([("__name__", "up"), ("job", "a \"quoted\"\n\\ one, π")]).unwrap();
        let matrix = vec![
            MatrixSeries {
                labels: labels.clone(),
                times: vec![1_000, 2_500],
                values: vec![1.0, f64::NAN],
            },
            MatrixSeries {
                labels: Labels::empty(),
                times: vec![1_000],
                values: vec![0.5],
            },
        ];
        for value in [
            Value::Matrix(matrix),
            Value::Matrix(Vec::new()),
            Value::Vector(vec![
                (labels, 1_000, 2.5),
                (Labels::empty(), 1_000, f64::INFINITY),
            ]),
            Value::Scalar(1, 2.0),
            Value::String(1_000, "hi \"there\"".into()),
        ] {
            let read: QueryResult = serde_json::from_str(&written(&value)).unwrap();
            let point = |time: i64, value: f64| (time as f64 / 1_000.0, float(value));
            match (&value, read) {
                (Value::Matrix(all), QueryResult::Matrix(read)) => {
                    assert_eq!(all.len(), read.len());
                    for (series, read) in all.iter().zip(read) {
                        assert_eq!(series.labels, read.metric);
                        let points = series.times.iter().zip(&series.values);
                        assert_eq!(
                            points
                                .map(|(time, value)| point(*time, *value))
                                .collect::<Vec<_>>(),
                            read.values
                        );
                    }
                }
                (Value::Vector(all), QueryResult::Vector(read)) => {
                    let read: Vec<_> = read
                        .into_iter()
                        .map(|sample| (sample.metric, sample.value))
                        .collect();
                    let all: Vec<_> = all
                        .iter()
                        .map(|(labels, time, value)| (labels.clone(), point(*time, *value)))
                        .collect();
                    assert_eq!(read, all);
                }
                (Value::Scalar(time, value), QueryResult::Scalar(read)) => {
                    assert_eq!(point(*time, *value), read)
                }
                (Value::String(time, text), QueryResult::String(read)) => {
                    assert_eq!((*time as f64 / 1_000.0, text.clone()), read);
                }
                (value, read) => panic!("{value:?} was read as {read:?}"),
            }
        }
    }
}
