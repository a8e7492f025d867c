//! Stores the collector's own samples, with a staleness marker for each series that ends.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use domain::series::{Labels, STALE};
use domain::time::TimestampMs;
use store::SeriesStore;
use store::series::{Append, AppendError, Appended, Block, SeriesLimit};

use crate::clock;

/// How long an append waits while the store is behind. Then the samples are lost, and counted.
const APPEND_TIMEOUT: Duration = Duration::from_secs(5);
/// How often an append is tried when the store removes a series between its look-up and the write.
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

/// Adds a staleness marker for each series that was written before and is not among the samples. Also returns the series that are.
pub(crate) fn with_ends(
    mut samples: Vec<(Labels, f64)>,
    written: &HashSet<Labels>,
) -> (Vec<(Labels, f64)>, HashSet<Labels>) {
    let is: HashSet<Labels> = samples.iter().map(|(labels, _)| labels.clone()).collect();
    samples.extend(written.difference(&is).map(|ended| (ended.clone(), STALE)));
    (samples, is)
}

/// Series that one task writes again and again, with a staleness marker for each series that is no longer written.
#[derive(Debug)]
pub(crate) struct Publisher {
    /// What could not be stored, for the log line.
    what: &'static str,
    written: HashSet<Labels>,
    has_failed: bool,
}

impl Publisher {
    /// Creates a publisher that has written nothing yet.
    pub(crate) fn new(what: &'static str) -> Self {
        Self {
            what,
            written: HashSet::new(),
            has_failed: false,
        }
    }

    /// Stores the current samples. A failure is logged once, until a store succeeds again. The staleness markers are then written with the
    /// next samples.
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

/// Stores samples with this time. If the store is behind, waits for at most [`APPEND_TIMEOUT`].
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
    Ok(store
        .append_within(append, clock::now_ms(), APPEND_TIMEOUT)
        .await?)
}

/// Looks up the series of the samples.
fn block(store: &SeriesStore, samples: &[(Labels, f64)], at_ms: TimestampMs) -> Result<Block, WriteError> {
    let ids = samples.iter().map(|(labels, _)| store.resolve(labels));
    let ids = ids.collect::<Result<Vec<_>, _>>()?;
    Ok(Block {
        shape: store.shape(ids)?,
        times_ms: vec![at_ms],
        values: samples.iter().map(|(_, value)| *value).collect(),
    })
}
