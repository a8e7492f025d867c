//! `/api/runs/{id}/knobs`, `/preview`, `/apply`, `/revert`, `/exclude`: knobs of a run, changes of them, and the exclusion of a node.

use std::sync::Arc;

use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, post_with};
use axum::extract::{Path, State};
use axum::{Extension, Json};
use domain::api::runs::{
    ApplyKnobs, ChangePreview, ExcludeNode, KnobsView, PreviewChange, RevertKnobs, RunView,
};
use domain::api::session::Role;
use domain::ident::{AttemptNo, NodeName};
use domain::run::spec::FieldError;
use domain::run::state::{CannotChange, KnobRequest};

use super::description::body_is_optional;
use super::runs::run_id;
use super::table::needs;
use super::{ApiError, ApiResult, Caller};
use crate::app::App;
use crate::event_log::EventLog;
use crate::runs::{KnobError, Runs};

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .api_route(
            "/api/runs/{id}/knobs",
            get_with(
                knobs,
                needs(
                    Role::Viewer,
                    "Knobs of a run with their values, and the changes that can be reverted",
                ),
            ),
        )
        .api_route(
            "/api/runs/{id}/preview",
            post_with(
                preview,
                needs(
                    Role::Operator,
                    "What a change of knobs, a revert or the exclusion of a node would do",
                ),
            ),
        )
        .api_route(
            "/api/runs/{id}/apply",
            post_with(apply, needs(Role::Operator, "Changes knobs of a run")),
        )
        .api_route(
            "/api/runs/{id}/revert",
            post_with(
                revert,
                body_is_optional(needs(Role::Operator, "Reverts a change of knobs")),
            ),
        )
        .api_route(
            "/api/runs/{id}/exclude",
            post_with(
                exclude,
                needs(
                    Role::Operator,
                    "Excludes a node from a run, which continues on other nodes",
                ),
            ),
        )
}

async fn knobs(State(runs): State<Arc<Runs>>, Path(id): Path<String>) -> ApiResult<Json<KnobsView>> {
    Ok(Json(runs.knobs(&run_id(&id)?).await?))
}

async fn preview(
    State(runs): State<Arc<Runs>>,
    Path(id): Path<String>,
    Json(asked): Json<PreviewChange>,
) -> ApiResult<Json<ChangePreview>> {
    let (request, expected) = match asked {
        PreviewChange::Apply(asked) => {
            let expected = asked.expected;
            (apply_request(asked), expected)
        }
        PreviewChange::Revert(asked) => (revert_request(&asked), None),
        PreviewChange::Exclude(asked) => (exclude_request(&asked)?, asked.expected),
    };
    Ok(Json(runs.preview_change(&run_id(&id)?, request, expected).await?))
}

async fn apply(
    State(runs): State<Arc<Runs>>,
    State(events): State<EventLog>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Json(asked): Json<ApplyKnobs>,
) -> ApiResult<Json<RunView>> {
    let words: Vec<String> = asked
        .set
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let expected = asked.expected;
    let what = ("run_apply", format!("{id} {}", words.join(" ")));
    let request = (apply_request(asked), expected);
    change((&runs, &events), &caller, &id, request, what).await
}

async fn revert(
    State(runs): State<Arc<Runs>>,
    State(events): State<EventLog>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    asked: Option<Json<RevertKnobs>>,
) -> ApiResult<Json<RunView>> {
    let asked = asked.map(|Json(asked)| asked).unwrap_or_default();
    let what = ("run_revert", id.clone());
    let request = (revert_request(&asked), None);
    change((&runs, &events), &caller, &id, request, what).await
}

async fn exclude(
    State(runs): State<Arc<Runs>>,
    State(events): State<EventLog>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Json(asked): Json<ExcludeNode>,
) -> ApiResult<Json<RunView>> {
    let what = ("run_exclude", format!("{id} {}", asked.node));
    let request = (exclude_request(&asked)?, asked.expected);
    change((&runs, &events), &caller, &id, request, what).await
}

/// A request for the current values is a no-op, and is not recorded.
async fn change(
    (runs, events): (&Arc<Runs>, &EventLog),
    caller: &Caller,
    id: &str,
    (request, expected): (KnobRequest, Option<AttemptNo>),
    (what, target): (&str, String),
) -> ApiResult<Json<RunView>> {
    let run = run_id(id)?;
    if let Some(event) = runs.knob_change(&run, request, expected).await? {
        events.audit(&caller.id, what, &target).await?;
        runs.take(&run, event).await?;
    }
    Ok(Json(runs.view(&run).await?))
}

fn apply_request(asked: ApplyKnobs) -> KnobRequest {
    KnobRequest::Apply {
        set: asked.set,
        auto_revert: asked.auto_revert,
        from_start: asked.from_start,
        restart: asked.restart,
        try_larger_batch: asked.try_larger_batch,
        follows: None,
    }
}

fn revert_request(asked: &RevertKnobs) -> KnobRequest {
    KnobRequest::Revert {
        attempt: asked.attempt,
        live: asked.live,
        reason: None,
        from_start: asked.from_start,
        restart: asked.restart,
    }
}

fn exclude_request(asked: &ExcludeNode) -> ApiResult<KnobRequest> {
    let node = NodeName::new(asked.node.clone()).map_err(|error| ApiError::bad_request(error.to_string()))?;
    Ok(KnobRequest::Restart { without: vec![node] })
}

impl From<KnobError> for ApiError {
    fn from(error: KnobError) -> Self {
        match error {
            KnobError::Run(error) => error.into(),
            KnobError::Cannot(CannotChange::Knob { knob, message }) => {
                let field = if knob == "set" {
                    knob
                } else {
                    format!("set.{knob}")
                };
                Self::invalid(
                    "the knob cannot be changed in this way",
                    vec![FieldError { field, message }],
                )
            }
            KnobError::Cannot(CannotChange::Now(_))
            | KnobError::NotExpected { .. }
            | KnobError::NoSpareNode { .. } => Self::conflict(error.to_string()),
        }
    }
}
