//! `GET /metrics`: the whole cluster in one scrape, and the collector itself.
//!
//! The latest value of every agent series, from the common evaluator, with the name and help of the metric catalogue. Series that other
//! systems wrote through remote write are not returned: those systems have them.

use std::sync::Arc;

use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use domain::api::session::Role;
use domain::api::store::Blocked;
use domain::series::Labels;
use prometheus::{Encoder, TextEncoder};
use query::Value;
use store::SeriesStore;

use super::description::answers_as;
use super::exposition::families;
use super::table::needs;
use super::{ApiError, ApiResult};
use crate::app::App;
use crate::clock;
use crate::evaluator::Evaluator;
use crate::evaluator::QueryError;
use crate::own_series;
use crate::self_metrics::SelfMetrics;

/// Every series of an agent has the label `node`.
const AGENT_SERIES: &str = r#"{node!=""}"#;
/// How old a value may be. Slow readers report once per minute; an older value belongs to something that no longer exists.
const LOOKBACK_MS: i64 = 90_000;

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new().api_route(
        "/metrics",
        get_with(
            metrics,
            answers_as(
                "text/plain",
                needs(
                    Role::Scrape,
                    "Newest samples of all series, and the collector's own metrics",
                ),
            ),
        ),
    )
}

async fn metrics(
    State(series): State<SeriesStore>,
    State(evaluator): State<Evaluator>,
    State(metrics): State<Arc<SelfMetrics>>,
) -> ApiResult<Response> {
    let mut when = query::Params::instant(clock::now_ms());
    when.lookback_ms = LOOKBACK_MS;
    let query = query::parse(AGENT_SERIES).map_err(QueryError::from)?;
    let output = evaluator.evaluate(query, when).await?;
    let written = tokio::task::spawn_blocking(move || {
        let Value::Vector(samples) = output.value else {
            return Ok(Vec::new());
        };
        let mut all = families(&samples);
        all.extend(metrics.gather());
        all.extend(store_families(&series));
        all.extend(space_families(&series));
        all.extend(process_families());
        let mut text = Vec::new();
        TextEncoder::new().encode(&all, &mut text).map(|()| text)
    });
    let text = written
        .await
        .map_err(|panic| ApiError::internal("writing metrics", &panic))?;
    let text = text.map_err(|error| ApiError::internal("writing metrics", &error))?;
    Ok(([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response())
}

/// Returns the store's metrics about itself.
fn store_families(series: &SeriesStore) -> Vec<prometheus::proto::MetricFamily> {
    let stats = series.stats();
    let gauge = |name, help, value: u64| super::exposition::gauge(name, help, value as f64);
    let lookups = [
        ("hit", stats.chunk_cache_hits_total),
        ("miss", stats.chunk_cache_misses_total),
    ];
    let lookups = lookups.map(|(result, count)| {
        let labels = Labels::new([("result", result)]).expect("a literal label");
        (labels, count as f64)
    });
    vec![
        super::exposition::counters(
            "lockstep_store_chunk_cache_lookups_total",
            "Groups of series whose chunks a query needed, by whether they were in memory or were read from disk.",
            &lookups,
        ),
        gauge("lockstep_store_series", "Series in the store.", stats.series),
        gauge(
            "lockstep_store_index_bytes",
            "Memory for the names, labels and postings of series.",
            stats.index_bytes,
        ),
        gauge(
            "lockstep_store_head_bytes",
            "Memory for samples that are not in chunks yet.",
            stats.head_bytes,
        ),
        gauge(
            "lockstep_store_recent_chunk_bytes",
            "Memory for sealed chunks that are kept for recent queries.",
            stats.recent_chunk_bytes,
        ),
        gauge(
            "lockstep_store_cached_chunk_bytes",
            "Memory for chunks on disk that are cached for repeated queries.",
            stats.cached_chunk_bytes,
        ),
        gauge(
            "lockstep_store_wal_bytes",
            "Bytes of the write-ahead log.",
            stats.wal_bytes,
        ),
        gauge(
            "lockstep_store_chunk_bytes",
            "Bytes of the database that holds sealed chunks.",
            stats.chunk_file_bytes,
        ),
    ]
}

/// Returns the metrics of the free disk space, and whether too little of it stops ingest.
fn space_families(series: &SeriesStore) -> Vec<prometheus::proto::MetricFamily> {
    let space = series.disk_space();
    let gauge = |name, help, value: u64| super::exposition::gauge(name, help, value as f64);
    let blocked = [Blocked::DiskFull, Blocked::WriteFailed].map(|reason| {
        let labels = Labels::new([("reason", reason.word())]).expect("a literal label");
        (labels, f64::from(u8::from(space.blocked == Some(reason))))
    });
    vec![
        super::exposition::gauges(
            own_series::BLOCKED,
            "1 while samples are refused, by reason: the disk is below the floor, or a write failed for lack of space.",
            &blocked,
        ),
        gauge(
            own_series::FREE,
            "Free bytes on the disk with the data folder.",
            space.free_bytes,
        ),
        gauge(
            own_series::FLOOR,
            "Free bytes below which samples are refused (--min-free-space).",
            space.floor_bytes,
        ),
    ]
}

/// Returns the memory of this process, with the name that every Prometheus client uses for it.
fn process_families() -> Option<prometheus::proto::MetricFamily> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let help = "Resident memory size in bytes.";
    Some(super::exposition::gauge(
        "process_resident_memory_bytes",
        help,
        kib * 1_024.0,
    ))
}
