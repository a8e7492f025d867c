//! `/api/v1`: Prometheus' query API, so that Grafana and other clients of Prometheus can use this collector directly.
//!
//! ```text
//! queries  query query_range query_exemplars format_query ─▶ the evaluator for clients ─┐
//! lists    series labels label/NAME/values metadata       ─▶ the index                  ├▶ answer ─▶ pages
//! status   buildinfo runtimeinfo flags config tsdb                                      │
//! rules    rules alerts                                                                ─┘
//! ```
//! Parameters, defaults, formats, status codes and texts are those of Prometheus 3.

mod queries;

mod lists;

mod escape;
mod rules;
mod status;

mod answer;
mod pages;

use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, post_with};
use aide::transform::TransformOperation;
use domain::api::session::Role;
use domain::time::TimeRange;

use super::description::{answers_as, answers_nothing, takes};
use super::query::Params;
use super::table::needs;
use super::{ApiError, ApiResult};
use crate::app::App;
use crate::http::remote_write;

/// The parameters of endpoints that support GET and POST.
const INSTANT: &[&str] = &["query", "time", "timeout", "limit", "lookback_delta", "stats"];
const RANGE: &[&str] = &[
    "query",
    "start",
    "end",
    "step",
    "timeout",
    "limit",
    "lookback_delta",
    "stats",
];
const SELECTION: &[&str] = &["match[]", "start", "end", "limit"];
const EXEMPLARS: &[&str] = &["query", "start", "end"];

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .api_route(
            "/api/v1/query",
            get_with(queries::instant, reads("An instant query", INSTANT))
                .post_with(queries::instant, reads("An instant query, as a form", INSTANT)),
        )
        .api_route(
            "/api/v1/query_range",
            get_with(queries::range, reads("A range query", RANGE))
                .post_with(queries::range, reads("A range query, as a form", RANGE)),
        )
        .api_route(
            "/api/v1/query_exemplars",
            get_with(
                queries::exemplars,
                reads("Exemplars (none are stored)", EXEMPLARS),
            )
            .post_with(
                queries::exemplars,
                reads("Exemplars (none are stored)", EXEMPLARS),
            ),
        )
        .api_route(
            "/api/v1/format_query",
            get_with(
                queries::format,
                reads("A query in its canonical form", &["query"]),
            )
            .post_with(
                queries::format,
                reads("A query in its canonical form", &["query"]),
            ),
        )
        .api_route(
            "/api/v1/series",
            get_with(lists::series, reads("Matching series", SELECTION))
                .post_with(lists::series, reads("Matching series", SELECTION)),
        )
        .api_route(
            "/api/v1/labels",
            get_with(lists::label_names, reads("Label names", SELECTION))
                .post_with(lists::label_names, reads("Label names", SELECTION)),
        )
        .api_route(
            "/api/v1/label/{name}/values",
            get_with(lists::label_values, reads("Values of a label", SELECTION)),
        )
        .api_route(
            "/api/v1/metadata",
            get_with(
                lists::metadata,
                reads(
                    "Type and help of metrics",
                    &["metric", "limit", "limit_per_metric"],
                ),
            ),
        )
        .api_route(
            "/api/v1/rules",
            get_with(
                rules::rules,
                reads(
                    "Rule groups",
                    &[
                        "type",
                        "rule_name[]",
                        "rule_group[]",
                        "file[]",
                        "match[]",
                        "exclude_alerts",
                    ],
                ),
            ),
        )
        .api_route(
            "/api/v1/alerts",
            get_with(rules::alerts, reads("Active alerts", &[])),
        )
        .api_route(
            "/-/reload",
            post_with(rules::reload, needs(Role::Admin, "Reloads the rule files")),
        )
        .api_route(
            "/api/v1/status/buildinfo",
            get_with(status::build_info, reads("Version and application", &[])),
        )
        .api_route(
            "/api/v1/status/runtimeinfo",
            get_with(status::runtime_info, reads("Start time and retention", &[])),
        )
        .api_route(
            "/api/v1/status/flags",
            get_with(status::flags, reads("Limits under Prometheus' names", &[])),
        )
        .api_route(
            "/api/v1/status/config",
            get_with(
                status::config,
                reads("The equivalent Prometheus configuration", &[]),
            ),
        )
        .api_route(
            "/api/v1/status/tsdb",
            get_with(
                status::tsdb,
                reads("Names and values with the most series", &["limit"]),
            ),
        )
        .api_route(
            "/api/v1/write",
            post_with(
                remote_write::write,
                answers_nothing(needs(
                    Role::Operator,
                    "Prometheus remote write, versions 1.0 and 2.0",
                )),
            ),
        )
}

/// Describes an endpoint that any viewer may read, with its parameters.
fn reads(
    summary: &'static str,
    parameters: &'static [&'static str],
) -> impl FnOnce(TransformOperation<'_>) -> TransformOperation<'_> {
    answers_as(
        "application/json",
        takes(parameters, needs(Role::Viewer, summary)),
    )
}

/// Returns the range of `start` and `end`. A missing one is unbounded.
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
