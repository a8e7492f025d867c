//! `/api/silences`: for a period, matching alerts are not sent to webhooks. All changes are recorded in the audit log.

use aide::axum::ApiRouter;
use aide::axum::routing::{delete_with, get_with};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use domain::api::session::Role;
use domain::api::silences::{CreateSilence, SilenceView};
use domain::incident::{DiagnosisId, Silence, SilenceState};
use domain::run::spec::FieldError;
use domain::time::TimestampMs;
use rand::RngExt;

use super::description::{answers, answers_nothing};
use super::table::needs;
use super::{ApiError, ApiResult, Caller};
use crate::app::App;
use crate::clock;
use crate::diagnose::Alerts;
use crate::event_log::EventLog;
use crate::incidents::{Incidents, SilenceError};

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .api_route(
            "/api/silences",
            get_with(
                list,
                needs(
                    Role::Viewer,
                    "Silences, latest end first; ended ones are kept for 30 days",
                ),
            )
            .post_with(
                create,
                answers::<201, Json<SilenceView>>(needs(
                    Role::Operator,
                    "Creates a silence: alerts that match are not sent to webhooks",
                )),
            ),
        )
        .api_route(
            "/api/silences/{id}",
            delete_with(
                expire,
                answers_nothing(needs(Role::Operator, "Ends a silence now")),
            ),
        )
}

async fn list(State(incidents): State<Incidents>, State(alerts): State<Alerts>) -> Json<Vec<SilenceView>> {
    let now_ms = clock::now_ms();
    let all = incidents.silences().list();
    Json(
        all.iter()
            .map(|silence| shown(&incidents, &alerts, silence, now_ms))
            .collect(),
    )
}

async fn create(
    State(incidents): State<Incidents>,
    State(alerts): State<Alerts>,
    State(events): State<EventLog>,
    Extension(caller): Extension<Caller>,
    Json(asked): Json<CreateSilence>,
) -> ApiResult<(StatusCode, Json<SilenceView>)> {
    let silence = silence_of(asked, &caller)?;
    put(&incidents, &events, &caller, silence.clone()).await?;
    let view = shown(&incidents, &alerts, &silence, clock::now_ms());
    Ok((StatusCode::CREATED, Json(view)))
}

/// Ends a silence instead of removing it, so that the list still shows who created it.
async fn expire(
    State(incidents): State<Incidents>,
    State(events): State<EventLog>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> ApiResult<StatusCode> {
    let now_ms = clock::now_ms();
    let Some(silence) = incidents.silences().get(&id) else {
        return Err(ApiError::not_found(
            "there is no such silence; GET /api/silences lists them",
        ));
    };
    if silence.state(now_ms) == SilenceState::Expired {
        return Err(ApiError::conflict(format!("silence {id} has ended already")));
    }
    events.audit(&caller.id, "silence_end", &id).await?;
    let ended = Silence {
        starts_ms: silence.starts_ms.min(now_ms),
        ends_ms: now_ms,
        ..silence
    };
    incidents.silences().put(ended, now_ms).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn put(
    incidents: &Incidents,
    events: &EventLog,
    caller: &Caller,
    silence: Silence,
) -> ApiResult<()> {
    events.audit(&caller.id, "silence_create", &silence.id).await?;
    Ok(incidents.silences().put(silence, clock::now_ms()).await?)
}

/// Returns the requested silence, validated.
pub(super) fn silence_of(asked: CreateSilence, caller: &Caller) -> ApiResult<Silence> {
    let now_ms = clock::now_ms();
    let starts_ms = asked.starts_ms.unwrap_or(now_ms).max(now_ms);
    let ends_ms = match (asked.ends_ms, asked.for_s) {
        (Some(ends_ms), None) => ends_ms,
        (None, Some(for_s)) => starts_ms + i64::from(for_s) * 1_000,
        _ => {
            let message = "give the end of the silence, with either `ends_ms` or `for_s`";
            return Err(invalid(vec![FieldError::new("ends_ms", message)]));
        }
    };
    let silence = Silence {
        id: format!("si-{}", hex::encode(rand::rng().random::<[u8; 6]>())),
        matchers: asked.matchers,
        starts_ms,
        ends_ms,
        created_ms: now_ms,
        created_by: caller.id.clone(),
        comment: asked.comment.trim().to_owned(),
    };
    match silence.problems(now_ms) {
        problems if problems.is_empty() => Ok(silence),
        problems => Err(invalid(problems)),
    }
}

pub(super) fn shown(
    incidents: &Incidents,
    alerts: &Alerts,
    silence: &Silence,
    now_ms: TimestampMs,
) -> SilenceView {
    let firing = alerts
        .active()
        .into_iter()
        .filter(|alert| alert.fired_ms.is_some());
    let matching = firing.filter(|alert| incidents.silences().matches(&silence.id, &alert.labels));
    let ids = matching.map(|alert| DiagnosisId::of(&alert).to_string());
    SilenceView::of(silence, ids.collect(), now_ms)
}

fn invalid(problems: Vec<FieldError>) -> ApiError {
    ApiError::invalid("the silence cannot be created", problems)
}

impl From<SilenceError> for ApiError {
    fn from(error: SilenceError) -> Self {
        match error {
            SilenceError::State(error) => error.into(),
            SilenceError::Regex(error) => {
                let message = format!("{error}: {}", error.source);
                invalid(vec![FieldError::new("matchers", message)])
            }
        }
    }
}
