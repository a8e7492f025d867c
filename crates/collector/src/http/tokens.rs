//! `/api/tokens`: create, list and revoke tokens; and `/api/audit`: the audit log.

use std::sync::Arc;

use aide::axum::ApiRouter;
use aide::axum::routing::{delete_with, get_with, post_with};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use domain::api::session::{CreateToken, NewToken, Role, TokenView};
use domain::time::TimestampMs;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use store::StateStore;

use super::description::{answers, answers_nothing, body_is, body_is_optional};
use super::table::needs;
use super::{ApiError, ApiResult, Caller};
use crate::app::App;
use crate::clock;
use crate::event_log::EventLog;
use crate::tokens::Tokens;
use crate::tokens::{JOIN_LIFETIME_S, is_admin_id};

/// Maximum length of a note, in characters: one sentence.
const NOTE_CHARS_MAX: usize = 200;
/// Maximum lifetime, in seconds: a hundred years. A longer one is a mistake in the unit.
const LIFETIME_S_MAX: u64 = 100 * 365 * 24 * 3_600;
/// Default number of lines of the audit log.
const AUDIT_LINES: u32 = 200;

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .api_route(
            "/api/tokens",
            get_with(list, needs(Role::Admin, "The tokens, without their secrets")).post_with(
                create,
                answers::<201, Json<NewToken>>(needs(Role::Admin, "Creates a token")),
            ),
        )
        .api_route(
            "/api/tokens/join",
            post_with(
                create_join,
                answers::<201, Json<NewToken>>(body_is_optional(body_is::<Json<CreateJoin>>(needs(
                    Role::Admin,
                    "Creates a token for agents",
                )))),
            ),
        )
        .api_route(
            "/api/tokens/{id}",
            delete_with(
                revoke,
                answers_nothing(needs(
                    Role::Admin,
                    "Revokes a token and ends its browser sessions",
                )),
            ),
        )
        .api_route(
            "/api/audit",
            get_with(audit, needs(Role::Admin, "The audit log, newest first")),
        )
}

async fn list(State(tokens): State<Arc<Tokens>>) -> ApiResult<Json<Vec<TokenView>>> {
    Ok(Json(tokens.list().await?))
}

async fn create(
    State(tokens): State<Arc<Tokens>>,
    State(events): State<EventLog>,
    Extension(caller): Extension<Caller>,
    Json(wanted): Json<CreateToken>,
) -> ApiResult<(StatusCode, Json<NewToken>)> {
    let expires_s = if wanted.role == Role::Join {
        wanted.expires_s.or(Some(JOIN_LIFETIME_S))
    } else {
        wanted.expires_s
    };
    make((&tokens, &events), &caller, wanted.role, &wanted.note, expires_s).await
}

/// The body of `POST /api/tokens/join`, which may be empty.
#[derive(Debug, Default, JsonSchema, Deserialize)]
#[serde(default)]
struct CreateJoin {
    expires_s: Option<u64>,
    note: String,
}

async fn create_join(
    State(tokens): State<Arc<Tokens>>,
    State(events): State<EventLog>,
    Extension(caller): Extension<Caller>,
    body: axum::body::Bytes,
) -> ApiResult<(StatusCode, Json<NewToken>)> {
    let wanted: CreateJoin = if body.is_empty() {
        CreateJoin::default()
    } else {
        serde_json::from_slice(&body)
            .map_err(|error| ApiError::bad_request(format!("the body is invalid: {error}")))?
    };
    make(
        (&tokens, &events),
        &caller,
        Role::Join,
        &wanted.note,
        wanted.expires_s.or(Some(JOIN_LIFETIME_S)),
    )
    .await
}

async fn make(
    (tokens, events): (&Tokens, &EventLog),
    caller: &Caller,
    role: Role,
    note: &str,
    expires_s: Option<u64>,
) -> ApiResult<(StatusCode, Json<NewToken>)> {
    if note.chars().count() > NOTE_CHARS_MAX {
        return Err(ApiError::bad_request(format!(
            "the note is longer than {NOTE_CHARS_MAX} characters"
        )));
    }
    if expires_s.is_some_and(|s| s == 0 || s > LIFETIME_S_MAX) {
        return Err(ApiError::bad_request(
            "expires_s must be at least 1 and at most a hundred years",
        ));
    }
    let token = tokens.create(role, note, expires_s, clock::now_ms()).await?;
    if let Err(error) = events.audit(&caller.id, "token_create", &token.id).await {
        // The action could not be recorded, so it is undone. No client has received the secret yet.
        tokens.revoke(&token.id, clock::now_ms()).await?;
        return Err(error.into());
    }
    Ok((StatusCode::CREATED, Json(token)))
}

async fn revoke(
    State(tokens): State<Arc<Tokens>>,
    State(events): State<EventLog>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> ApiResult<StatusCode> {
    if is_admin_id(&id) {
        return Err(ApiError::conflict(
            "the admin token cannot be revoked; to replace it, stop the collector, remove admin.token in the data \
             folder, and start it again",
        ));
    }
    events.audit(&caller.id, "token_revoke", &id).await?;
    if tokens.revoke(&id, clock::now_ms()).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::not_found(format!(
            "there is no token {id:?}; `lockstep token list` lists all tokens"
        )))
    }
}

/// The query parameters `?before_ms=&limit=`.
#[derive(Debug, JsonSchema, Deserialize)]
struct AuditPage {
    before_ms: Option<TimestampMs>,
    limit: Option<u32>,
}

#[derive(Debug, JsonSchema, Serialize)]
struct AuditLine {
    at_ms: TimestampMs,
    who: String,
    what: String,
    target: String,
}

async fn audit(
    State(state): State<StateStore>,
    Query(page): Query<AuditPage>,
) -> ApiResult<Json<Vec<AuditLine>>> {
    let entries = state
        .audit(page.before_ms, page.limit.unwrap_or(AUDIT_LINES))
        .await?;
    let line = |entry: store::state::audit::AuditEntry| AuditLine {
        at_ms: entry.at_ms,
        who: entry.who,
        what: entry.what,
        target: entry.target,
    };
    Ok(Json(entries.into_iter().map(line).collect()))
}
