//! The kinds of queries, with the names of `loadgen query --kind`.

use clap::ValueEnum;

/// One kind of query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Kind {
    /// `NAME`: one metric of all GPUs, one hour at 15 s.
    Metric,
    /// `{node="…",gpu="…"}`: all metrics of one GPU, six hours at 30 s.
    Gpu,
    /// `topk(10, NAME)`, one hour at 15 s.
    Topk,
    /// `quantile by (node) (0.99, NAME)`, one hour at 15 s.
    Quantile,
    /// `rate(COUNTER[5m])` of all GPUs, one hour at 15 s.
    Rate,
    /// `max by (node) (NAME)`, one hour at 15 s.
    Max,
    /// One series, 30 days at one hour.
    Month,
    /// `avg_over_time(…[1h])` of one series, 30 days at one hour.
    MonthAverage,
    /// `max by (node) (NAME)` at one time, like a recording rule.
    RuleMax,
    /// `NAME > LIMIT` at one time, like an alerting rule.
    RuleThreshold,
    /// Twenty dashboards at once, each with eight panels one after the other.
    Dashboards,
}

/// Dashboards drawn at once.
pub(super) const CLIENTS: u64 = 20;
/// Panels of each dashboard.
const PANELS: u64 = 8;
/// How often the dashboards are drawn per fifty answers of other kinds.
const DRAWN: u64 = 3;

impl Kind {
    /// Returns the name on a command line.
    pub(super) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Returns the text of a row.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Metric => "1 metric × all GPUs, 1 h, step 15 s",
            Self::Gpu => "1 GPU × all metrics, 6 h, step 30 s",
            Self::Topk => "topk(10, …), 1 h, step 15 s",
            Self::Quantile => "quantile by (node) (0.99, …), 1 h, step 15 s",
            Self::Rate => "rate(…[5m]) × all GPUs, 1 h, step 15 s",
            Self::Max => "max by (node) (…), 1 h, step 15 s",
            Self::Month => "1 series, 30 d, step 1 h",
            Self::MonthAverage => "avg_over_time(…[1h]) of 1 series, 30 d, step 1 h",
            Self::RuleMax => "rule: max by (node) (…), instant",
            Self::RuleThreshold => "rule: … > limit, instant",
            Self::Dashboards => "20 dashboards at once, 8 panels each, 1 h, step 15 s",
        }
    }

    /// Returns the number of timed answers if most kinds have `repeats`. Queries of a millisecond run more often, because CPU time is
    /// counted in ticks of 10 ms.
    pub(super) fn repeats(self, repeats: u64) -> u64 {
        match self {
            Self::RuleMax | Self::RuleThreshold => 10 * repeats,
            Self::Month | Self::MonthAverage => 4 * repeats,
            Self::Dashboards => CLIENTS * PANELS * (DRAWN * repeats).div_ceil(50),
            _ => repeats,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_the_generator_spells_them() {
        assert_eq!(
            (Kind::Metric.name(), Kind::MonthAverage.name()),
            ("metric".to_owned(), "month-average".to_owned())
        );
    }

    #[test]
    fn dashboards_are_drawn_in_whole_rounds() {
        assert_eq!(Kind::Dashboards.repeats(50), 3 * 160);
        assert_eq!(Kind::Dashboards.repeats(200), 12 * 160);
        assert_eq!(Kind::Dashboards.repeats(1), 160);
    }
}
