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

use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, post_with};
use domain::api::session::Role;
use domain::time::TimeRange;

use super::query::Params;
use super::table::needs;
use super::{ApiError, ApiResult};
use crate::app::App;
use crate::http::remote_write;
use answer::success;

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .api_route(
            "/api/v1/query",
            get_with(queries::instant, needs(Role::Viewer, "An instant query")).post_with(
                queries::instant,
                needs(Role::Viewer, "An instant query, as a form"),
            ),
        )
        .api_route(
            "/api/v1/query_range",
            get_with(queries::range, needs(Role::Viewer, "A range query"))
                .post_with(queries::range, needs(Role::Viewer, "A range query, as a form")),
        )
        .api_route(
            "/api/v1/query_exemplars",
            get_with(
                queries::exemplars,
                needs(Role::Viewer, "Exemplars: none are kept"),
            )
            .post_with(
                queries::exemplars,
                needs(Role::Viewer, "Exemplars: none are kept"),
            ),
        )
        .api_route(
            "/api/v1/format_query",
            get_with(
                queries::format,
                needs(Role::Viewer, "A query in its canonical form"),
            )
            .post_with(
                queries::format,
                needs(Role::Viewer, "A query in its canonical form"),
            ),
        )
        .api_route(
            "/api/v1/series",
            get_with(lists::series, needs(Role::Viewer, "Series that match"))
                .post_with(lists::series, needs(Role::Viewer, "Series that match")),
        )
        .api_route(
            "/api/v1/labels",
            get_with(lists::label_names, needs(Role::Viewer, "Names of labels"))
                .post_with(lists::label_names, needs(Role::Viewer, "Names of labels")),
        )
        .api_route(
            "/api/v1/label/{name}/values",
            get_with(lists::label_values, needs(Role::Viewer, "Values of a label")),
        )
        .api_route(
            "/api/v1/metadata",
            get_with(lists::metadata, needs(Role::Viewer, "Type and help of metrics")),
        )
        .api_route(
            "/api/v1/rules",
            get_with(rules::rules, needs(Role::Viewer, "Groups of rules")),
        )
        .api_route(
            "/api/v1/alerts",
            get_with(rules::alerts, needs(Role::Viewer, "Active alerts")),
        )
        .api_route(
            "/-/reload",
            post_with(rules::reload, needs(Role::Admin, "Reads the rule files again")),
        )
        .api_route(
            "/api/v1/status/buildinfo",
            get_with(status::build_info, needs(Role::Viewer, "Version and application")),
        )
        .api_route(
            "/api/v1/status/runtimeinfo",
            get_with(
                status::runtime_info,
                needs(Role::Viewer, "Start time and retention"),
            ),
        )
        .api_route(
            "/api/v1/status/flags",
            get_with(
                status::flags,
                needs(Role::Viewer, "Limits under Prometheus' names"),
            ),
        )
        .api_route(
            "/api/v1/status/config",
            get_with(
                status::config,
                needs(Role::Viewer, "The configuration that a Prometheus would have"),
            ),
        )
        .api_route(
            "/api/v1/status/tsdb",
            get_with(
                status::tsdb,
                needs(Role::Viewer, "Which names and values have the most series"),
            ),
        )
        .api_route(
            "/api/v1/write",
            post_with(
                remote_write::write,
                needs(Role::Operator, "Prometheus remote write, versions 1.0 and 2.0"),
            ),
        )
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
