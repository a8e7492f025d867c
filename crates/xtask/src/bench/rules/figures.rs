//! The table: CPU without and with rules and analysers, how far they are behind, and the targets.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;

use super::collector::LoadedCollector;
use super::lag::Lags;
use crate::bench::against::ratio::{about, interval, median};
use crate::bench::distribution::Distribution;
use crate::bench::table::{figure, grid};
use crate::measure::generator::number;

/// The targets: CPU as a share of one core, and seconds.
const CORES_MAX: f64 = 0.3;
const BEHIND_S_MAX: f64 = 1.0;
/// The counter of messages that did not fit into the analysers' queue.
const DROPPED: &str = "lockstep_analysis_dropped_total ";

const HEAD: [&str; 6] = ["", "without", "with", "difference", "interval", "target"];

/// The results of all rounds.
#[derive(Debug)]
pub(super) struct Measured {
    slice: Duration,
    /// The share of a core that the collector used in each slice. Those at the same place belong together.
    pub(super) without: Vec<f64>,
    pub(super) with: Vec<f64>,
    pub(super) lags: Lags,
    /// Messages of agents that were not analysed; `None` if it is unknown.
    dropped: Option<f64>,
    /// About the load.
    load: String,
}

impl Measured {
    pub(super) fn new(slice: Duration) -> Self {
        Self {
            slice,
            without: Vec::new(),
            with: Vec::new(),
            lags: Lags::default(),
            dropped: None,
            load: String::new(),
        }
    }

    /// Waits until the agents have sent everything, and adds what they and the collector counted.
    pub(super) fn finish(mut self, collector: LoadedCollector, within: Duration) -> Result<Self> {
        let (outcome, metrics) = collector.finish(within)?;
        self.dropped = dropped(&metrics);
        self.load = format!(
            "The agents' {} samples were acknowledged after {} ms (p50) and {} ms (p99); {} batches were refused.",
            number(&outcome, "/samples")?,
            figure(number(&outcome, "/ack/p50_ms")?),
            figure(number(&outcome, "/ack/p99_ms")?),
            number(&outcome, "/refused")?,
        );
        Ok(self)
    }

    /// Describes the results so far in one line.
    pub(super) fn progress(&self) -> String {
        format!(
            "{} of a core without, {} with rules and analysers",
            figure(median(&self.without)),
            figure(median(&self.with))
        )
    }

    /// Returns true if all targets are met.
    pub(super) fn is_met(&self) -> bool {
        self.targets().iter().all(|(value, bound)| value <= bound)
    }

    pub(super) fn table(&self) -> String {
        let differences = self.differences();
        let (low, high) = interval(&differences);
        let [cores, rules, analysers, dropped] = self.targets().map(|(value, bound)| verdict(value, bound));
        let mut rows = vec![vec![
            "collector's CPU, share of a core".to_owned(),
            figure(median(&self.without)),
            figure(median(&self.with)),
            figure(median(&differences)),
            format!("{}–{}", figure(low), figure(high)),
            cores,
        ]];
        let only_with = |what: &str, value: f64, target: String| {
            let empty = "–".to_owned();
            let value = if value.is_nan() {
                empty.clone()
            } else {
                figure(value)
            };
            vec![
                what.to_owned(),
                empty.clone(),
                value,
                empty.clone(),
                empty,
                target,
            ]
        };
        for (name, lag_s, target) in [
            ("rules", &self.lags.rules_s, rules),
            ("analysers", &self.lags.analysers_s, analysers),
        ] {
            let lag_s = Distribution::new(lag_s.clone());
            let p50 = format!("{name} behind, s: p50");
            rows.push(only_with(&p50, lag_s.median(), String::new()));
            rows.push(only_with("… p99", lag_s.quantile(0.99), target));
            rows.push(only_with("… longest", lag_s.max(), String::new()));
        }
        rows.push(only_with(
            "messages of agents that were not analysed",
            self.dropped.unwrap_or(f64::NAN),
            dropped,
        ));
        grid(&HEAD, &rows)
    }

    /// Returns notes for readers of the table.
    pub(super) fn notes(&self) -> Vec<String> {
        let count = u32::try_from(self.with.len()).unwrap_or(u32::MAX);
        let names = |names: &BTreeSet<String>| match names.len() {
            0 => "none".to_owned(),
            _ => names.iter().cloned().collect::<Vec<_>>().join(", "),
        };
        vec![
            format!(
                "CPU is user and system time of the collector's process, from /proc, in {count} slices of {} s on each side. The difference is \
                 the median of the differences between slices at the same place of a round. {}",
                self.slice.as_secs(),
                about(count)
            ),
            format!(
                "With: {} rules, the samples that they write, the analysers, and the requests that read the figures below. Alerts that fired: {}. \
                 Rules that could not be evaluated: {}.",
                self.lags.rules,
                names(&self.lags.firing),
                names(&self.lags.failed)
            ),
            "Rules are behind by how long the slowest group's last evaluation took, or by how long its next one is overdue. Analysers are \
             behind by the age of their last evaluation beyond their period of 0.5 s; a message that waits for them longer than the queue \
             allows is not analysed."
                .to_owned(),
            self.load.clone(),
        ]
    }

    /// Returns each figure that has a target, with the target. NaN meets none.
    fn targets(&self) -> [(f64, f64); 4] {
        let p99 = |lag_s: &[f64]| Distribution::new(lag_s.to_vec()).quantile(0.99);
        [
            (median(&self.differences()), CORES_MAX),
            (p99(&self.lags.rules_s), BEHIND_S_MAX),
            (p99(&self.lags.analysers_s), BEHIND_S_MAX),
            (self.dropped.unwrap_or(f64::NAN), 0.0),
        ]
    }

    fn differences(&self) -> Vec<f64> {
        let pairs = self.without.iter().zip(&self.with);
        pairs.map(|(without, with)| with - without).collect()
    }
}

fn verdict(value: f64, bound: f64) -> String {
    let word = if value.is_nan() {
        "Not measured"
    } else if value <= bound {
        "Met"
    } else {
        "Not met"
    };
    format!("≤ {bound}: {word}")
}

fn dropped(metrics: &str) -> Option<f64> {
    let mut lines = metrics.lines();
    lines.find_map(|line| line.strip_prefix(DROPPED)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(more: f64, behind_s: f64, dropped: Option<f64>) -> Measured {
        let without = vec![0.2, 0.3, 0.25, 0.2, 0.21];
        Measured {
            with: without.iter().map(|share| share + more).collect(),
            without,
            lags: Lags {
                rules_s: vec![0.1, behind_s],
                analysers_s: vec![0.0, 0.2],
                ..Lags::default()
            },
            dropped,
            ..Measured::new(Duration::from_secs(30))
        }
    }

    #[test]
    fn each_target_is_judged_by_its_own_figure() {
        let line = |measured: &Measured, what: &str| {
            let table = measured.table();
            let line = table.lines().find(|line| line.contains(what)).map(str::to_owned);
            line.unwrap_or_else(|| panic!("no {what} in {table}"))
        };
        let good = measured(0.29, 0.9, Some(0.0));
        assert!(good.is_met());
        let cpu = line(&good, "CPU");
        assert!(cpu.contains("0.290") && cpu.contains("≤ 0.3: Met"), "{cpu}");
        let costly = measured(0.31, 0.9, Some(0.0));
        assert!(!costly.is_met() && line(&costly, "CPU").contains("Not met"));
        let late = measured(0.1, 1.1, Some(0.0));
        assert!(!late.is_met() && line(&late, "p99").contains("≤ 1: Not met"));
        let unknown = measured(0.1, 0.1, None);
        assert!(!unknown.is_met() && line(&unknown, "not analysed").contains("Not measured"));
    }

    #[test]
    fn the_counter_is_found_among_the_metrics() {
        let page =
            "# TYPE lockstep_analysis_dropped_total counter\nlockstep_analysis_dropped_total 7\nup 1\n";
        assert_eq!(dropped(page), Some(7.0));
        assert_eq!(dropped("up 1\n"), None);
    }
}
