//! The compared metrics, and the query that reads them with the steps of one rank.
//!
//! All samples of a rank have the time of its step, so a value and the step with the same time belong together. The query returns a value
//! only together with the step of the same sample. It looks back only one interval, so it returns no sample twice.
//!
//! A long attempt has one value per interval. Then the query also returns the least and the greatest value of each interval, so that a spike
//! between two values is visible.

use domain::metric::Unit;
use domain::time::TimestampMs;

use crate::language::tr;

/// Maximum number of intervals, which is the maximum number of points of a line.
const POINTS: i64 = 1_000;
/// Samples arrive once per second, so a smaller interval gives no more values.
const INTERVAL_MS_MIN: i64 = 1_000;
/// The label that names a part of the answer.
pub(super) const PART: &str = "part";
/// What follows the name of a metric in [`PART`] for its extremes within an interval, and the function that returns them.
pub(super) const EXTREMES: [(&str, &str); 2] = [(" least", "min_over_time"), (" greatest", "max_over_time")];
/// The series of the steps, and the value of [`PART`] for them.
pub(super) const STEP: &str = "train_step";

/// A compared metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Metric {
    Loss,
    GradientNorm,
    Throughput,
    StepTime,
}

impl Metric {
    /// The metrics in the order of the page.
    pub(super) const ALL: [Self; 4] = [Self::Loss, Self::GradientNorm, Self::Throughput, Self::StepTime];

    /// Returns the name of the series, which is also the value of [`PART`].
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Loss => "train_loss",
            Self::GradientNorm => "train_grad_norm",
            Self::Throughput => "train_samples_per_second",
            Self::StepTime => "train_step_seconds",
        }
    }

    pub(super) fn unit(self) -> Unit {
        match self {
            Self::Loss | Self::GradientNorm => Unit::Number,
            Self::Throughput => Unit::PerSecond,
            Self::StepTime => Unit::Seconds,
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Loss => tr("Loss"),
            Self::GradientNorm => tr("Gradient norm"),
            Self::Throughput => tr("Throughput"),
            Self::StepTime => tr("Step time"),
        }
    }

    pub(super) fn hint(self) -> &'static str {
        match self {
            Self::Loss => tr("Lower is better. A red triangle: NaN or infinite."),
            Self::GradientNorm => tr("Before clipping."),
            Self::Throughput => tr("Samples per second of this rank. Higher is better."),
            Self::StepTime => tr("Mean over the steps of a sample. Lower is better."),
        }
    }
}

/// The samples of one rank in one attempt.
pub(super) struct Samples<'a> {
    pub(super) run: &'a str,
    pub(super) rank: u32,
    /// The start of the attempt.
    pub(super) start_ms: TimestampMs,
    /// Its end, or now.
    pub(super) end_ms: TimestampMs,
}

impl Samples<'_> {
    /// Returns the query, and the other parameters of the range query as text for an address. The last interval ends with the attempt.
    pub(super) fn query(&self) -> (String, String) {
        let interval_ms = self.interval_ms();
        let (start, end) = (seconds(self.first_ms()), seconds(self.end_ms));
        let interval_s = interval_ms / 1_000;
        let grid = format!("&start={start}&end={end}&step={interval_s}&lookback_delta={interval_s}");
        let mut parts = self.parts();
        if self.is_thinned() {
            self.add_extremes(&mut parts, interval_s);
        }
        (parts.join(" or "), grid)
    }

    /// Returns the length of an interval, which has one value.
    pub(super) fn interval_ms(&self) -> i64 {
        interval_ms(self.range_ms())
    }

    /// Returns true if an interval may have several samples, so that values are left out.
    pub(super) fn is_thinned(&self) -> bool {
        self.interval_ms() > INTERVAL_MS_MIN
    }

    /// Returns the end of the first interval. It begins before the attempt.
    pub(super) fn first_ms(&self) -> TimestampMs {
        let interval_ms = self.interval_ms();
        self.end_ms - self.range_ms() / interval_ms * interval_ms
    }

    fn range_ms(&self) -> i64 {
        (self.end_ms - self.start_ms).max(0)
    }

    /// Samples from before the start of the attempt belong to an earlier one, also in the first interval.
    fn parts(&self) -> Vec<String> {
        let start = seconds(self.start_ms);
        let steps = self.selector(STEP);
        let mut parts = vec![part(STEP, &steps, &format!("timestamp({steps}) > {start}"))];
        for metric in Metric::ALL {
            let values = self.selector(metric.name());
            let same_time = format!("(timestamp({values}) == timestamp({steps})) > {start}");
            parts.push(part(metric.name(), &values, &same_time));
        }
        let norm = self.norm_of_run();
        let is_later = format!("timestamp({norm}) > {start}");
        parts.push(part(Metric::GradientNorm.name(), &norm, &is_later));
        parts
    }

    /// Adds the least and the greatest value of each interval. They need not be those of its last step.
    fn add_extremes(&self, parts: &mut Vec<String>, interval_s: i64) {
        for metric in Metric::ALL {
            add_extremes_of(parts, metric, &self.selector(metric.name()), interval_s);
        }
        add_extremes_of(parts, Metric::GradientNorm, &self.norm_of_run(), interval_s);
    }

    /// A rule computes the norm of a sharded model from the values of all ranks, so its samples have times of their own.
    fn norm_of_run(&self) -> String {
        format!(
            "{}{{run=\"{}\",rank=\"\"}}",
            Metric::GradientNorm.name(),
            self.run
        )
    }

    fn selector(&self, metric: &str) -> String {
        format!("{metric}{{run=\"{}\",rank=\"{}\"}}", self.run, self.rank)
    }
}

fn add_extremes_of(parts: &mut Vec<String>, metric: Metric, selector: &str, interval_s: i64) {
    for (suffix, function) in EXTREMES {
        let extreme = format!("{function}({selector}[{interval_s}s])");
        parts.push(named(&extreme, &format!("{}{suffix}", metric.name())));
    }
}

fn part(name: &str, selector: &str, filter: &str) -> String {
    named(&format!("{selector} and ({filter})"), name)
}

fn named(query: &str, name: &str) -> String {
    format!("label_replace({query}, \"{PART}\", \"{name}\", \"\", \"\")")
}

/// Returns the length of an interval: the least number of whole seconds with at most [`POINTS`] intervals.
fn interval_ms(range_ms: i64) -> i64 {
    let seconds = (range_ms / POINTS + INTERVAL_MS_MIN - 1) / INTERVAL_MS_MIN;
    seconds.max(1) * INTERVAL_MS_MIN
}

fn seconds(at_ms: TimestampMs) -> String {
    format!("{}.{:03}", at_ms.div_euclid(1_000), at_ms.rem_euclid(1_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(start_ms: i64, end_ms: i64) -> Samples<'static> {
        Samples {
            run: "ddp-1",
            rank: 3,
            start_ms,
            end_ms,
        }
    }

    #[test]
    fn the_last_interval_ends_with_the_attempt_and_points_have_a_bound() {
        for (start_ms, end_ms, expected) in [
            (10_500, 12_700, "&start=10.700&end=12.700&step=1&lookback_delta=1"),
            (10_500, 10_500, "&start=10.500&end=10.500&step=1&lookback_delta=1"),
            (
                0,
                86_400_000,
                "&start=9.000&end=86400.000&step=87&lookback_delta=87",
            ),
        ] {
            assert_eq!(samples(start_ms, end_ms).query().1, expected);
        }
        for range_ms in [1, 999_999, 1_000_001, 3_600_000, 30 * 86_400_000] {
            assert!(range_ms / interval_ms(range_ms) <= POINTS, "{range_ms}");
        }
    }

    #[test]
    fn a_value_is_read_only_with_the_step_of_its_sample() {
        let (query, _) = samples(10_500, 12_700).query();
        let parts: Vec<&str> = query.split(" or ").collect();
        let step = r#"train_step{run="ddp-1",rank="3"}"#;
        let loss = r#"train_loss{run="ddp-1",rank="3"}"#;
        assert_eq!(parts.len(), Metric::ALL.len() + 2);
        assert_eq!(
            parts[0],
            format!(
                r#"label_replace({step} and (timestamp({step}) > 10.500), "part", "train_step", "", "")"#
            )
        );
        assert_eq!(
            parts[1],
            format!(
                r#"label_replace({loss} and ((timestamp({loss}) == timestamp({step})) > 10.500), "part", "train_loss", "", "")"#
            )
        );
        assert!(
            parts[5].contains(r#"train_grad_norm{run="ddp-1",rank=""}"#),
            "{query}"
        );
    }

    #[test]
    fn a_long_attempt_has_the_extremes_of_its_intervals() {
        let (query, _) = samples(0, 2_000_000).query();
        let parts: Vec<&str> = query.split(" or ").collect();
        assert_eq!(parts.len(), Metric::ALL.len() + 2 + 2 * (Metric::ALL.len() + 1));
        for extreme in [
            r#"label_replace(min_over_time(train_loss{run="ddp-1",rank="3"}[2s]), "part", "train_loss least", "", "")"#,
            r#"label_replace(max_over_time(train_loss{run="ddp-1",rank="3"}[2s]), "part", "train_loss greatest", "", "")"#,
        ] {
            assert!(parts.contains(&extreme), "{query}");
        }
        assert!(!samples(0, 1_000_000).is_thinned(), "it has all its samples");
    }
}
