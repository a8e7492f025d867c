//! Stores the samples of rules: recorded series and the series of alerts, with a staleness marker for each series that ends.

use std::sync::atomic::Ordering;

use domain::series::{Labels, STALE};
use domain::time::TimestampMs;
use store::series::Appended;
use tracing::warn;

use super::engine::Engine;
use super::group::GroupState;
use super::rule::RuleState;
use crate::append::{append, with_ends};

/// Maximum number of samples that wait for the group's other rules: half of one append.
const PENDING_MAX: usize = store::series::APPEND_SAMPLES_MAX / 2;

/// The samples of one evaluation of a group that are not stored yet.
pub(super) struct Writes<'g> {
    group: &'g GroupState,
    at_ms: TimestampMs,
    /// By the index of the rule in the group.
    pending: Vec<(usize, Vec<(Labels, f64)>)>,
    pending_samples: usize,
    samples: usize,
}

impl<'g> Writes<'g> {
    /// Creates an empty list. `at_ms` is the time of its samples.
    pub(super) fn new(group: &'g GroupState, at_ms: TimestampMs) -> Self {
        Self {
            group,
            at_ms,
            pending: Vec::new(),
            pending_samples: 0,
            samples: 0,
        }
    }

    /// Adds all samples of a rule. Series that the rule wrote before and not now have ended.
    pub(super) fn add(&mut self, place: usize, samples: Vec<(Labels, f64)>) {
        self.samples += samples.len();
        self.pending_samples += samples.len();
        let rule = &self.group.rules[place];
        if !samples.is_empty() || !rule.written().is_empty() {
            self.pending.push((place, samples));
        }
    }

    /// Returns the number of samples of all rules so far.
    pub(super) fn samples(&self) -> usize {
        self.samples
    }

    pub(super) fn is_full(&self) -> bool {
        self.pending_samples > PENDING_MAX
    }

    /// Returns true if the result of a rule may depend on the samples that wait here.
    pub(super) fn may_be_read_by(&self, rule: &RuleState) -> bool {
        self.pending
            .iter()
            .any(|(place, _)| rule.may_read(&self.group.rules[*place]))
    }

    /// Stores the waiting samples. When this returns, they can be read.
    pub(super) async fn flush(&mut self, engine: &Engine) {
        self.pending_samples = 0;
        let pending = std::mem::take(&mut self.pending);
        if pending.is_empty() {
            return;
        }
        let mut samples = Vec::new();
        let mut now_written = Vec::with_capacity(pending.len());
        for (place, given) in pending {
            let (given, is) = with_ends(given, &self.group.rules[place].written());
            samples.extend(given);
            now_written.push((place, is));
        }
        match append(&engine.series, samples, self.at_ms).await {
            Ok(appended) => {
                self.group.write_failed.store(false, Ordering::Relaxed);
                self.note(engine, &appended);
                for (place, series) in now_written {
                    *self.group.rules[place].written() = series;
                }
            }
            Err(error) => {
                let places = now_written.into_iter().map(|(place, _)| place);
                self.failed(places, &error.to_string());
            }
        }
    }

    /// Records a failure. Series that ended are tried again with the next evaluation. Missing series of alerts do not affect the alerts.
    fn failed(&self, places: impl Iterator<Item = usize>, error: &str) {
        let failures = self
            .group
            .metrics
            .failures
            .with_label_values(&[&self.group.label]);
        if !self.group.write_failed.swap(true, Ordering::Relaxed) {
            let group = &self.group.label;
            warn!(group, error, "samples of rules cannot be stored");
        }
        for place in places {
            failures.inc();
            let rule = &self.group.rules[place];
            if !rule.rule.is_alert() {
                rule.status().error = Some(format!("its samples could not be stored: {error}"));
            }
        }
    }

    fn note(&self, engine: &Engine, appended: &Appended) {
        let metrics = &engine.metrics;
        metrics
            .samples
            .with_label_values(&["rules"])
            .inc_by(appended.accepted);
        let refused = [
            (appended.conflicts, "conflict"),
            (appended.too_old, "too_old"),
            (appended.too_new, "too_new"),
        ];
        for (count, reason) in refused.iter().filter(|(count, _)| *count > 0) {
            metrics.refused.with_label_values(&[reason]).inc_by(*count);
        }
        let any = refused.iter().any(|(count, _)| *count > 0);
        if any && !self.group.write_refused.swap(any, Ordering::Relaxed) {
            let group = &self.group.label;
            let Appended {
                conflicts,
                too_old,
                too_new,
                ..
            } = appended;
            warn!(
                group,
                conflicts,
                too_old,
                too_new,
                "samples of rules were refused; two rules may write the same series"
            );
        }
    }
}

/// Ends the series of removed rules.
pub(super) async fn end(engine: &Engine, series: Vec<Labels>, at_ms: TimestampMs) {
    if series.is_empty() {
        return;
    }
    let samples = series.into_iter().map(|labels| (labels, STALE)).collect();
    if let Err(error) = append(&engine.series, samples, at_ms).await {
        warn!(%error, "series of removed rules could not be ended; they end after the lookback");
    }
}
