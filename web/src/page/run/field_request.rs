//! A request whose refusal may name fields of a form.

use domain::run::spec::FieldError;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::unreadable;
use crate::json;
use crate::session::UserSession;

/// The state of the last request. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct FieldRequest {
    session: UserSession,
    /// Whether a request is in progress.
    pub(super) busy: RwSignal<bool>,
    /// The error of the last request.
    pub(super) problem: RwSignal<Option<String>>,
    /// Its errors per field.
    pub(super) mistakes: RwSignal<Vec<FieldError>>,
}

impl FieldRequest {
    /// Creates a state without a request.
    pub(super) fn new() -> Self {
        Self {
            session: expect_context::<UserSession>(),
            busy: RwSignal::new(false),
            problem: RwSignal::new(None),
            mistakes: RwSignal::new(Vec::new()),
        }
    }

    /// Sends `body` to `path`; calls `then` with a successful response.
    pub(super) fn send<T: DeserializeOwned + 'static>(
        self,
        path: String,
        body: &impl Serialize,
        then: impl FnOnce(T) + 'static,
    ) {
        // Serialisation fails only for maps whose keys are not strings, and no request has one.
        let body = serde_json::to_string(body).unwrap_or_default();
        self.forget();
        self.busy.set(true);
        spawn_local(async move {
            let answer = self.session.send(&path, body).await;
            // The part of the page that sent the request may be gone when the response arrives.
            if self.busy.try_set(false).is_some() {
                return;
            }
            match answer.and_then(|answer| json::read(&answer).map_err(|error| unreadable(&error))) {
                Ok(answer) => then(answer),
                Err(error) => {
                    self.mistakes.set(error.fields);
                    self.problem.set(Some(error.message));
                }
            }
        });
    }

    /// Removes the errors of the last request.
    pub(super) fn forget(self) {
        self.problem.set(None);
        self.mistakes.set(Vec::new());
    }

    /// Returns the error in a field; tracked.
    pub(super) fn mistake(self, field: &str) -> Option<String> {
        self.mistakes.with(|mistakes| {
            let mistake = mistakes.iter().find(|mistake| mistake.field == field)?;
            Some(mistake.message.clone())
        })
    }
}
