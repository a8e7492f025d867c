//! Stores the collector's own samples, with a staleness marker for each series that ends.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::series::{Labels, STALE};
use domain::time::TimestampMs;
use store::SeriesStore;
use store::series::{Append, AppendError, Appended, Block, SeriesLimit};

use crate::clock;
use crate::evaluator::Evaluator;

/// How long an append waits while the store is behind. Then the samples are lost, and counted.
const APPEND_TIMEOUT: Duration = Duration::from_secs(5);
/// How long after a start the series of the process before are kept. Until then agents have connected, and what still holds is written again.
const EARLIER_KEPT: Duration = Duration::from_secs(60);
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
    /// The series of the process before, and when this one started.
    earlier: Option<(Instant, HashSet<Labels>)>,
    has_failed: bool,
}

impl Publisher {
    /// Creates a publisher that has written nothing yet.
    pub(crate) fn new(what: &'static str) -> Self {
        Self {
            what,
            written: HashSet::new(),
            earlier: None,
            has_failed: false,
        }
    }

    /// Creates a publisher that also ends series of the process before, which could not do so: those of a query that are not written again
    /// within [`EARLIER_KEPT`].
    pub(crate) async fn continuing(what: &'static str, evaluator: &Evaluator, query: &str) -> Self {
        let mut publisher = Self::new(what);
        match evaluator.samples(query, clock::now_ms()).await {
            Ok(samples) => {
                let series = samples.into_iter().map(|(labels, ..)| labels).collect();
                publisher.earlier = Some((Instant::now(), series));
            }
            Err(error) => tracing::warn!(%error, "{what} from before the start cannot be read"),
        }
        publisher
    }

    /// Ends those series of the process before whose current state is known, unless the next samples contain them.
    pub(crate) fn end_earlier(&mut self, is_known: impl Fn(&Labels) -> bool) {
        if let Some((_, earlier)) = &mut self.earlier {
            let (known, unknown): (HashSet<Labels>, HashSet<Labels>) =
                std::mem::take(earlier).into_iter().partition(is_known);
            *earlier = unknown;
            self.written.extend(known);
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
        let is_over = |(started, _): &mut (Instant, HashSet<Labels>)| started.elapsed() >= EARLIER_KEPT;
        if let Some((_, earlier)) = self.earlier.take_if(is_over) {
            self.written.extend(earlier);
        }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use domain::series::METRIC_NAME;
    use store::{Store, StoreConfig};

    use super::*;
    use crate::self_metrics::SelfMetrics;

    #[tokio::test]
    async fn series_of_the_process_before_end_a_minute_after_the_start_unless_they_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(StoreConfig::new(folder.path())).await.unwrap();
        let evaluator = Evaluator::new(store.series.clone(), &SelfMetrics::default());
        let sample = |run: &str| {
            let labels = Labels::new([(METRIC_NAME, "run_stalled"), ("run", run)]).unwrap();
            (labels, 1.0)
        };
        let now_ms = clock::now_ms();
        let mut before = Publisher::new("stalls");
        let samples = vec![sample("over"), sample("same")];
        before.publish(&store.series, samples, now_ms - 2_000).await;

        let mut publisher = Publisher::continuing("stalls", &evaluator, "run_stalled").await;
        let samples = vec![sample("same")];
        publisher
            .publish(&store.series, samples.clone(), now_ms - 1_000)
            .await;
        assert_eq!(
            count(&evaluator, now_ms).await,
            2,
            "the agent may report it again"
        );

        let (started, _) = publisher.earlier.as_mut().unwrap();
        *started = started.checked_sub(EARLIER_KEPT).unwrap();
        publisher.publish(&store.series, samples, now_ms).await;
        assert_eq!(count(&evaluator, now_ms + 1).await, 1);
        store.close().await;
    }

    #[tokio::test]
    async fn series_of_the_process_before_end_at_once_if_their_state_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(StoreConfig::new(folder.path())).await.unwrap();
        let evaluator = Evaluator::new(store.series.clone(), &SelfMetrics::default());
        let samples = ["over", "same", "away"].map(|run| {
            let labels = Labels::new([(METRIC_NAME, "run_stalled"), ("run", run)]).unwrap();
            (labels, 1.0)
        });
        let now_ms = clock::now_ms();
        let mut before = Publisher::new("stalls");
        before
            .publish(&store.series, samples.to_vec(), now_ms - 2_000)
            .await;

        let mut publisher = Publisher::continuing("stalls", &evaluator, "run_stalled").await;
        publisher.end_earlier(|labels| labels.get("run") != Some("away"));
        publisher
            .publish(&store.series, samples[1..2].to_vec(), now_ms - 1_000)
            .await;
        assert_eq!(count(&evaluator, now_ms).await, 2);
        store.close().await;
    }

    async fn count(evaluator: &Evaluator, at_ms: TimestampMs) -> usize {
        evaluator.samples("run_stalled", at_ms).await.unwrap().len()
    }
}
