//! What rules cost and how they fare, on `/metrics`: Prometheus' own names with `lockstep_` for `prometheus_`.

use prometheus::{Gauge, GaugeVec, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry, histogram_opts};

use crate::self_metrics::register;

/// All of them, by group: `file;group`.
#[derive(Clone)]
pub(super) struct RuleMetrics {
    pub(super) evaluations: IntCounterVec,
    pub(super) failures: IntCounterVec,
    pub(super) seconds: HistogramVec,
    pub(super) iterations: IntCounterVec,
    pub(super) missed: IntCounterVec,
    pub(super) rules: IntGaugeVec,
    pub(super) interval: GaugeVec,
    pub(super) last_seconds: GaugeVec,
    pub(super) last_at: GaugeVec,
    pub(super) last_samples: GaugeVec,
    pub(super) reload_worked: Gauge,
    pub(super) reloaded_at: Gauge,
}

const GROUP: &str = "rule_group";

impl RuleMetrics {
    /// Registers them.
    ///
    /// # Panics
    /// When the registry has them already, which is a mistake in the code.
    pub(super) fn new(registry: &Registry) -> Self {
        let count = |name, help| register(registry, IntCounterVec::new(Opts::new(name, help), &[GROUP]));
        let level = |name, help| register(registry, GaugeVec::new(Opts::new(name, help), &[GROUP]));
        let seconds = histogram_opts!(
            "lockstep_rule_evaluation_duration_seconds",
            "Time of evaluating one rule.",
            vec![0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 30.0]
        );
        Self {
            evaluations: count("lockstep_rule_evaluations_total", "Rules evaluated."),
            failures: count(
                "lockstep_rule_evaluation_failures_total",
                "Rules whose evaluation failed, or whose samples could not be stored.",
            ),
            seconds: register(registry, HistogramVec::new(seconds, &[GROUP])),
            iterations: count(
                "lockstep_rule_group_iterations_total",
                "Evaluations of the group that were due, missed ones included.",
            ),
            missed: count(
                "lockstep_rule_group_iterations_missed_total",
                "Evaluations of the group left out because the one before took too long.",
            ),
            rules: register(
                registry,
                IntGaugeVec::new(
                    Opts::new("lockstep_rule_group_rules", "Rules in the group."),
                    &[GROUP],
                ),
            ),
            interval: level(
                "lockstep_rule_group_interval_seconds",
                "Time between evaluations of the group.",
            ),
            last_seconds: level(
                "lockstep_rule_group_last_duration_seconds",
                "Time of the group's last evaluation.",
            ),
            last_at: level(
                "lockstep_rule_group_last_evaluation_timestamp_seconds",
                "When the group was last evaluated.",
            ),
            last_samples: level(
                "lockstep_rule_group_last_evaluation_samples",
                "Samples the group's last evaluation gave.",
            ),
            reload_worked: register(
                registry,
                Gauge::new(
                    "lockstep_rules_last_reload_successful",
                    "Whether the rule files could be used when they were last read.",
                ),
            ),
            reloaded_at: register(
                registry,
                Gauge::new(
                    "lockstep_rules_last_reload_success_timestamp_seconds",
                    "When rule files were last read and could be used.",
                ),
            ),
        }
    }

    /// A group that is gone has no numbers.
    pub(super) fn forget(&self, group: &str) {
        let by = &[group];
        // Those that were never counted are not there to be removed.
        for counter in [&self.evaluations, &self.failures, &self.iterations, &self.missed] {
            let _was_there = counter.remove_label_values(by);
        }
        for gauge in [
            &self.interval,
            &self.last_seconds,
            &self.last_at,
            &self.last_samples,
        ] {
            let _was_there = gauge.remove_label_values(by);
        }
        let _was_there = self.rules.remove_label_values(by);
        let _was_there = self.seconds.remove_label_values(by);
    }
}
