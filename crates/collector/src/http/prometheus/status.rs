//! `/api/v1/status/…`: version, configuration and statistics of the collector.
//!
//! The fields are Prometheus' own, so that its clients find them. A field without a meaning here is empty or zero, never invented.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use domain::api::store::StoreStats;
use domain::series::{METRIC_NAME, Matcher, SelectError};
use domain::time::{DisplayDuration, TimeRange};
use serde_json::{Value, json};
use store::SeriesStore;

use super::answer::{ANSWER_SAMPLES_MAX, rfc3339, success};
use crate::app::StartedAt;
use crate::clock;
use crate::config::Config;
use crate::evaluator::Evaluator;
use crate::evaluator::{QueryError, SAMPLES_MAX, SERIES_MAX, TIME_MAX, slots};
use crate::http::ApiResult;
use crate::http::query::Params;

/// Default number of rows in each table of `tsdb`.
const ROWS_DEFAULT: usize = 10;
/// Maximum number of rows in each table.
const ROWS_MAX: usize = 10_000;
/// Maximum number of label pairs that `tsdb` counts. This takes some tens of milliseconds.
const PAIRS_MAX: usize = 1_000_000;

/// Clients use this to identify the server. Grafana enables features by version if the application is `Prometheus` or missing, so this
/// answer has its own application name.
pub(super) async fn build_info() -> Response {
    let version = env!("CARGO_PKG_VERSION");
    success(json!({
        "version": version, "application": "lockstep", "revision": "", "branch": "", "buildUser": "", "buildDate": "", "goVersion": "",
    }))
}

pub(super) async fn runtime_info(
    State(config): State<Arc<Config>>,
    State(started): State<StartedAt>,
) -> Response {
    let started = rfc3339(started.0);
    success(json!({
        "startTime": started,
        "CWD": "",
        "serverTime": rfc3339(clock::now_ms()),
        "reloadConfigSuccess": true,
        "lastConfigTime": started,
        "corruptionCount": 0,
        "goroutineCount": 0,
        "GOMAXPROCS": std::thread::available_parallelism().map_or(1, usize::from),
        "GOMEMLIMIT": 0,
        "GOGC": "",
        "GODEBUG": "",
        "storageRetention": DisplayDuration(config.store.retention_ms).to_string(),
    }))
}

/// Returns the limits of queries and of the store, under Prometheus' names.
pub(super) async fn flags(State(config): State<Arc<Config>>) -> Response {
    let kept = &config.store;
    success(BTreeMap::from([
        (
            "query.lookback-delta",
            DisplayDuration(query::LOOKBACK_DEFAULT_MS).to_string(),
        ),
        ("query.max-concurrency", slots().to_string()),
        ("query.max-samples", SAMPLES_MAX.to_string()),
        ("query.max-series", SERIES_MAX.to_string()),
        ("query.max-answer-samples", ANSWER_SAMPLES_MAX.to_string()),
        ("query.timeout", format!("{}s", TIME_MAX.as_secs())),
        (
            "storage.tsdb.retention.time",
            DisplayDuration(kept.retention_ms).to_string(),
        ),
        (
            "storage.tsdb.retention.size",
            kept.size_max_bytes
                .map_or_else(|| "0B".into(), |bytes| format!("{bytes}B")),
        ),
        (
            "storage.tsdb.out-of-order-time-window",
            DisplayDuration(kept.out_of_order_ms).to_string(),
        ),
        ("web.enable-admin-api", "true".into()),
        ("web.enable-remote-write-receiver", "true".into()),
    ]))
}

/// Returns the configuration that a Prometheus with the same function would have: nothing is scraped, samples come from agents and by
/// remote write.
pub(super) async fn config(State(config): State<Arc<Config>>) -> Response {
    let kept = &config.store;
    let yaml = format!(
        "# Lockstep has no Prometheus configuration: agents and remote write bring the samples.\n\
         global:\n  evaluation_interval: 1s\n\
         storage:\n  tsdb:\n    out_of_order_time_window: {}\n    retention:\n      time: {}\n",
        DisplayDuration(kept.out_of_order_ms),
        DisplayDuration(kept.retention_ms)
    );
    success(json!({ "yaml": yaml }))
}

/// Returns which names and values have the most series.
pub(super) async fn tsdb(
    State(series): State<SeriesStore>,
    State(evaluator): State<Evaluator>,
    params: Params,
) -> ApiResult<Response> {
    let rows = params.limit()?.unwrap_or(ROWS_DEFAULT).min(ROWS_MAX);
    let totals = series.totals().await.map_err(QueryError::from)?;
    let counted = evaluator.list(|store| Ok(vec![Cardinality::of(store)?]));
    let (mut counted, _held) = counted.await?;
    let cardinality = counted.pop().unwrap_or_default();
    Ok(success(cardinality.tables(&totals, rows)))
}

/// Number of series by name and value.
#[derive(Debug, Default)]
struct Cardinality {
    pairs: usize,
    by_metric: Vec<(Arc<str>, u64)>,
    by_pair: Vec<(Arc<str>, u64)>,
    values_by_label: Vec<(Arc<str>, u64)>,
    bytes_by_label: Vec<(Arc<str>, u64)>,
}

impl Cardinality {
    fn of(store: &SeriesStore) -> Result<Self, SelectError> {
        let mut all = Self::default();
        for label in store.label_names(&[], TimeRange::ALL)? {
            let values = store.label_values(&label, &[], TimeRange::ALL, PAIRS_MAX - all.pairs)?;
            all.pairs += values.len();
            let mut bytes = 0;
            for value in &values {
                let series = store.count(&[Matcher::equal(label.as_str(), value.as_str())])?;
                bytes += series * value.len() as u64;
                if label == METRIC_NAME {
                    all.by_metric.push((value.as_str().into(), series));
                }
                all.by_pair.push((format!("{label}={value}").into(), series));
            }
            let label: Arc<str> = label.into();
            all.values_by_label
                .push((Arc::clone(&label), values.len() as u64));
            all.bytes_by_label.push((label, bytes));
        }
        Ok(all)
    }

    fn tables(self, totals: &StoreStats, rows: usize) -> Value {
        json!({
            "headStats": {
                "numSeries": totals.series,
                "numLabelPairs": self.pairs,
                "chunkCount": totals.chunks,
                "minTime": totals.oldest_ms.unwrap_or(0),
                "maxTime": totals.newest_ms.unwrap_or(0),
            },
            "seriesCountByMetricName": most(self.by_metric, rows),
            "labelValueCountByLabelName": most(self.values_by_label, rows),
            "memoryInBytesByLabelName": most(self.bytes_by_label, rows),
            "seriesCountByLabelValuePair": most(self.by_pair, rows),
        })
    }
}

/// Returns the largest counts, largest first.
fn most(mut counts: Vec<(Arc<str>, u64)>, rows: usize) -> Value {
    counts.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let rows = counts.iter().take(rows);
    rows.map(|(name, value)| json!({ "name": &**name, "value": value }))
        .collect()
}
