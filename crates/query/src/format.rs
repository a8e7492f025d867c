//! Writes results in the format of Prometheus' HTTP API: times in seconds, values as text.
//!
//! ```text
//! {"resultType":"matrix","result":[{"metric":{"gpu":"0"},"values":[[1435781430.781,"2.5"],…]},…]}
//! ```
//! A dashboard panel requests tens of thousands of numbers. Therefore they are written directly to the bytes of the response.

use std::io::Write;

pub use domain::api::prometheus::float;
use domain::series::Labels;
use domain::time::TimestampMs;

use crate::output::Value;

/// Bytes reserved per sample: a time and a value of usual length, so that the response rarely has to be reallocated.
const POINT_BYTES: usize = 28;
/// A value is first tried as a decimal with at most this many decimals, as `(10^decimals, decimals)`. It is the form of most sensor values
/// and ratios.
const DECIMALS: [(u64, usize); 2] = [(1_000, 3), (1_000_000, 6)];
/// Bound of the scaled value. Below it, a decimal has at most 15 digits. Two such decimals are never the same number, so the one found is
/// the shortest.
const DECIMAL_MAX: f64 = 1e15;
/// Prometheus writes an exponent for values from the first constant on, and for values below the second.
const EXPONENT_FROM: f64 = 1e21;
const EXPONENT_BELOW: f64 = 1e-6;

/// Writes the `data` part of a response.
pub fn write(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Vector(samples) => write_all(out, "vector", samples, |out, (labels, time, value)| {
            write_metric(out, labels);
            out.extend_from_slice(b",\"value\":");
            write_point(out, *time, *value);
        }),
        Value::Matrix(series) => {
            let mut points = Points::default();
            write_all(out, "matrix", series, |out, series| {
                write_metric(out, &series.labels);
                out.extend_from_slice(b",\"values\":[");
                points.write(out, &series.times, &series.values, true);
                out.push(b']');
            });
        }
        Value::Scalar(time, value) => {
            write_type(out, "scalar");
            write_point(out, *time, *value);
        }
        Value::String(time, text) => {
            write_type(out, "string");
            let time = TimeText::of(*time).opening(true);
            let (_quote, opening) = time.bytes[usize::from(time.start)..]
                .split_last()
                .expect("it is never empty");
            out.extend_from_slice(opening);
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

/// Writes a list of objects; `write` writes each one without its outer braces.
fn write_all<T>(out: &mut Vec<u8>, name: &str, things: &[T], mut write: impl FnMut(&mut Vec<u8>, &T)) {
    write_type(out, name);
    out.push(b'[');
    for (at, thing) in things.iter().enumerate() {
        out.extend_from_slice(if at == 0 { &b"{"[..] } else { b",{" });
        write(out, thing);
        out.push(b'}');
    }
    out.push(b']');
}

/// Writes the labels of a series: `"metric":{…}`.
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

/// Writes one sample: `[time,"value"]`.
pub fn write_point(out: &mut Vec<u8>, time: TimestampMs, value: f64) {
    write_sample(out, TimeText::of(time).opening(true), value, true);
}

/// Writes the samples of one series after another. Most series have the same times as the one before, so the text of the times is kept.
#[derive(Debug, Default)]
pub struct Points {
    times: Vec<TimestampMs>,
    texts: Vec<TimeText>,
    /// Number of consecutive values that were not short decimals.
    long: usize,
}

impl Points {
    /// After this many consecutive long values, the next ones are not tried as short decimals: the attempt costs as much as writing a long
    /// value.
    const LONG_MAX: usize = 4;
    /// One of this many values is tried anyway.
    const TRIED_EVERY: usize = 16;

    /// Writes samples of a series, separated by commas. Also writes a comma before the first, unless `begins` is true.
    pub fn write(&mut self, out: &mut Vec<u8>, times: &[TimestampMs], values: &[f64], begins: bool) {
        out.reserve(times.len() * POINT_BYTES);
        let is_first = |at: usize| begins && at == 0;
        if self.times != times {
            self.times.clear();
            self.times.extend_from_slice(times);
            self.texts.clear();
            self.texts.extend(times.iter().map(|time| TimeText::of(*time)));
        }
        for (at, value) in values.iter().enumerate() {
            let text = self.texts[at].opening(is_first(at));
            self.put(out, text, *value);
        }
    }

    fn put(&mut self, out: &mut Vec<u8>, time: TimeText, value: f64) {
        let tries = self.long < Self::LONG_MAX || self.long.is_multiple_of(Self::TRIED_EVERY);
        let was_short = write_sample(out, time, value, tries);
        self.long = if was_short { 0 } else { self.long + 1 };
    }
}

/// Start of a sample: `,[1435781430.781,"`.
#[derive(Debug, Clone, Copy)]
struct TimeText {
    /// The text is at the end of this array, so that the whole array can be copied in front of the value.
    bytes: [u8; TIME_BYTES],
    start: u8,
}

/// Size of a time text in bytes: the longest time fits, and it is four machine words.
const TIME_BYTES: usize = 32;
/// Size of a sample in bytes: a time, the longest decimal, and the closing characters.
const LINE_BYTES: usize = 64;

impl TimeText {
    /// Returns the text for milliseconds as seconds: three decimals, or none.
    fn of(time: TimestampMs) -> Self {
        let mut bytes = [0; TIME_BYTES];
        let (ms, end) = (time.unsigned_abs(), TIME_BYTES - 2);
        bytes[end..].copy_from_slice(b",\"");
        let mut start = end;
        if !ms.is_multiple_of(1_000) {
            start -= 4;
            let [hundreds, tens, ones] = digits(ms % 1_000);
            bytes[start..end].copy_from_slice(&[b'.', hundreds, tens, ones]);
        }
        start = put_integer(&mut bytes, start, ms / 1_000);
        if time < 0 {
            start -= 1;
            bytes[start] = b'-';
        }
        start -= 2;
        bytes[start..start + 2].copy_from_slice(b",[");
        Self {
            bytes,
            start: start as u8,
        }
    }

    /// Returns the text without its comma for the first sample.
    fn opening(self, is_first: bool) -> Self {
        Self {
            start: self.start + u8::from(is_first),
            ..self
        }
    }
}

/// Writes a sample: the text of its time, the value, and the closing characters. If `tries_decimal` is true, a short decimal is built from
/// its end and copied at once. Returns true if it was one.
fn write_sample(out: &mut Vec<u8>, time: TimeText, value: f64, tries_decimal: bool) -> bool {
    let mut line = [0; 2 * LINE_BYTES];
    let end = LINE_BYTES - 2;
    line[end..LINE_BYTES].copy_from_slice(b"\"]");
    let decimal = tries_decimal.then(|| put_decimal(&mut line, end, value));
    let Some(start) = decimal.flatten() else {
        out.extend_from_slice(&time.bytes[usize::from(time.start)..]);
        write_float(out, value);
        out.extend_from_slice(b"\"]");
        return false;
    };
    let start = start - TIME_BYTES;
    line[start..start + TIME_BYTES].copy_from_slice(&time.bytes);
    let start = start + usize::from(time.start);
    // Copies a fixed number of bytes, so that no loop is needed, and then removes those that are too many.
    let length = out.len() + LINE_BYTES - start;
    out.extend_from_slice(&line[start..start + LINE_BYTES]);
    out.truncate(length);
    true
}

/// Returns the three digits of a number below 1,000.
fn digits(number: u64) -> [u8; 3] {
    [number / 100, number / 10 % 10, number % 10].map(|digit| b'0' + digit as u8)
}

/// Writes an integer that ends before `end`. Returns its start.
fn put_integer(bytes: &mut [u8], end: usize, mut number: u64) -> usize {
    let mut start = end;
    loop {
        start -= 1;
        bytes[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return start;
        }
    }
}

/// Writes a number with few decimals that ends before `end`. Returns its start; `None` if the value is not such a number.
fn put_decimal(bytes: &mut [u8], end: usize, value: f64) -> Option<usize> {
    let (number, power, mut digits) = DECIMALS.into_iter().find_map(|(power, digits)| {
        let scaled = value.abs() * power as f64;
        let number = (scaled + 0.5) as u64;
        // The value may be -0, or too small for this number of decimals.
        let fits = scaled < DECIMAL_MAX && (number != 0 || value.to_bits() == 0);
        let reads_back = (number as f64 / power as f64).to_bits() == value.abs().to_bits();
        (fits && reads_back).then_some((number, power, digits))
    })?;
    let (whole, mut behind) = (number / power, number % power);
    let mut start = end;
    if behind != 0 {
        while behind.is_multiple_of(10) {
            behind /= 10;
            digits -= 1;
        }
        for _ in 0..digits {
            start -= 1;
            bytes[start] = b'0' + (behind % 10) as u8;
            behind /= 10;
        }
        start -= 1;
        bytes[start] = b'.';
    }
    start = put_integer(bytes, start, whole);
    if value < 0.0 {
        start -= 1;
        bytes[start] = b'-';
    }
    Some(start)
}

/// Writes a value that [`put_decimal`] did not write: the shortest text that parses to the same number. Only very small and very large
/// numbers have an exponent.
fn write_float(out: &mut Vec<u8>, value: f64) {
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

/// Writes the exponent as Go does: a sign and at least two digits.
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
        write_point(&mut out, 0, value);
        let text = String::from_utf8(out).unwrap();
        let behind = text.strip_prefix("[0,\"").unwrap();
        behind.strip_suffix("\"]").unwrap().to_owned()
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
            (-0.812_35, "-0.81235"),
            (0.000_001_5, "0.0000015"),
            (1_000_000.000_001, "1000000.000001"),
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

    /// Returns true if the number is exactly in the middle between two texts that differ only in their last digit. Then both are correct.
    fn are_as_near(value: f64, one: &str, other: &str) -> bool {
        let lower = one.min(other);
        let at = one.bytes().zip(other.bytes()).position(|(a, b)| a != b);
        let (exact, Some(at)) = (format!("{value:.1100}"), at) else {
            return false;
        };
        let behind = exact[at + 1..].replace('.', "");
        one.len() == other.len() && exact[..=at] == lower[..=at] && behind.trim_end_matches('0') == "5"
    }

    #[test]
    fn only_the_middle_is_as_near_to_both() {
        let value = f64::from_bits(14_056_044_942_213_999_041);
        assert!(format!("{value:.3}") == "-1203526204512880.250");
        assert!(are_as_near(value, "-1203526204512880.2", "-1203526204512880.3"));
        assert!(!are_as_near(value, "-1203526204512880.2", "-1203526204512880.2"));
        assert!(!are_as_near(value, "-1203526204512880.3", "-1203526204512880.4"));
        assert!(!are_as_near(0.1, "0.1", "0.2"));
    }

    proptest! {
        #[test]
        fn values_are_the_shortest_that_read_back(bits in any::<u64>(), thousandths in -1_i64 << 52..1 << 52, power in 0..8) {
            for value in [f64::from_bits(bits), thousandths as f64 / 10_f64.powi(power)] {
                let text = written_float(value);
                let size = value.abs();
                if value.is_finite() {
                    prop_assert_eq!(text.parse::<f64>().unwrap().to_bits(), value.to_bits());
                }
                if size == 0.0 || (EXPONENT_BELOW..EXPONENT_FROM).contains(&size) {
                    let other = float(value);
                    prop_assert!(text == other || are_as_near(value, &text, &other), "{} {}", text, other);
                }
            }
        }
    }

    #[test]
    fn short_values_behind_long_ones_are_written_the_same() {
        let long = (1..40).map(|n| 1.0 / f64::from(3 * n));
        let short = [0.0, -0.0, 2.0, 0.001, 81_920_000_000.0, 1e17, f64::NAN, 0.25];
        let values: Vec<f64> = long.clone().chain(short).chain(long).chain(short).collect();
        let times: Vec<i64> = (0..).take(values.len()).collect();
        let (mut together, mut alone) = (Vec::new(), Vec::new());
        Points::default().write(&mut together, &times, &values, true);
        for (time, value) in times.iter().zip(&values) {
            if !alone.is_empty() {
                alone.push(b',');
            }
            write_point(&mut alone, *time, *value);
        }
        assert_eq!(
            String::from_utf8(together).unwrap(),
            String::from_utf8(alone).unwrap()
        );
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
