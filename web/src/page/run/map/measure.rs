//! What the map can show: the time of a step, or of a part of it, all in seconds.

use crate::language::tr;

/// The share of a step in forward, backward and optimizer.
const COMPUTE_SHARE: &str = "train_compute_ratio";
/// The label that tells the two series without a rank apart from those of ranks.
pub(super) const SERIES: &str = "of";
/// The series with the median of the step times of all ranks.
pub(super) const TYPICAL: &str = "typical";
/// The series with the highest step of all ranks.
pub(super) const STEP: &str = "step";

/// A measure of each rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Measure {
    /// The whole step.
    Step,
    /// Forward, backward and optimizer.
    Compute,
    /// The wait for data.
    Data,
    /// The exposed wait for other ranks.
    Sync,
    /// Forward, backward and optimizer: mean of a minute without its slowest step.
    Own,
}

impl Measure {
    /// All measures, the default first.
    pub(super) const ALL: [Self; 5] = [Self::Step, Self::Compute, Self::Data, Self::Sync, Self::Own];

    /// Returns the measure with this name; the default for no name or an unknown one.
    pub(super) fn of(name: Option<&str>) -> Self {
        let named = Self::ALL.into_iter().find(|measure| Some(measure.name()) == name);
        named.unwrap_or(Self::Step)
    }

    /// Returns the name in the address.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Compute => "compute",
            Self::Data => "data",
            Self::Sync => "sync",
            Self::Own => "own",
        }
    }

    /// Returns the name for users.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Step => tr("step time"),
            Self::Compute => tr("compute"),
            Self::Data => tr("wait for data"),
            Self::Sync => tr("wait for other ranks"),
            Self::Own => tr("own compute, mean of a minute"),
        }
    }

    /// Returns one query for the whole map: the worst value of the measure within each column for each rank, and two series of the run without
    /// a rank.
    ///
    /// The worst wait for other ranks is the longest one. If one rank is late once, all others wait once, and the late rank differs from them.
    pub(super) fn query(self, run: &str, step_ms: i64) -> String {
        let worst = |metric: &str| over_column("max_over_time", metric, run, step_ms);
        let ranks = match self {
            Self::Step => worst("train_step_seconds_max"),
            // Each part has its own longest step. Their sum is never shorter than the longest compute of one step.
            Self::Compute => {
                let forward = worst("train_forward_seconds_max");
                let backward = worst("train_backward_seconds_max");
                let optimizer = worst("train_optimizer_seconds_max");
                // The share of compute is absent where waits for other ranks would be counted as compute.
                let share = worst(COMPUTE_SHARE);
                format!("({forward} + {backward} + ({optimizer} or {forward} * 0)) and {share}")
            }
            Self::Data => worst("train_data_seconds_max"),
            Self::Sync => worst("train_sync_seconds_max"),
            Self::Own => worst("train_own_seconds"),
        };
        let named =
            |query: &str, name: &str| format!("label_replace({query}, \"{SERIES}\", \"{name}\", \"\", \"\")");
        // Differences are shares of a usual step, which is a mean.
        let typical = named(
            &format!("quantile(0.5, {})", Self::Step.mean(run, step_ms)),
            TYPICAL,
        );
        let highest = named(&format!("max(train_step{{run=\"{run}\"}})"), STEP);
        format!("{ranks} or {typical} or {highest}")
    }

    /// Returns the query for the mean of the measure within each column for each rank.
    pub(super) fn mean(self, run: &str, step_ms: i64) -> String {
        let mean = |metric: &str| over_column("avg_over_time", metric, run, step_ms);
        match self {
            Self::Step => mean("train_step_seconds"),
            Self::Compute => format!("{} * {}", mean(COMPUTE_SHARE), mean("train_step_seconds")),
            Self::Data => mean("train_data_seconds"),
            Self::Sync => mean("train_sync_seconds"),
            Self::Own => mean("train_own_seconds"),
        }
    }
}

/// Returns the query for a function over the samples of a metric in each column. Steps may be longer than a column: a column without a sample has
/// the last one. The sum removes the metric's name, as the function does, so that there is one series per rank.
fn over_column(function: &str, metric: &str, run: &str, step_ms: i64) -> String {
    let last = format!("{metric}{{run=\"{run}\"}}");
    let step_s = step_ms / 1_000;
    format!("({function}({last}[{step_s}s]) or ({last} + 0))")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_a_measure() {
        for measure in Measure::ALL {
            assert_eq!(Measure::of(Some(measure.name())), measure);
        }
        assert_eq!(Measure::of(None), Measure::Step);
        assert_eq!(Measure::of(Some("nothing")), Measure::Step);
    }

    #[test]
    fn a_column_has_the_worst_value_of_each_rank() {
        let part = |function: &str, metric: &str| {
            format!("({function}({metric}{{run=\"r\"}}[12s]) or ({metric}{{run=\"r\"}} + 0))")
        };
        let [worst, mean] =
            ["max_over_time", "avg_over_time"].map(|name| move |metric: &str| part(name, metric));
        let of_run = format!(
            "label_replace(quantile(0.5, {}), \"of\", \"typical\", \"\", \"\") or \
             label_replace(max(train_step{{run=\"r\"}}), \"of\", \"step\", \"\", \"\")",
            mean("train_step_seconds")
        );
        for (measure, metric) in [
            (Measure::Step, "train_step_seconds_max"),
            (Measure::Data, "train_data_seconds_max"),
            (Measure::Sync, "train_sync_seconds_max"),
            (Measure::Own, "train_own_seconds"),
        ] {
            let expected = format!("{} or {of_run}", worst(metric));
            assert_eq!(measure.query("r", 12_000), expected);
        }
        assert_eq!(Measure::Sync.mean("r", 12_000), mean("train_sync_seconds"));
        let compute = Measure::Compute.query("r", 12_000);
        let forward = worst("train_forward_seconds_max");
        assert!(compute.starts_with(&format!("({forward} + ")), "{compute}");
        let share = format!(" and {} or {of_run}", worst("train_compute_ratio"));
        assert!(compute.ends_with(&share), "{compute}");
    }
}
