//! `/api/v1/series`, `labels`, `label/NAME/values`, `metadata`: lists of what can be queried.

use std::collections::BTreeMap;

use axum::extract::{Path, State};
use axum::response::Response;
use domain::series::SelectError;
use serde::Serialize;
use serde_json::{Map, Value, json};
use store::SeriesStore;
use store::series::Metadata;

use super::answer::{list, success};
use super::{escape, span};
use crate::evaluator::Evaluator;
use crate::evaluator::SERIES_MAX;
use crate::http::query::Params;
use crate::http::{ApiError, ApiResult};

/// Maximum number of names, values or series in one answer.
const LIST_MAX: usize = SERIES_MAX as usize;

pub(super) async fn series(State(evaluator): State<Evaluator>, params: Params) -> ApiResult<Response> {
    let selectors = params.selectors()?;
    if selectors.is_empty() {
        return Err(ApiError::bad_request("no match[] parameter provided"));
    }
    let range = span(&params)?;
    listed(&evaluator, &params, move |store, limit| {
        store.series(&selectors, range, limit)
    })
    .await
}

pub(super) async fn label_names(State(evaluator): State<Evaluator>, params: Params) -> ApiResult<Response> {
    let (selectors, range) = (params.selectors()?, span(&params)?);
    listed(&evaluator, &params, move |store, limit| {
        let mut names = store.label_names(&selectors, range)?;
        names.truncate(limit);
        Ok(names)
    })
    .await
}

pub(super) async fn label_values(
    State(evaluator): State<Evaluator>,
    Path(name): Path<String>,
    params: Params,
) -> ApiResult<Response> {
    let name = escape::unescaped(&name).into_owned();
    let (selectors, range) = (params.selectors()?, span(&params)?);
    listed(&evaluator, &params, move |store, limit| {
        store.label_values(&name, &selectors, range, limit)
    })
    .await
}

/// Reads one item more than requested, to find out whether there are more.
async fn listed<T: Serialize + Send + 'static>(
    evaluator: &Evaluator,
    params: &Params,
    look_up: impl FnOnce(&SeriesStore, usize) -> Result<Vec<T>, SelectError> + Send + 'static,
) -> ApiResult<Response> {
    let limit = params.limit()?.unwrap_or(LIST_MAX).min(LIST_MAX);
    let found = evaluator.list(move |store| look_up(store, limit + 1));
    let (mut found, held) = found.await?;
    let is_truncated = found.len() > limit;
    found.truncate(limit);
    Ok(list(found, is_truncated, held))
}

/// Returns TYPE and HELP of Lockstep's own metrics and of those received by remote write. Each metric has one of each, so
/// `limit_per_metric` has no effect.
pub(super) async fn metadata(State(evaluator): State<Evaluator>, params: Params) -> ApiResult<Response> {
    let limit = params.count("limit")?.unwrap_or(LIST_MAX);
    params.count("limit_per_metric")?;
    let only = params.get("metric").map(ToOwned::to_owned);
    let found = evaluator.list(move |store| {
        let all = all_metadata(store).into_iter();
        let wanted = all.filter(|(name, _)| only.as_ref().is_none_or(|only| only == name));
        Ok(wanted.take(limit).collect())
    });
    let (found, _held) = found.await?;
    let entry = |(name, metadata): (String, Metadata)| {
        let entry = json!([{ "type": metadata.kind, "help": metadata.help, "unit": "" }]);
        (name, entry)
    };
    let entries: Map<_, _> = found.into_iter().map(entry).collect();
    Ok(success(Value::Object(entries)))
}

fn all_metadata(store: &SeriesStore) -> BTreeMap<String, Metadata> {
    let mut all = store.metadata();
    for metric in domain::metric::CATALOGUE {
        let own = Metadata {
            kind: metric.kind.as_str().into(),
            help: metric.help.into(),
        };
        all.insert(metric.name.into(), own);
    }
    all
}
