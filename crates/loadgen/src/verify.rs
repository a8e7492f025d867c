//! Reads back what was sent, through the query API, and compares every sample with its expected value.
//!
//! ```text
//! for each node, for each window of ticks:   {node="…",…}[N s]   at half a tick after the last
//!   lost      expected but not stored             changed   another value, by its bits
//!   doubled   stored twice at one time            strange   a time or a series that was not sent
//! ```

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::Fleet;
use crate::fleet::TICK_MS;
use crate::http::Server;

/// The number of ticks per query: about 2 MB of JSON for one node.
const WINDOW_TICKS: u64 = 300;

/// What was sent.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Time of tick 0, as the sender printed it, in milliseconds since the epoch.
    #[arg(long)]
    pub start_ms: i64,
    /// Number of ticks that were sent.
    #[arg(long)]
    pub ticks: u64,
    /// The first tick.
    #[arg(long, default_value_t = 0)]
    pub first_tick: u64,
    /// Checks only one node in this many.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub every: u32,
}

/// The result.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Samples that must be stored.
    pub expected: u64,
    /// Samples that are not stored.
    pub lost: u64,
    /// Samples that have another value.
    pub changed: u64,
    /// Samples that are stored twice at one time.
    pub doubled: u64,
    /// Samples with a time or a series that was not sent.
    pub strange: u64,
    /// The first difference.
    pub first: Option<String>,
}

impl Outcome {
    /// Returns true if every sample is stored once and unchanged.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.expected > 0 && self.lost + self.changed + self.doubled + self.strange == 0
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        self.first.get_or_insert_with(what);
    }
}

/// Reads and compares all samples.
///
/// # Errors
/// Fails if the fleet has too many metrics, or a response is not in Prometheus' format.
pub async fn run(server: &Server, fleet: Fleet, plan: &Plan) -> Result<Outcome> {
    fleet.check()?;
    let mut outcome = Outcome::default();
    for node in (0..fleet.nodes).step_by(plan.every as usize) {
        let window = Window::of(fleet, node, plan.start_ms);
        for first in (0..plan.ticks).step_by(WINDOW_TICKS as usize) {
            let ticks = plan.first_tick + first..plan.first_tick + (first + WINDOW_TICKS).min(plan.ticks);
            let matrix = fetch(server, &window, &ticks).await?;
            window.compare(&matrix, ticks, &mut outcome);
        }
    }
    Ok(outcome)
}

/// The labels of a series, with its name.
type Labels = BTreeMap<String, String>;

/// One series of an answer.
#[derive(Debug, Deserialize)]
struct Found {
    metric: Labels,
    values: Vec<(f64, String)>,
}

#[derive(Deserialize)]
struct Answer {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    result: Vec<Found>,
}

async fn fetch(server: &Server, window: &Window, ticks: &std::ops::Range<u64>) -> Result<Vec<Found>> {
    let query = format!("{}[{}s]", window.selector, ticks.end - ticks.start);
    let at_ms = window.zero_ms + (ticks.end as i64 - 1) * TICK_MS + TICK_MS / 2;
    let time = format!("{:.3}", at_ms as f64 / 1_000.0);
    let request = server
        .post("/api/v1/query")?
        .form(&[("query", query.as_str()), ("time", &time)]);
    let answer = request.send().await.context("cannot read samples back")?;
    let status = answer.status();
    let body = answer.bytes().await.context("the answer ended early")?;
    if !status.is_success() {
        bail!(
            "reading samples back: {status}: {}",
            String::from_utf8_lossy(&body[..body.len().min(300)])
        );
    }
    let answer: Answer = serde_json::from_slice(&body).context("the answer is not in Prometheus' format")?;
    Ok(answer.data.result)
}

/// The series of one node.
struct Window {
    fleet: Fleet,
    node: u32,
    selector: String,
    /// The time of its tick 0.
    zero_ms: i64,
    /// The series by their labels.
    series: HashMap<Labels, usize>,
}

impl Window {
    fn of(fleet: Fleet, node: u32, start_ms: i64) -> Self {
        let first = node as usize * fleet.series_per_node();
        let labelled = |series| {
            let labels = fleet.labels(series).into_iter();
            let labels: Labels = labels.map(|(name, value)| (name.to_owned(), value)).collect();
            (labels, series)
        };
        Self {
            fleet,
            node,
            selector: fleet.selector(node),
            zero_ms: fleet.time_ms(start_ms, node, 0),
            series: (first..first + fleet.series_per_node()).map(labelled).collect(),
        }
    }

    fn compare(&self, matrix: &[Found], ticks: std::ops::Range<u64>, outcome: &mut Outcome) {
        let count = (ticks.end - ticks.start) as usize;
        let mut seen: HashMap<usize, Vec<bool>> = self
            .series
            .values()
            .map(|series| (*series, vec![false; count]))
            .collect();
        for found in matrix {
            match self.series.get(&found.metric).copied() {
                Some(series) => {
                    let seen = seen
                        .get_mut(&series)
                        .expect("every series of the node has its marks");
                    self.compare_series(series, &found.values, &ticks, seen, outcome);
                }
                None => {
                    outcome.strange += found.values.len() as u64;
                    outcome.note(|| format!("a series that was not sent: {:?}", found.metric));
                }
            }
        }
        for (series, seen) in seen {
            outcome.expected += count as u64;
            let lost = seen.iter().filter(|seen| !**seen).count() as u64;
            outcome.lost += lost;
            if let Some(tick) = seen.iter().position(|seen| !seen) {
                outcome.note(|| {
                    format!(
                        "tick {} of {:?} is lost",
                        ticks.start + tick as u64,
                        self.fleet.labels(series)
                    )
                });
            }
        }
    }

    fn compare_series(
        &self,
        series: usize,
        values: &[(f64, String)],
        ticks: &std::ops::Range<u64>,
        seen: &mut [bool],
        outcome: &mut Outcome,
    ) {
        let signal = self.fleet.signal(series);
        for (time, text) in values {
            let since_ms = (time * 1_000.0).round() as i64 - self.zero_ms;
            let tick = u64::try_from(since_ms / TICK_MS).unwrap_or_default();
            if since_ms.rem_euclid(TICK_MS) != 0 || !ticks.contains(&tick) {
                outcome.strange += 1;
                outcome.note(|| {
                    format!(
                        "a sample that was not sent, at {time} of {}",
                        self.fleet.node_name(self.node)
                    )
                });
                continue;
            }
            if std::mem::replace(&mut seen[(tick - ticks.start) as usize], true) {
                outcome.doubled += 1;
                outcome.note(|| format!("tick {tick} of {:?} is stored twice", self.fleet.labels(series)));
            }
            let expected = signal.at(tick);
            if text.parse().map(f64::to_bits) != Ok(expected.to_bits()) {
                outcome.changed += 1;
                outcome.note(|| {
                    format!(
                        "tick {tick} of {:?} is {text}, not {expected:?}",
                        self.fleet.labels(series)
                    )
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Names;

    const FLEET: Fleet = Fleet {
        nodes: 2,
        gpus: 2,
        metrics: 5,
        seed: 9,
        names: Names::Dcgm,
        runs: 1,
    };
    const START_MS: i64 = 1_790_000_000_000;

    fn as_sent(ticks: std::ops::Range<u64>) -> Vec<Found> {
        let series = FLEET.series_per_node()..2 * FLEET.series_per_node();
        series
            .map(|series| Found {
                metric: FLEET
                    .labels(series)
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect(),
                values: ticks
                    .clone()
                    .map(|tick| {
                        (
                            FLEET.time_ms(START_MS, 1, tick) as f64 / 1_000.0,
                            FLEET.signal(series).at(tick).to_string(),
                        )
                    })
                    .collect(),
            })
            .collect()
    }

    fn compared(change: impl FnOnce(&mut Vec<Found>)) -> Outcome {
        let (mut matrix, mut outcome) = (as_sent(10..40), Outcome::default());
        change(&mut matrix);
        Window::of(FLEET, 1, START_MS).compare(&matrix, 10..40, &mut outcome);
        outcome
    }

    #[test]
    fn what_is_as_it_was_sent_is_whole() {
        let outcome = compared(|_| {});
        assert!(outcome.is_complete(), "{outcome:?}");
        assert_eq!(outcome.expected, 10 * 30);
        assert!(!Outcome::default().is_complete());
    }

    #[test]
    fn each_kind_of_damage_is_counted() {
        let counts = |outcome: &Outcome| [outcome.lost, outcome.changed, outcome.doubled, outcome.strange];
        type Damage = fn(&mut Vec<Found>);
        let cases: [(Damage, [u64; 4]); 6] = [
            (|matrix| drop(matrix[3].values.remove(4)), [1, 0, 0, 0]),
            (|matrix| drop(matrix.pop()), [30, 0, 0, 0]),
            (
                |matrix| matrix[1].values[2].1 = "17.000001".to_owned(),
                [0, 1, 0, 0],
            ),
            (
                |matrix| {
                    let again = matrix[0].values[5].clone();
                    matrix[0].values.insert(5, again);
                },
                [0, 0, 1, 0],
            ),
            (|matrix| matrix[0].values[5].0 += 0.001, [1, 0, 0, 1]),
            (
                |matrix| drop(matrix[0].metric.insert("job".to_owned(), "other".to_owned())),
                [30, 0, 0, 30],
            ),
        ];
        for (change, expected) in cases {
            let outcome = compared(change);
            assert_eq!(counts(&outcome), expected, "{outcome:?}");
            assert!(outcome.first.is_some());
        }
    }
}
