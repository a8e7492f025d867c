//! `/api/v1`: Prometheus' own query API, so that Grafana and everything else that speaks it can point straight here.
//!
//! ```text
//! queries  query query_range query_exemplars format_query ─▶ the evaluator for clients ─┐
//! lists    series labels label/NAME/values metadata       ─▶ the index                  ├▶ answer ─▶ pages
//! status   buildinfo runtimeinfo flags config tsdb                                      │
//! rules    rules alerts                                                                ─┘
//! ```
//! Parameters, defaults, shapes, status codes and words are those of Prometheus 3.

mod queries;

mod lists;

mod escape;
mod rules;
mod status;

mod answer;
mod pages;

use axum::Router;
use axum::routing::{get, post};
use domain::time::TimeRange;

use super::query::Params;
use super::{ApiError, ApiResult};
use crate::app::App;
use crate::http::remote_write;
use answer::success;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/api/v1/query", get(queries::instant).post(queries::instant))
        .route("/api/v1/query_range", get(queries::range).post(queries::range))
        .route(
            "/api/v1/query_exemplars",
            get(queries::exemplars).post(queries::exemplars),
        )
        .route("/api/v1/format_query", get(queries::format).post(queries::format))
        .route("/api/v1/series", get(lists::series).post(lists::series))
        .route("/api/v1/labels", get(lists::label_names).post(lists::label_names))
        .route("/api/v1/label/{name}/values", get(lists::label_values))
        .route("/api/v1/metadata", get(lists::metadata))
        .route("/api/v1/rules", get(rules::rules))
        .route("/api/v1/alerts", get(rules::alerts))
        .route("/-/reload", post(rules::reload))
        .route("/api/v1/status/buildinfo", get(status::build_info))
        .route("/api/v1/status/runtimeinfo", get(status::runtime_info))
        .route("/api/v1/status/flags", get(status::flags))
        .route("/api/v1/status/config", get(status::config))
        .route("/api/v1/status/tsdb", get(status::tsdb))
        .route("/api/v1/write", post(remote_write::write))
}

/// `start` and `end`, all time when missing.
pub(super) fn span(params: &Params) -> ApiResult<TimeRange> {
    let (start, end) = (params.time("start")?, params.time("end")?);
    let (start, end) = (start.unwrap_or(i64::MIN / 2), end.unwrap_or(i64::MAX / 2));
    if end < start {
        return Err(ApiError::bad_request(
            "end timestamp must not be before start time",
        ));
    }
    Ok(TimeRange::new(start, end))
}
