//! `/api/v1`: Prometheus' own query API, so that Grafana and everything else that speaks it can point straight here.

mod rules;

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use domain::api::prometheus::Answer;
use domain::series::labels::is_label_name;
use domain::time::TimestampMs;
use query::Output;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::query::Params;
use super::{ApiError, ApiResult};
use crate::Shared;
use crate::evaluator::{QueryError, SERIES_MAX};
use crate::ingest::remote_write;

/// Names, values or series one answer lists at most.
const LIST_MAX: usize = SERIES_MAX as usize;

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/api/v1/query", get(instant).post(instant))
        .route("/api/v1/query_range", get(range).post(range))
        .route("/api/v1/series", get(series).post(series))
        .route("/api/v1/labels", get(label_names).post(label_names))
        .route("/api/v1/label/{name}/values", get(label_values))
        .route("/api/v1/metadata", get(metadata))
        .route("/api/v1/rules", get(rules::rules))
        .route("/api/v1/alerts", get(rules::alerts))
        .route("/-/reload", post(rules::reload))
        .route("/api/v1/status/buildinfo", get(build_info))
        .route("/api/v1/write", post(remote_write::write))
}

/// The envelope around an answer that worked.
fn success<T: Serialize>(data: T, warnings: Vec<String>) -> Response {
    let answer = Answer {
        status: "success".into(),
        data: Some(data),
        error_type: None,
        error: None,
        warnings,
    };
    Json(answer).into_response()
}

async fn instant(State(app): State<Shared>, params: Params) -> ApiResult<Response> {
    let text = params.required("query")?;
    let at_ms = params.time("time")?.unwrap_or_else(|| app.now_ms());
    evaluate(&app, &params, text, query::Params::instant(at_ms)).await
}

async fn range(State(app): State<Shared>, params: Params) -> ApiResult<Response> {
    let text = params.required("query")?;
    let (start_ms, end_ms) = (params.required_time("start")?, params.required_time("end")?);
    params.required("step")?;
    let step_ms = params.duration("step")?.unwrap_or_default();
    if step_ms <= 0 {
        let detail = "zero or negative query resolution step widths are not accepted. Try a positive integer";
        return Err(ApiError::bad_request(format!(
            "invalid parameter \"step\": {detail}"
        )));
    }
    evaluate(
        &app,
        &params,
        text,
        query::Params::range(start_ms, end_ms, step_ms),
    )
    .await
}

async fn evaluate(app: &Shared, params: &Params, text: &str, mut when: query::Params) -> ApiResult<Response> {
    if let Some(lookback_ms) = params.duration("lookback_delta")? {
        when.lookback_ms = lookback_ms;
    }
    let parsed = query::parse(text).map_err(QueryError::from)?;
    let evaluation = app.client_evaluator.evaluate(parsed, when);
    let output = match params.duration("timeout")?.and_then(|ms| u64::try_from(ms).ok()) {
        None => evaluation.await?,
        Some(ms) => {
            let limited = tokio::time::timeout(std::time::Duration::from_millis(ms), evaluation);
            limited.await.unwrap_or(Err(QueryError::Timeout))?
        }
    };
    // A large matrix takes long to write down; other requests on this thread must not wait for it.
    let written = tokio::task::spawn_blocking(move || {
        let Output { value, warnings, .. } = output;
        success(query::format::query_result(&value), warnings)
    });
    written
        .await
        .map_err(|panic| ApiError::internal("writing an answer", &panic))
}

/// `start` and `end`, all time when missing.
pub(super) fn span(params: &Params) -> ApiResult<(TimestampMs, TimestampMs)> {
    let (start, end) = (params.time("start")?, params.time("end")?);
    let (start, end) = (start.unwrap_or(i64::MIN / 2), end.unwrap_or(i64::MAX / 2));
    if end < start {
        return Err(ApiError::bad_request(
            "end timestamp must not be before start time",
        ));
    }
    Ok((start, end))
}

async fn series(State(app): State<Shared>, params: Params) -> ApiResult<Response> {
    let selectors = params.selectors()?;
    if selectors.is_empty() {
        return Err(ApiError::bad_request("no match[] parameter provided"));
    }
    let ((start_ms, end_ms), limit) = (span(&params)?, params.limit(LIST_MAX)?);
    listed(move || app.store.series.series(&selectors, start_ms, end_ms, limit)).await
}

async fn label_names(State(app): State<Shared>, params: Params) -> ApiResult<Response> {
    let (selectors, (start_ms, end_ms), limit) =
        (params.selectors()?, span(&params)?, params.limit(LIST_MAX)?);
    listed(move || {
        let mut names = app.store.series.label_names(&selectors, start_ms, end_ms)?;
        names.truncate(limit);
        Ok(names)
    })
    .await
}

async fn label_values(
    State(app): State<Shared>,
    Path(name): Path<String>,
    params: Params,
) -> ApiResult<Response> {
    if !is_label_name(&name) {
        return Err(ApiError::bad_request(format!("invalid label name: {name:?}")));
    }
    let (selectors, (start_ms, end_ms), limit) =
        (params.selectors()?, span(&params)?, params.limit(LIST_MAX)?);
    listed(move || {
        app.store
            .series
            .label_values(&name, &selectors, start_ms, end_ms, limit)
    })
    .await
}

/// Looks something up in the index, on a thread that may take its time.
async fn listed<T: Serialize + Send + 'static>(
    look_up: impl FnOnce() -> Result<T, domain::series::SelectError> + Send + 'static,
) -> ApiResult<Response> {
    let found = tokio::task::spawn_blocking(move || look_up().map(|found| success(found, Vec::new())));
    let found = found
        .await
        .map_err(|panic| ApiError::internal("searching series", &panic))?;
    Ok(found.map_err(QueryError::from)?)
}

/// TYPE and HELP: our own metrics', and what remote write brought.
async fn metadata(State(app): State<Shared>, params: Params) -> ApiResult<Response> {
    let (only, limit) = (params.get("metric"), params.limit(LIST_MAX)?);
    let mut all = app.store.series.metadata();
    for metric in domain::metric::CATALOGUE {
        let own = store::series::Metadata {
            kind: metric.kind.as_str().into(),
            help: metric.help.into(),
        };
        all.insert(metric.name.into(), own);
    }
    let wanted = all
        .into_iter()
        .filter(|(name, _)| only.is_none_or(|only| only == name))
        .take(limit);
    let entry = |(name, metadata): (String, store::series::Metadata)| {
        (
            name,
            json!([{ "type": metadata.kind, "help": metadata.help, "unit": "" }]),
        )
    };
    Ok(success(
        Value::Object(wanted.map(entry).collect::<Map<_, _>>()),
        Vec::new(),
    ))
}

/// Clients ask this to find out whom they talk to.
async fn build_info() -> Response {
    let version = env!("CARGO_PKG_VERSION");
    success(
        json!({ "version": version, "application": "lockstep", "revision": "", "branch": "", "goVersion": "" }),
        Vec::new(),
    )
}
