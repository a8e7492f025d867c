//! The answers of servers in one form, and the comparison of two of them by series, time and value.
//!
//! It ignores what servers may choose: the order of series, whether a function keeps the metric name, and which of several
//! equal series is among the ten largest.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

/// Values with at most this relative difference are equal: sums in another order, and a format with 15 digits.
pub(super) const TOLERANCE: f64 = 1e-9;
/// Values that differ by less than this are equal: VictoriaMetrics turns 5e-324, the value of some constants, into 0.
const ABSOLUTE_TOLERANCE: f64 = 1e-300;

/// An answer in the form that is compared: samples by series, times in milliseconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Answer {
    series: BTreeMap<String, Vec<(i64, f64)>>,
}

/// How series of two answers are matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Identity {
    /// By all labels, including the name.
    Labels,
    /// By all labels except the name.
    LabelsWithoutName,
    /// By the rank among the values of the same time.
    Rank,
}

/// The differences between answers and those of another server.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Comparison {
    /// Values that both servers have.
    pub compared: u64,
    /// Values that only the other server has.
    pub missing: u64,
    /// Values that only this server has.
    pub extra: u64,
    /// Values that differ by more than the tolerance.
    pub differing: u64,
    /// The largest relative difference.
    pub worst: f64,
    /// The first missing, extra or differing value.
    pub first: Option<String>,
}

#[derive(Deserialize)]
struct Body {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    result: Vec<Series>,
}

#[derive(Deserialize)]
struct Series {
    metric: BTreeMap<String, String>,
    #[serde(default)]
    values: Vec<(f64, String)>,
    value: Option<(f64, String)>,
}

impl Answer {
    /// Parses the response of a server.
    pub(super) fn parse(body: &[u8], identity: Identity) -> Result<Self> {
        let body: Body = serde_json::from_slice(body).context("the answer is not in Prometheus' format")?;
        let mut answer = Self::default();
        for mut series in body.data.result {
            let samples = series.values.iter().chain(&series.value);
            let samples: Vec<_> = samples.map(sample).collect::<Result<_>>()?;
            if identity != Identity::Labels {
                series.metric.remove("__name__");
            }
            let key = format!("{:?}", series.metric);
            if answer.series.insert(key, samples).is_some() {
                bail!("an answer has a series twice: {:?}", series.metric);
            }
        }
        Ok(match identity {
            Identity::Rank => answer.ranked(),
            _ => answer,
        })
    }

    /// Returns the number of values.
    pub(super) fn len(&self) -> usize {
        self.series.values().map(Vec::len).sum()
    }

    /// Replaces the series by ranks: the largest values of each time, then the second largest, and so on.
    fn ranked(self) -> Self {
        let mut by_time: BTreeMap<i64, Vec<f64>> = BTreeMap::new();
        for (time, value) in self.series.into_values().flatten() {
            by_time.entry(time).or_default().push(value);
        }
        let mut ranked = Self::default();
        for (time, mut values) in by_time {
            values.sort_unstable_by(|a, b| b.total_cmp(a));
            for (rank, value) in values.into_iter().enumerate() {
                let series = ranked.series.entry(format!("rank {rank}")).or_default();
                series.push((time, value));
            }
        }
        ranked
    }

    /// Adds the differences from another answer to a comparison.
    pub(super) fn compare(&self, other: &Self, tolerance: f64, query: &str, all: &mut Comparison) {
        let nothing = Vec::new();
        for (series, theirs) in &other.series {
            let ours = self.series.get(series).unwrap_or(&nothing);
            let theirs: BTreeMap<_, _> = theirs.iter().copied().collect();
            for (time, value) in ours {
                match theirs.get(time) {
                    Some(their) => all.value(*value, *their, tolerance, || {
                        format!("{query} at {time} is {value:?}, not {their:?}: {series}")
                    }),
                    None => all.extra(1, || {
                        format!("{query} at {time} is {value:?}, not missing: {series}")
                    }),
                }
            }
            let both = ours.iter().filter(|(time, _)| theirs.contains_key(time)).count();
            all.missing((theirs.len() - both) as u64, || {
                format!("{query} has {both} values, not {}: {series}", theirs.len())
            });
        }
        for (series, ours) in &self.series {
            if !other.series.contains_key(series) {
                all.extra(ours.len() as u64, || {
                    format!("{query} has {} values, not none: {series}", ours.len())
                });
            }
        }
    }
}

fn sample((time, value): &(f64, String)) -> Result<(i64, f64)> {
    let parsed = value
        .parse()
        .with_context(|| format!("{value:?} is not a number"))?;
    Ok(((time * 1_000.0).round() as i64, parsed))
}

impl Comparison {
    fn value(&mut self, ours: f64, theirs: f64, tolerance: f64, what: impl FnOnce() -> String) {
        self.compared += 1;
        let apart = apart(ours, theirs);
        self.worst = self.worst.max(apart);
        if apart > tolerance {
            self.differing += 1;
            self.first.get_or_insert_with(what);
        }
    }

    fn missing(&mut self, count: u64, what: impl FnOnce() -> String) {
        self.missing += count;
        if count > 0 {
            self.first.get_or_insert_with(what);
        }
    }

    fn extra(&mut self, count: u64, what: impl FnOnce() -> String) {
        self.extra += count;
        if count > 0 {
            self.first.get_or_insert_with(what);
        }
    }
}

/// Returns the relative difference, or 1 if that is not finite.
fn apart(a: f64, b: f64) -> f64 {
    if a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() < ABSOLUTE_TOLERANCE {
        return 0.0;
    }
    let apart = (a - b).abs() / a.abs().max(b.abs());
    if apart.is_finite() { apart } else { 1.0 }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    const BODY: &str = r#"{"status":"success","data":{"resultType":"matrix","result":[
        {"metric":{"__name__":"m","gpu":"0"},"values":[[15,"1"],[30.5,"2.5"]]},
        {"metric":{"__name__":"m","gpu":"1"},"values":[[15,"7"]]}]}}"#;

    fn compared(ours: &str, theirs: &str, identity: Identity) -> Comparison {
        let mut all = Comparison::default();
        let parse = |body: &str| Answer::parse(body.as_bytes(), identity).unwrap();
        parse(ours).compare(&parse(theirs), TOLERANCE, "m", &mut all);
        all
    }

    fn counts(all: &Comparison) -> [u64; 4] {
        [all.compared, all.missing, all.extra, all.differing]
    }

    #[test]
    fn each_kind_of_difference_is_counted() {
        for (ours, expected) in [
            (BODY.to_owned(), [3, 0, 0, 0]),
            (BODY.replace("2.5", "2.5000000001"), [3, 0, 0, 0]),
            (BODY.replace("2.5", "2.6"), [3, 0, 0, 1]),
            (BODY.replace("\"7\"", "\"NaN\""), [3, 0, 0, 1]),
            (BODY.replace(",[30.5,\"2.5\"]", ""), [2, 1, 0, 0]),
            (BODY.replace("30.5", "45"), [2, 1, 1, 0]),
            (BODY.replace("\"gpu\":\"1\"", "\"gpu\":\"2\""), [2, 1, 1, 0]),
        ] {
            let all = compared(&ours, BODY, Identity::Labels);
            assert_eq!(counts(&all), expected, "{all:?}");
            assert_eq!(all.first.is_some(), expected[1..] != [0, 0, 0]);
        }
    }

    #[test]
    fn distance_is_a_part_of_the_larger() {
        assert_eq!(
            [apart(-0.0, 0.0), apart(0.0, 5e-324), apart(f64::NAN, f64::NAN)],
            [0.0; 3]
        );
        assert_eq!(
            [apart(1.0, 2.0), apart(0.0, -3.0), apart(f64::INFINITY, 7.0)],
            [0.5, 1.0, 1.0]
        );
    }

    #[test]
    fn what_is_a_choice_is_left_aside() {
        let renamed = BODY.replace(r#""__name__":"m","#, "");
        assert_eq!(
            counts(&compared(&renamed, BODY, Identity::LabelsWithoutName)),
            [3, 0, 0, 0]
        );
        assert_eq!(
            counts(&compared(&renamed, BODY, Identity::Labels))[1..],
            [3, 3, 0]
        );
        let others = BODY.replace("\"gpu\":\"1\"", "\"gpu\":\"2\"");
        assert_eq!(counts(&compared(&others, BODY, Identity::Rank)), [3, 0, 0, 0]);
    }

    #[test]
    fn a_vector_is_read_as_a_matrix_with_one_time() {
        let vector = br#"{"data":{"result":[{"metric":{},"value":[1790000000.123,"+Inf"]}]}}"#;
        let answer = Answer::parse(vector, Identity::Labels).unwrap();
        let expected = ("{}".to_owned(), vec![(1_790_000_000_123, f64::INFINITY)]);
        assert_eq!(answer.series.into_iter().collect::<Vec<_>>(), [expected]);
        assert!(Answer::parse(b"{\"data\":{}}", Identity::Labels).is_err());
    }
}
