//! `POST /api/diagnoses/{id}/acknowledge`, `note`, `silence`: user actions on a diagnosis. All of them are recorded in the audit log.

use aide::axum::ApiRouter;
use aide::axum::routing::post_with;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use domain::api::diagnoses::DiagnosisView;
use domain::api::session::Role;
use domain::api::silences::{AcknowledgeDiagnosis, CreateSilence, NoteOnDiagnosis, SilenceView};
use domain::incident::{DiagnosisId, Entry, EntryKind, SilenceMatcher};
use domain::run::spec::FieldError;
use domain::series::{Label, Labels};

use super::description::{answers, body_is_optional};
use super::diagnoses::{find, unknown, view};
use super::silences::{put, shown, silence_of};
use super::table::needs;
use super::{ApiError, ApiResult, Caller};
use crate::app::App;
use crate::clock;

/// Maximum length of a note, in bytes: one page of text.
const NOTE_BYTES_MAX: usize = 8_192;

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .api_route(
            "/api/diagnoses/{id}/acknowledge",
            post_with(
                acknowledge,
                body_is_optional(needs(Role::Operator, "Acknowledges a diagnosis, or releases it")),
            ),
        )
        .api_route(
            "/api/diagnoses/{id}/note",
            post_with(
                note,
                needs(
                    Role::Operator,
                    "Adds a note to a diagnosis, or marks it as not a problem",
                ),
            ),
        )
        .api_route(
            "/api/diagnoses/{id}/silence",
            post_with(
                silence_diagnosis,
                answers::<201, Json<SilenceView>>(needs(
                    Role::Operator,
                    "Silences alerts with the labels of a diagnosis",
                )),
            ),
        )
}

async fn acknowledge(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    asked: Option<Json<AcknowledgeDiagnosis>>,
) -> ApiResult<Json<DiagnosisView>> {
    let asked = asked.map(|Json(asked)| asked).unwrap_or_default();
    let note = checked_note(asked.note)?;
    let (word, what) = if asked.release {
        ("diagnosis_release", EntryKind::Released { note })
    } else {
        ("diagnosis_acknowledge", EntryKind::Acknowledged { note })
    };
    append(&app, &caller, &id, word, what).await
}

async fn note(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Json(asked): Json<NoteOnDiagnosis>,
) -> ApiResult<Json<DiagnosisView>> {
    let note = checked_note(asked.note)?;
    if note.is_empty() && !asked.not_a_problem {
        return Err(invalid_note("write something"));
    }
    let (word, what) = if asked.not_a_problem {
        ("diagnosis_not_a_problem", EntryKind::NotAProblem { note })
    } else {
        ("diagnosis_note", EntryKind::Note { note })
    };
    append(&app, &caller, &id, word, what).await
}

/// Adds an entry to an existing diagnosis, and returns the diagnosis with the entry.
async fn append(
    app: &App,
    caller: &Caller,
    id: &str,
    word: &str,
    what: EntryKind,
) -> ApiResult<Json<DiagnosisView>> {
    let known = find(&app.state, &app.alerts, id).await?;
    let id = DiagnosisId::of(&known.alert);
    app.events.audit(&caller.id, word, &id.to_string()).await?;
    let entry = Entry {
        at_ms: clock::now_ms(),
        who: caller.id.clone(),
        what,
    };
    if !app.incidents.append(&id, &entry).await? {
        return Err(unknown(&id.to_string()));
    }
    view(app, &id.to_string()).await
}

async fn silence_diagnosis(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Json(mut asked): Json<CreateSilence>,
) -> ApiResult<(StatusCode, Json<SilenceView>)> {
    let known = find(&app.state, &app.alerts, &id).await?;
    if asked.matchers.is_empty() {
        asked.matchers = matchers_of(&known.alert.labels);
    }
    let silence = silence_of(asked, &caller)?;
    put(&app.incidents, &app.events, &caller, silence.clone()).await?;
    let entry = Entry {
        at_ms: silence.created_ms,
        who: caller.id.clone(),
        what: EntryKind::Silenced {
            silence: silence.id.clone(),
            until_ms: silence.ends_ms,
            note: silence.comment.clone(),
        },
    };
    app.incidents
        .append(&DiagnosisId::of(&known.alert), &entry)
        .await?;
    let view = shown(&app.incidents, &app.alerts, &silence, clock::now_ms());
    Ok((StatusCode::CREATED, Json(view)))
}

/// Returns matchers that require all labels of an alert to be equal.
fn matchers_of(labels: &Labels) -> Vec<SilenceMatcher> {
    let matcher = |label: &Label| SilenceMatcher {
        name: label.name.to_string(),
        value: label.value.to_string(),
        is_regex: false,
        is_equal: true,
    };
    labels.iter().map(matcher).collect()
}

fn checked_note(note: String) -> ApiResult<String> {
    if note.len() > NOTE_BYTES_MAX {
        return Err(invalid_note(&format!("write at most {NOTE_BYTES_MAX} bytes")));
    }
    Ok(note.trim().to_owned())
}

fn invalid_note(message: &str) -> ApiError {
    ApiError::invalid("the note cannot be saved", vec![FieldError::new("note", message)])
}
