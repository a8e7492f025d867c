//! What the map can show: the time of a step, or of a part of it, all in seconds.

use crate::language::tr;

/// Up to this distance of columns, a column shows the last sample of each rank; beyond it, the mean of the column's samples.
const SAMPLE_STEP_S_MAX: i64 = 2;
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

    /// Returns one query for the whole map: the measure of each rank, and two series of the run without a rank.
    pub(super) fn query(self, run: &str, step_ms: i64) -> String {
        let of = |metric: &str| format!("{metric}{{run=\"{run}\"}}");
        let recent = |metric: &str| {
            let last = of(metric);
            let step_s = step_ms / 1_000;
            if step_s <= SAMPLE_STEP_S_MAX {
                return last;
            }
            // Steps may be longer than a column. The sum removes the metric's name, as the mean does: one series per rank.
            format!("(avg_over_time({last}[{step_s}s]) or ({last} + 0))")
        };
        let step = recent("train_step_seconds");
        let ranks = match self {
            Self::Step => step.clone(),
            // The share of compute is absent where waits for other ranks would be counted as compute.
            Self::Compute => format!("{} * {step}", recent("train_compute_ratio")),
            Self::Data => recent("train_data_seconds"),
            Self::Sync => recent("train_sync_seconds"),
            Self::Own => recent("train_own_seconds"),
        };
        let named =
            |query: &str, name: &str| format!("label_replace({query}, \"{SERIES}\", \"{name}\", \"\", \"\")");
        let typical = named(&format!("quantile(0.5, {step})"), TYPICAL);
        let highest = named(&format!("max({})", of("train_step")), STEP);
        format!("{ranks} or {typical} or {highest}")
    }
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
    fn wide_columns_are_means_and_narrow_ones_the_last_sample() {
        let run_series = "label_replace(quantile(0.5, train_step_seconds{run=\"r\"}), \"of\", \"typical\", \"\", \"\") or \
                          label_replace(max(train_step{run=\"r\"}), \"of\", \"step\", \"\", \"\")";
        assert_eq!(
            Measure::Sync.query("r", 2_000),
            format!("train_sync_seconds{{run=\"r\"}} or {run_series}")
        );
        assert_eq!(
            Measure::Compute.query("r", 1_000),
            format!("train_compute_ratio{{run=\"r\"}} * train_step_seconds{{run=\"r\"}} or {run_series}")
        );
        let wide = Measure::Data.query("r", 12_000);
        let ranks =
            "(avg_over_time(train_data_seconds{run=\"r\"}[12s]) or (train_data_seconds{run=\"r\"} + 0)) or ";
        assert!(wide.starts_with(ranks), "{wide}");
    }
}
