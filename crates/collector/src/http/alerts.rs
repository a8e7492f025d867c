//! `/api/rules`, `/api/alerts`, `/api/webhooks`.

use aide::axum::ApiRouter;
use aide::axum::routing::{delete_with, get_with};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use domain::api::alerts::{AlertView, CreateWebhook, NewWebhook, RuleView, WebhookView};
use domain::api::session::Role;
use domain::run::spec::FieldError;
use rand::RngExt;
use reqwest::Url;
use schemars::JsonSchema;
use serde::Deserialize;
use store::StateStore;
use store::state::webhooks::Webhook;

use super::description::{answers, answers_nothing};
use super::table::needs;
use super::{ApiError, ApiResult, Caller};
use crate::app::App;
use crate::clock;
use crate::diagnose::Alerts;
use crate::event_log::EventLog;
use crate::notify::webhook::SECRET_PREFIX;

/// Maximum number of webhooks. Each gets every message.
const WEBHOOKS_MAX: usize = 32;
/// Minimum length of a signing secret, in bytes: a shorter one can be guessed. Standard Webhooks requires 24 bytes, the length of generated
/// secrets.
const SECRET_BYTES_MIN: usize = 16;
/// Maximum length of a webhook's URL, in bytes.
const URL_BYTES_MAX: usize = 2_048;
/// Number of resolved alerts in an answer: the default and the maximum.
const HISTORY_DEFAULT: u32 = 100;
const HISTORY_MAX: u32 = 1_000;

/// The routes of this module.
pub fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .api_route(
            "/api/rules",
            get_with(rules, needs(Role::Viewer, "All rules, with their alerts")),
        )
        .api_route(
            "/api/alerts",
            get_with(
                alerts,
                needs(Role::Viewer, "Active alerts, then the latest resolved"),
            ),
        )
        .api_route(
            "/api/webhooks",
            get_with(webhooks, needs(Role::Admin, "The webhooks")).post_with(
                create_webhook,
                answers::<201, Json<NewWebhook>>(needs(Role::Admin, "Creates a webhook")),
            ),
        )
        .api_route(
            "/api/webhooks/{id}",
            delete_with(
                delete_webhook,
                answers_nothing(needs(
                    Role::Admin,
                    "Deletes a webhook and its queued notifications",
                )),
            ),
        )
}

async fn rules(
    State(state): State<StateStore>,
    State(alerts): State<Alerts>,
) -> ApiResult<Json<Vec<RuleView>>> {
    Ok(Json(alerts.rules(&state).await?))
}

#[derive(JsonSchema, Deserialize)]
struct AlertsQuery {
    /// Number of resolved alerts to add after the active ones. Default 100, maximum 1000.
    resolved: Option<u32>,
}

async fn alerts(
    State(state): State<StateStore>,
    State(alerts): State<Alerts>,
    Query(query): Query<AlertsQuery>,
) -> ApiResult<Json<Vec<AlertView>>> {
    let limit = query.resolved.unwrap_or(HISTORY_DEFAULT).min(HISTORY_MAX);
    let mut alerts = alerts.active();
    alerts.extend(state.alert_history(limit).await?);
    Ok(Json(alerts))
}

async fn webhooks(State(state): State<StateStore>) -> ApiResult<Json<Vec<WebhookView>>> {
    let webhooks = state.webhooks().await?;
    Ok(Json(webhooks.into_iter().map(view).collect()))
}

async fn create_webhook(
    State(state): State<StateStore>,
    State(events): State<EventLog>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<CreateWebhook>,
) -> ApiResult<(StatusCode, Json<NewWebhook>)> {
    let url = check_url(&request.url)?;
    let secret = match request.secret {
        Some(secret) if !is_secret(&secret) => {
            return Err(invalid(
                "secret",
                format!(
                    "write {SECRET_PREFIX} followed by the base64 of at least {SECRET_BYTES_MIN} bytes, or leave it out to generate one"
                ),
            ));
        }
        Some(secret) => secret,
        None => format!(
            "{SECRET_PREFIX}{}",
            STANDARD.encode(rand::rng().random::<[u8; 24]>())
        ),
    };
    if state.webhooks().await?.len() >= WEBHOOKS_MAX {
        return Err(ApiError::conflict(format!(
            "there are {WEBHOOKS_MAX} webhooks already; delete one first"
        )));
    }
    let id = format!("wh-{}", hex::encode(rand::rng().random::<[u8; 6]>()));
    events.audit(&caller.id, "webhook_create", &id).await?;
    state
        .create_webhook(&id, url.as_str(), &secret, clock::now_ms())
        .await?;

    Ok((StatusCode::CREATED, Json(NewWebhook { id, secret })))
}

async fn delete_webhook(
    State(state): State<StateStore>,
    State(events): State<EventLog>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> ApiResult<StatusCode> {
    events.audit(&caller.id, "webhook_delete", &id).await?;
    if !state.delete_webhook(&id).await? {
        return Err(ApiError::not_found(
            "there is no such webhook; GET /api/webhooks lists them",
        ));
    }
    Ok(StatusCode::NO_CONTENT)
}

fn is_secret(text: &str) -> bool {
    let key = text
        .strip_prefix(SECRET_PREFIX)
        .and_then(|base64| STANDARD.decode(base64).ok());
    key.is_some_and(|key| key.len() >= SECRET_BYTES_MIN)
}

fn check_url(text: &str) -> ApiResult<Url> {
    let parsed = Url::parse(text)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    match parsed {
        Some(url) if text.len() <= URL_BYTES_MAX => Ok(url),
        _ => Err(invalid(
            "url",
            format!("write an http:// or https:// address of at most {URL_BYTES_MAX} bytes"),
        )),
    }
}

fn invalid(field: &str, message: String) -> ApiError {
    ApiError::invalid(
        "the webhook cannot be created",
        vec![FieldError::new(field, message)],
    )
}

/// Returns a webhook without the parts of its URL that may be secret: user info, path and query.
fn view(webhook: Webhook) -> WebhookView {
    let shown =
        Url::parse(&webhook.url).map_or_else(|_| String::new(), |url| url.origin().ascii_serialization());
    WebhookView {
        id: webhook.id,
        url: shown,
        pending: webhook.pending,
        last_error: webhook.last_error,
        delivered_ms: webhook.delivered_ms,
    }
}
