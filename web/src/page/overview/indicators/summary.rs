//! The summary of an indicator: the median, the worst by name, and the number of values.

use domain::api::stream::{Column, Request};
use domain::series::Labels;
use leptos::prelude::*;

use super::table::Indicator;
use crate::language::tr_with;
use crate::live::{Live, StreamMessage};

/// The summary of one source.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Summary {
    pub(super) median: f64,
    pub(super) count: f64,
    pub(super) worst: Option<Named>,
}

/// A value with the name of its rank or GPU.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Named {
    pub(super) name: String,
    /// Link to its run, else to the overview with its node selected.
    pub(super) href: String,
    pub(super) value: f64,
}

/// The sources of an indicator with their results. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct Watched {
    summaries: RwSignal<Vec<Option<Summary>>>,
}

impl Watched {
    /// Creates the sources without results.
    pub(super) fn new() -> Self {
        Self {
            summaries: RwSignal::new(vec![]),
        }
    }

    /// Queries all sources until the current owner is cleaned up.
    pub(super) fn follow(self, indicator: &'static Indicator, run: Option<&str>) {
        let live = expect_context::<Live>();
        self.summaries.set(vec![None; indicator.sources.len()]);
        for (n, source) in indicator.sources.iter().enumerate() {
            let query = source.summary(indicator.worst, run);
            live.watch(
                |id| Request::WatchInstant { id, query },
                move |message| {
                    let summary = match message {
                        StreamMessage::Frame { series, .. } => Summary::of(&series),
                        _ => None,
                    };
                    self.summaries.update(|summaries| summaries[n] = summary);
                },
            );
        }
    }

    /// Returns the first source with a result, and its summary.
    pub(super) fn first(self) -> Option<(usize, Summary)> {
        let summaries = self.summaries.read();
        let mut answers = summaries.iter().enumerate();
        answers.find_map(|(n, summary)| Some((n, summary.clone()?)))
    }
}

impl Summary {
    /// Reads the result of [`Source::summary`](super::table::Source::summary).
    fn of(series: &[Column]) -> Option<Self> {
        let part = |name: &str| {
            let column = series
                .iter()
                .find(|column| column.labels.get("is") == Some(name))?;
            Some((&column.labels, column.values.last().copied().flatten()?))
        };
        Some(Self {
            median: part("median")?.1,
            count: part("count")?.1,
            worst: part("worst").map(|(labels, value)| Named {
                name: name(labels),
                href: href(labels),
                value,
            }),
        })
    }
}

fn href(labels: &Labels) -> String {
    match (labels.get("run"), labels.get("node")) {
        (Some(run), _) => format!("/runs/{run}"),
        (None, Some(node)) => format!("/?sel={node}"),
        (None, None) => "/".to_owned(),
    }
}

/// Returns `rank 17 of llama on node-07` or `node-07 GPU 3`.
fn name(labels: &Labels) -> String {
    let who = match (labels.get("rank"), labels.get("run")) {
        (Some(rank), Some(run)) => tr_with("rank {rank} of {run}", &[("rank", &rank), ("run", &run)]),
        (Some(rank), None) => tr_with("rank {rank}", &[("rank", &rank)]),
        (None, Some(run)) => tr_with("of {run}", &[("run", &run)]),
        (None, None) => String::new(),
    };
    match (labels.get("node"), labels.get("gpu")) {
        (Some(node), Some(gpu)) => format!("{who} {node} GPU {gpu}").trim_start().to_owned(),
        (Some(node), None) if who.is_empty() => node.to_owned(),
        (Some(node), None) => tr_with("{who} on {node}", &[("who", &who), ("node", &node)]),
        (None, _) => who,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(pairs: &[(&str, &str)], value: f64) -> Column {
        let mut pairs: Vec<_> = pairs.to_vec();
        pairs.sort_unstable();
        Column {
            labels: Labels::from_trusted(pairs.into_iter().map(|(name, value)| (name.into(), value.into()))),
            values: vec![Some(value)],
            not_finite: vec![],
            min: vec![],
            max: vec![],
        }
    }

    #[test]
    fn the_worst_has_a_name_and_a_link() {
        let answer = [
            column(&[("is", "median")], 0.8),
            column(&[("is", "count")], 64.0),
            column(
                &[
                    ("is", "worst"),
                    ("node", "node-07"),
                    ("run", "llama"),
                    ("rank", "17"),
                ],
                0.4,
            ),
        ];
        let summary = Summary::of(&answer).expect("it is whole");
        let worst = summary.worst.expect("it is named");
        assert_eq!(
            (worst.name.as_str(), worst.href.as_str()),
            ("rank 17 of llama on node-07", "/runs/llama")
        );
        assert_eq!(
            name(&Labels::from_trusted([
                ("gpu".into(), "3".into()),
                ("node".into(), "n".into())
            ])),
            "n GPU 3"
        );
        assert_eq!(
            Summary::of(&answer[1..]),
            None,
            "without a median there is nothing to show"
        );
    }
}
