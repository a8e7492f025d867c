//! Storing samples of the collector's own, with an end for series that vanish.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use domain::series::{Labels, STALE};
use domain::time::TimestampMs;
use store::SeriesStore;
use store::series::{Append, AppendError, Appended, Block, SeriesLimit};

use crate::clock;

/// How long is waited while the store is behind; then the samples are lost, and counted.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often an append is tried when the store forgets a series between looking it up and writing it.
const TRIES_MAX: usize = 3;

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

/// The samples, and an end for each series that was written before and is not among them; and the series that are.
pub(crate) fn with_ends(
    mut samples: Vec<(Labels, f64)>,
    written: &HashSet<Labels>,
) -> (Vec<(Labels, f64)>, HashSet<Labels>) {
    let is: HashSet<Labels> = samples.iter().map(|(labels, _)| labels.clone()).collect();
    samples.extend(written.difference(&is).map(|ended| (ended.clone(), STALE)));
    (samples, is)
}

/// Series that one task writes again and again, with an end for each that is not written any more.
#[derive(Debug)]
pub(crate) struct Publisher {
    /// In a log line: what could not be stored.
    what: &'static str,
    written: HashSet<Labels>,
    has_failed: bool,
}

impl Publisher {
    /// Nothing is written yet.
    pub(crate) fn new(what: &'static str) -> Self {
        Self {
            what,
            written: HashSet::new(),
            has_failed: false,
        }
    }

    /// Stores what is so now. A failure is logged once, until it works again; the ends are then written with the next samples.
    pub(crate) async fn publish(
        &mut self,
        store: &SeriesStore,
        samples: Vec<(Labels, f64)>,
        at_ms: TimestampMs,
    ) {
        let (samples, is) = with_ends(samples, &self.written);
        if samples.is_empty() {
            return;
        }
        match append(store, samples, at_ms).await {
            Ok(_) => (self.written, self.has_failed) = (is, false),
            Err(error) if !self.has_failed => {
                tracing::warn!(%error, "{} cannot be stored", self.what);
                self.has_failed = true;
            }
            Err(_) => {}
        }
    }
}

/// Stores samples, each at this time; waits while the store is behind, but not for long.
pub(crate) async fn append(
    store: &SeriesStore,
    samples: Vec<(Labels, f64)>,
    at_ms: TimestampMs,
) -> Result<Appended, WriteError> {
    let samples = Arc::new(samples);
    for _ in 1..TRIES_MAX {
        match try_append(store, &samples, at_ms).await {
            Err(WriteError::Append(AppendError::UnknownSeries(_))) => {}
            other => return other,
        }
    }
    try_append(store, &samples, at_ms).await
}

async fn try_append(
    store: &SeriesStore,
    samples: &Arc<Vec<(Labels, f64)>>,
    at_ms: TimestampMs,
) -> Result<Appended, WriteError> {
    let (series, named) = (store.clone(), Arc::clone(samples));
    let block = tokio::task::spawn_blocking(move || block(&series, &named, at_ms)).await??;
    let append = Append {
        source: None,
        blocks: vec![block],
    };
    Ok(store.append_within(append, clock::now_ms(), PATIENCE).await?)
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
