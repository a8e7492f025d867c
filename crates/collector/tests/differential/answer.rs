//! Answers of the query API, and when two are equal.

use std::fmt;

use serde_json::Value;

/// Relative difference up to which two values are equal: sums are computed in another order, or more precisely.
const EPSILON: f64 = 1e-9;
const SHOWN_CHARS: usize = 600;

#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Error(String),
    /// Scalars and vectors have one sample per series; a string is a label.
    Result {
        kind: String,
        series: Vec<Series>,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Series {
    labels: String,
    /// Time in milliseconds, and the bits of the value; all NaNs are equal.
    samples: Vec<(i64, u64)>,
}

impl PartialEq for Answer {
    /// Compares to the bit. All errors are equal, whatever their text.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Error(_), Self::Error(_)) => true,
            (Self::Result { kind: a_kind, .. }, Self::Result { kind: b_kind, .. }) => {
                a_kind == b_kind && self.sorted() == other.sorted()
            }
            _ => false,
        }
    }
}

impl Answer {
    pub(crate) fn read(body: &Value) -> Self {
        if body["status"] != "success" {
            return Self::Error(body["error"].as_str().unwrap_or("no reason is given").to_owned());
        }
        let (kind, result) = (
            body["data"]["resultType"].as_str().unwrap(),
            &body["data"]["result"],
        );
        let series = match kind {
            "scalar" => vec![Series {
                labels: String::new(),
                samples: vec![sample(result)],
            }],
            "string" => vec![Series {
                labels: result[1].to_string(),
                samples: Vec::new(),
            }],
            _ => result.as_array().unwrap().iter().map(series).collect(),
        };
        Self::Result {
            kind: kind.to_owned(),
            series,
        }
    }

    pub(crate) fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Result { series, .. } if series.is_empty())
    }

    /// Returns true for an error whose text contains `words`.
    pub(crate) fn is_error_of(&self, words: &str) -> bool {
        matches!(self, Self::Error(message) if message.contains(words))
    }

    /// Returns the answer without the names of metrics.
    pub(crate) fn nameless(&self) -> Self {
        let mut nameless = self.clone();
        if let Self::Result { series, .. } = &mut nameless {
            for one in series {
                let mut labels: serde_json::Map<String, Value> =
                    serde_json::from_str(&one.labels).unwrap_or_default();
                labels.remove("__name__");
                one.labels = Value::Object(labels).to_string();
            }
        }
        nameless
    }

    /// Returns true if two answers have the same samples, except where this one has NaN.
    pub(crate) fn is_nan_where_other_than(&self, other: &Self) -> bool {
        let (ours, theirs) = (self.sorted(), other.sorted());
        let is_so = |(a, b): (&&Series, &&Series)| {
            let mut samples = a.samples.iter().zip(&b.samples);
            a.labels == b.labels
                && a.samples.len() == b.samples.len()
                && samples
                    .all(|(a, b)| a.0 == b.0 && (is_near(a.1, b.1, EPSILON) || f64::from_bits(a.1).is_nan()))
        };
        ours.len() == theirs.len() && ours.iter().zip(&theirs).all(is_so)
    }

    fn sorted(&self) -> Vec<&Series> {
        let mut all: Vec<&Series> = match self {
            Self::Error(_) => Vec::new(),
            Self::Result { series, .. } => series.iter().collect(),
        };
        all.sort_by(|a, b| a.labels.cmp(&b.labels));
        all
    }

    /// Returns true if labels, times and values are equal; with `in_order`, the order of the values too.
    pub(crate) fn equals(&self, other: &Self, in_order: bool) -> bool {
        let is_in_order = |a: &[Series], b: &[Series]| a.iter().zip(b).all(|(a, b)| are_near(a, b, EPSILON));
        match (self, other) {
            (Self::Result { series: a, .. }, Self::Result { series: b, .. }) => {
                self.is_near(other, EPSILON) && (!in_order || is_in_order(a, b))
            }
            _ => self == other,
        }
    }

    /// Returns true if labels and times are equal, and values differ by at most `epsilon`, relatively.
    pub(crate) fn is_near(&self, other: &Self, epsilon: f64) -> bool {
        let (Self::Result { kind: a_kind, .. }, Self::Result { kind: b_kind, .. }) = (self, other) else {
            return false;
        };
        let (a, b) = (self.sorted(), other.sorted());
        let is_same = |(a, b): (&&Series, &&Series)| a.labels == b.labels && are_near(a, b, epsilon);
        a_kind == b_kind && a.len() == b.len() && a.iter().zip(&b).all(is_same)
    }
}

fn are_near(a: &Series, b: &Series, epsilon: f64) -> bool {
    let mut samples = a.samples.iter().zip(&b.samples);
    a.samples.len() == b.samples.len() && samples.all(|(a, b)| a.0 == b.0 && is_near(a.1, b.1, epsilon))
}

fn series(series: &Value) -> Series {
    let samples = match series.get("values") {
        Some(values) => values.as_array().unwrap().iter().map(sample).collect(),
        None => vec![sample(&series["value"])],
    };
    // serde_json sorts an object by name.
    Series {
        labels: series["metric"].to_string(),
        samples,
    }
}

fn sample(pair: &Value) -> (i64, u64) {
    let value: f64 = pair[1].as_str().unwrap().parse().unwrap();
    let bits = if value.is_nan() {
        f64::NAN.to_bits()
    } else {
        value.to_bits()
    };
    ((pair[0].as_f64().unwrap() * 1_000.0).round() as i64, bits)
}

fn is_near(a: u64, b: u64, epsilon: f64) -> bool {
    let (a_value, b_value) = (f64::from_bits(a), f64::from_bits(b));
    a == b
        || a_value == b_value
        || (a_value - b_value).abs() <= epsilon * a_value.abs().max(b_value.abs()).min(f64::MAX)
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(message) => write!(f, "error: {message}"),
            Self::Result { kind, series } => {
                let shown = |series: &Series| {
                    let values: Vec<String> = series
                        .samples
                        .iter()
                        .map(|(time, bits)| format!("{}@{time}", f64::from_bits(*bits)))
                        .collect();
                    format!("{} {}", series.labels, values.join(" "))
                };
                let text = series.iter().map(shown).collect::<Vec<_>>().join("; ");
                let cut: String = text.chars().take(SHOWN_CHARS).collect();
                write!(f, "{} series, {kind}: {cut}", series.len())
            }
        }
    }
}
