//! What the map can show: the time of a step, or of a part of it, all in seconds.

use domain::api::alerts::{AlertView, RankState};

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

    /// Returns the measure with this name.
    pub(super) fn of(name: Option<&str>) -> Option<Self> {
        Self::ALL.into_iter().find(|measure| Some(measure.name()) == name)
    }

    /// Returns the measure that shows the culprit of an alert; `None` if no rank of this run is late. Ranks that wait for a late one have the
    /// same step time as it.
    pub(super) fn of_late_rank(alert: &AlertView, run: &str) -> Option<Self> {
        if alert.labels.get("run") != Some(run) || alert.rank_state() != Some(RankState::Late) {
            return None;
        }
        Some(match alert.labels.get("phase") {
            Some("data") => Self::Data,
            Some("forward" | "backward" | "optimizer") => Self::Compute,
            // The others wait for it, and it does not wait.
            Some(_) => Self::Sync,
            // Found by its compute or by its clock.
            None => Self::Own,
        })
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
    use domain::api::alerts::AlertState;
    use domain::event::Severity;
    use domain::series::Labels;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        Labels::new(pairs.iter().copied()).expect("valid labels")
    }

    #[test]
    fn an_address_names_a_measure() {
        for measure in Measure::ALL {
            assert_eq!(Measure::of(Some(measure.name())), Some(measure));
        }
        assert_eq!(Measure::of(None), None);
        assert_eq!(Measure::of(Some("nothing")), None);
    }

    #[test]
    fn the_phase_of_a_late_rank_names_the_measure_that_shows_it() {
        let alert = |labels, annotations| AlertView {
            fingerprint: "f".to_owned(),
            rule: "StragglerRank".to_owned(),
            state: AlertState::Firing,
            severity: Severity::Warning,
            labels,
            annotations,
            value: "0.2".to_owned(),
            active_ms: 0,
            fired_ms: None,
            resolved_ms: None,
            evidence: vec![],
        };
        let of = |phase: Option<&str>, state: &str| {
            let mut pairs = vec![("run", "r"), ("rank", "17")];
            pairs.extend(phase.map(|phase| ("phase", phase)));
            alert(labels(&pairs), labels(&[("rank_state", state)]))
        };
        for (phase, expected) in [
            (Some("data"), Measure::Data),
            (Some("forward"), Measure::Compute),
            (Some("backward"), Measure::Compute),
            (Some("optimizer"), Measure::Compute),
            (Some("host"), Measure::Sync),
            (None, Measure::Own),
        ] {
            let late = of(phase, "late");
            assert_eq!(Measure::of_late_rank(&late, "r"), Some(expected), "{phase:?}");
            assert_eq!(Measure::of_late_rank(&late, "other"), None);
        }
        assert_eq!(Measure::of_late_rank(&of(Some("data"), "stuck"), "r"), None);
        let of_gpu = alert(labels(&[("run", "r")]), Labels::empty());
        assert_eq!(Measure::of_late_rank(&of_gpu, "r"), None);
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
