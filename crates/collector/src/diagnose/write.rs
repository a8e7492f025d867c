//! What rules write: recorded series and the traces of alerts, into the one store, with an end for series that vanish.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use domain::series::{Labels, STALE};
use domain::time::TimestampMs;
use store::SeriesStore;
use store::series::{Append, AppendError, Appended, Block, SeriesLimit};
use tracing::warn;

use super::group::GroupState;
use super::rule::RuleState;
use crate::app::Shared;

/// Samples that wait for the group's other rules: half of what one append may carry.
const PENDING_MAX: usize = store::series::APPEND_SAMPLES_MAX / 2;
/// How long a group waits while the store is behind; then its samples are lost, and counted.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often an append is tried when the store forgets a series between looking it up and writing it.
const TRIES_MAX: usize = 3;

/// Samples of one evaluation of a group that are not stored yet.
pub(super) struct Writes<'g> {
    group: &'g GroupState,
    at_ms: TimestampMs,
    /// By the rule's place in the group.
    pending: Vec<(usize, Vec<(Labels, f64)>)>,
    pending_samples: usize,
    samples: usize,
}

/// Why samples were not stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    #[error(transparent)]
    Series(#[from] SeriesLimit),
    #[error(transparent)]
    Append(#[from] AppendError),
    #[error("looking up series failed: {0}")]
    Panic(#[from] tokio::task::JoinError),
}

impl<'g> Writes<'g> {
    /// Nothing yet, at the time samples get.
    pub(super) fn new(group: &'g GroupState, at_ms: TimestampMs) -> Self {
        Self {
            group,
            at_ms,
            pending: Vec::new(),
            pending_samples: 0,
            samples: 0,
        }
    }

    /// What a rule gave: all of its series. Those it gave before and not now have ended.
    pub(super) fn add(&mut self, place: usize, samples: Vec<(Labels, f64)>) {
        self.samples += samples.len();
        self.pending_samples += samples.len();
        let rule = &self.group.rules[place];
        if !samples.is_empty() || !rule.written().is_empty() {
            self.pending.push((place, samples));
        }
    }

    /// Samples of all rules so far.
    pub(super) fn samples(&self) -> usize {
        self.samples
    }

    pub(super) fn is_full(&self) -> bool {
        self.pending_samples > PENDING_MAX
    }

    /// Whether a rule's answer may depend on what waits here.
    pub(super) fn may_be_read_by(&self, rule: &RuleState) -> bool {
        self.pending
            .iter()
            .any(|(place, _)| rule.may_read(&self.group.rules[*place]))
    }

    /// Stores what waits; when this returns, it can be read.
    pub(super) async fn flush(&mut self, app: &Shared) {
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
        match append(app, samples, self.at_ms).await {
            Ok(appended) => {
                self.group.write_failed.store(false, Ordering::Relaxed);
                self.note(app, &appended);
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

    /// Series that ended are tried again with the next evaluation. An alert is no worse for a trace that is missing.
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

    fn note(&self, app: &Shared, appended: &Appended) {
        let metrics = &app.metrics;
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

/// The samples, and an end for each series that was written before and is not among them; and the series that are.
pub(crate) fn with_ends(
    mut samples: Vec<(Labels, f64)>,
    written: &HashSet<Labels>,
) -> (Vec<(Labels, f64)>, HashSet<Labels>) {
    let is: HashSet<Labels> = samples.iter().map(|(labels, _)| labels.clone()).collect();
    samples.extend(written.difference(&is).map(|ended| (ended.clone(), STALE)));
    (samples, is)
}

/// Ends series whose rule is gone.
pub(super) async fn end(app: &Shared, series: Vec<Labels>, at_ms: TimestampMs) {
    if series.is_empty() {
        return;
    }
    let samples = series.into_iter().map(|labels| (labels, STALE)).collect();
    if let Err(error) = append(app, samples, at_ms).await {
        warn!(%error, "series of rules that are gone could not be ended; they end by themselves after the lookback");
    }
}

/// Stores samples of the collector's own, each at this time.
pub(crate) async fn append_now(
    app: &Shared,
    samples: Vec<(Labels, f64)>,
    at_ms: TimestampMs,
) -> Result<(), WriteError> {
    append(app, samples, at_ms).await.map(drop)
}

async fn append(
    app: &Shared,
    samples: Vec<(Labels, f64)>,
    at_ms: TimestampMs,
) -> Result<Appended, WriteError> {
    let samples = Arc::new(samples);
    for _ in 1..TRIES_MAX {
        match try_append(app, &samples, at_ms).await {
            Err(WriteError::Append(AppendError::UnknownSeries(_))) => {}
            other => return other,
        }
    }
    try_append(app, &samples, at_ms).await
}

async fn try_append(
    app: &Shared,
    samples: &Arc<Vec<(Labels, f64)>>,
    at_ms: TimestampMs,
) -> Result<Appended, WriteError> {
    let (store, named) = (app.store.series.clone(), Arc::clone(samples));
    let block = tokio::task::spawn_blocking(move || block(&store, &named, at_ms)).await??;
    let append = Append {
        source: None,
        blocks: vec![block],
    };
    let store = &app.store.series;
    Ok(store.append_within(append, app.now_ms(), PATIENCE).await?)
}

/// Looks the series up.
fn block(store: &SeriesStore, samples: &[(Labels, f64)], at_ms: TimestampMs) -> Result<Block, WriteError> {
    let ids = samples.iter().map(|(labels, _)| store.resolve(labels));
    let ids = ids.collect::<Result<Vec<_>, _>>()?;
    Ok(Block {
        shape: store.shape(ids)?,
        times_ms: vec![at_ms],
        values: samples.iter().map(|(_, value)| *value).collect(),
    })
}
