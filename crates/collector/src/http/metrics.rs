//! `GET /metrics`: the whole cluster in one scrape, and the collector itself.
//!
//! The latest value of every agent series, found by the one evaluator, under the name and help of the metric catalogue. Series
//! that others wrote through remote write are not given out again: whoever wrote them has them.

use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus::{Encoder, TextEncoder};
use query::Value;

use super::exposition::families;
use super::{ApiError, ApiResult};
use crate::Shared;
use crate::evaluator::QueryError;

/// Everything an agent sends carries its node.
const AGENT_SERIES: &str = r#"{node!=""}"#;
/// Slow readers report once a minute; a value older than this belongs to something that is gone.
const LOOKBACK_MS: i64 = 90_000;

pub(super) fn routes() -> Router<Shared> {
    Router::new().route("/metrics", get(metrics))
}

async fn metrics(State(app): State<Shared>) -> ApiResult<Response> {
    let mut when = query::Params::instant(app.now_ms());
    when.lookback_ms = LOOKBACK_MS;
    let query = query::parse(AGENT_SERIES).map_err(QueryError::from)?;
    let output = app.client_evaluator.evaluate(query, when).await?;
    let written = tokio::task::spawn_blocking(move || {
        let Value::Vector(samples) = output.value else {
            return Ok(Vec::new());
        };
        let mut all = families(&samples);
        all.extend(app.metrics.gather());
        all.extend(store_families(&app));
        let mut text = Vec::new();
        TextEncoder::new().encode(&all, &mut text).map(|()| text)
    });
    let text = written
        .await
        .map_err(|panic| ApiError::internal("writing metrics", &panic))?;
    let text = text.map_err(|error| ApiError::internal("writing metrics", &error))?;
    Ok(([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response())
}

/// What the store counts about itself.
fn store_families(app: &Shared) -> Vec<prometheus::proto::MetricFamily> {
    let stats = app.store.series.stats();
    let gauge = |name, help, value: u64| super::exposition::gauge(name, help, value as f64);
    vec![
        gauge("lockstep_store_series", "Series the store knows.", stats.series),
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
            "lockstep_store_wal_bytes",
            "Bytes of the write-ahead files.",
            stats.wal_bytes,
        ),
        gauge(
            "lockstep_store_chunk_bytes",
            "Bytes of the database that holds sealed chunks.",
            stats.chunk_file_bytes,
        ),
    ]
}
