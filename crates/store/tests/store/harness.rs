//! Helpers of the tests: names, frames, and reading everything back.

use std::path::Path;

use domain::api::alerts::AlertView;
use domain::series::{
    Budget, Labels, MatchOp, Matcher, SelectError, Selection, SeriesSet, SeriesSource, is_absent,
};
use store::series::{Append, Block, SeriesId};
use store::state::alerts::AlertChanges;
use store::{SeriesStore, StateStore, Store, StoreConfig};

/// A time in 2026.
pub(crate) const NOW_MS: i64 = 1_790_000_000_000;

pub(crate) fn config(folder: &Path) -> StoreConfig {
    StoreConfig {
        gather_ms: 0,
        // Tests break the disk and repair it at once.
        full_pause_ms: 0,
        min_free_bytes: Some(0),
        ..StoreConfig::new(folder)
    }
}

/// Keeps samples for `retention_ms`, without roll-ups.
pub(crate) fn without_roll_ups(retention_ms: i64, folder: &Path) -> StoreConfig {
    StoreConfig {
        retention_ms,
        rollup_1m_ms: 0,
        rollup_1h_ms: 0,
        ..config(folder)
    }
}

pub(crate) async fn open(folder: &Path) -> Store {
    Store::open(config(folder)).await.unwrap()
}

pub(crate) async fn apply(state: &StateStore, upserts: &[AlertView], now_ms: i64) {
    let changes = AlertChanges {
        upserts,
        ..AlertChanges::default()
    };
    state.apply_alerts(changes, now_ms).await.unwrap();
}

pub(crate) fn labels(pairs: &[(&str, &str)]) -> Labels {
    Labels::new(pairs.iter().copied()).unwrap()
}

pub(crate) fn gpu(metric: &str, node: &str, gpu: usize) -> Labels {
    labels(&[("__name__", metric), ("node", node), ("gpu", &gpu.to_string())])
}

pub(crate) fn append(store: &SeriesStore, series: &[SeriesId], times_ms: &[i64], values: &[f64]) -> Append {
    let block = Block {
        shape: store.shape(series.to_vec()).unwrap(),
        times_ms: times_ms.to_vec(),
        values: values.to_vec(),
    };
    Append {
        source: None,
        blocks: vec![block],
    }
}

pub(crate) fn selection(matchers: &[(&str, MatchOp, &str)], start_ms: i64, end_ms: i64) -> Selection {
    let matcher = |(name, op, value): &(&str, MatchOp, &str)| Matcher {
        name: (*name).into(),
        op: *op,
        value: (*value).into(),
    };
    let matchers = matchers.iter().map(matcher).collect();
    Selection {
        matchers,
        start_ms,
        end_ms,
        step_ms: 0,
        function: None,
        latest: false,
    }
}

/// A series with its samples as bits.
pub(crate) type Read = (Labels, Vec<(i64, u64)>);

pub(crate) async fn read(store: &SeriesStore, selection: &Selection) -> Vec<Read> {
    try_read(store, selection).await.unwrap()
}

/// Like [`read`], on a disk that may fail.
pub(crate) async fn try_read(store: &SeriesStore, selection: &Selection) -> Result<Vec<Read>, SelectError> {
    let budget = Budget::unlimited();
    let prefetched = store.prefetch(std::slice::from_ref(selection), &budget).await?;
    Ok(reads(&prefetched.select(selection, &budget)?))
}

/// Like [`read`], if the samples are known without reading the disk.
pub(crate) fn read_cached(store: &SeriesStore, selection: &Selection, samples_max: u64) -> Option<Vec<Read>> {
    // A task that writes names at the same time makes this fail, so try again.
    let known = || {
        std::thread::yield_now();
        let budget = Budget::new(samples_max, 16);
        store.prefetch_cached(std::slice::from_ref(selection), &budget)
    };
    let prefetched = (0..100).find_map(|_| known())?;
    Some(reads(
        &prefetched.select(selection, &Budget::unlimited()).unwrap(),
    ))
}

fn reads(set: &SeriesSet) -> Vec<Read> {
    let samples = |times: &[i64], values: &[f64]| {
        let cells = times.iter().zip(values).filter(|(_, value)| !is_absent(**value));
        cells
            .map(|(time_ms, value)| (*time_ms, value.to_bits()))
            .collect()
    };
    let series = set.series.iter();
    series
        .map(|series| (series.labels.clone(), samples(&series.times_ms, &series.values)))
        .collect()
}

pub(crate) async fn read_all(store: &SeriesStore) -> Vec<Read> {
    read(store, &everything()).await
}

/// Selects all samples of all series.
pub(crate) fn everything() -> Selection {
    selection(&[("__name__", MatchOp::NotEqual, "")], i64::MIN, i64::MAX)
}

/// Returns the number of samples in chunks according to the database. It shows samples that are stored twice, which reads would
/// hide.
pub(crate) async fn samples_in_chunks(folder: &Path) -> i64 {
    use sqlx::Connection;
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(folder.join("lockstep.db"));
    let mut connection = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
    sqlx::query_scalar("SELECT ifnull(sum(samples), 0) FROM chunks")
        .fetch_one(&mut connection)
        .await
        .unwrap()
}

/// Returns a number that a longer run sets in the environment.
pub(crate) fn from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

/// Formats an error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Writes a line for the process that started the test: another test, or a long run that records the results.
pub(crate) fn print_line(words: &str) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{words}").unwrap();
    out.flush().unwrap();
}
