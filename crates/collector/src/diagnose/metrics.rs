//! Metrics of the evaluation of rules on `/metrics`. They have Prometheus' names, with the prefix `lockstep_` instead of `prometheus_`.

use prometheus::{Gauge, GaugeVec, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry, histogram_opts};

use crate::self_metrics::register;

/// All metrics, by group: `file;group`.
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
    /// Registers the metrics.
    ///
    /// # Panics
    /// Panics if the registry already contains them, which is a mistake in the code.
    pub(super) fn new(registry: &Registry) -> Self {
        let count = |name, help| register(registry, IntCounterVec::new(Opts::new(name, help), &[GROUP]));
        let level = |name, help| register(registry, GaugeVec::new(Opts::new(name, help), &[GROUP]));
        let of_all = |name, help| register(registry, Gauge::new(name, help));
        let seconds = histogram_opts!(
            "lockstep_rule_evaluation_duration_seconds",
            "Time to evaluate one rule.",
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
                "Due evaluations of the group, including missed ones.",
            ),
            missed: count(
                "lockstep_rule_group_iterations_missed_total",
                "Evaluations of the group skipped because the previous one took too long.",
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
                "Duration of the group's last evaluation.",
            ),
            last_at: level(
                "lockstep_rule_group_last_evaluation_timestamp_seconds",
                "Time of the group's last evaluation.",
            ),
            last_samples: level(
                "lockstep_rule_group_last_evaluation_samples",
                "Samples written by the group's last evaluation.",
            ),
            reload_worked: of_all(
                "lockstep_rules_last_reload_successful",
                "Whether the last reload of the rule files was successful.",
            ),
            reloaded_at: of_all(
                "lockstep_rules_last_reload_success_timestamp_seconds",
                "Time of the last successful reload of the rule files.",
            ),
        }
    }

    /// Removes the metrics of a group that no longer exists.
    pub(super) fn forget(&self, group: &str) {
        let by = &[group];
        // A metric that was never counted cannot be removed.
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
