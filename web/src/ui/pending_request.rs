//! A request of the user: sent, in progress, or refused with an error.

use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::Serialize;
use wasm_bindgen::JsValue;

use crate::api::ApiError;
use crate::session::UserSession;

/// The state of the last request. Cheap to copy.
#[derive(Clone, Copy)]
pub(crate) struct PendingRequest {
    session: UserSession,
    /// Whether a request is in progress.
    pub(crate) busy: RwSignal<bool>,
    /// The error of the last request.
    pub(crate) problem: RwSignal<Option<String>>,
}

impl PendingRequest {
    /// Creates a state without a request.
    pub(crate) fn new() -> Self {
        Self {
            session: expect_context::<UserSession>(),
            busy: RwSignal::new(false),
            problem: RwSignal::new(None),
        }
    }

    /// Sends `body` to `path`; calls `then` with a successful response.
    pub(crate) fn send(self, path: String, body: &impl Serialize, then: impl FnOnce(JsValue) + 'static) {
        // Serialisation fails only for maps whose keys are not strings, and no request has one.
        self.send_text(
            path,
            serde_json::to_string(body).unwrap_or_default(),
            Box::new(then),
        );
    }

    /// Sends `DELETE` to `path`; calls `then` if it succeeds.
    pub(crate) fn delete(self, path: String, then: impl FnOnce() + 'static) {
        self.wait(
            async move { self.session.delete(&path).await },
            Box::new(|()| then()),
        );
    }

    fn send_text(self, path: String, body: String, then: Box<dyn FnOnce(JsValue)>) {
        self.wait(async move { self.session.send(&path, body).await }, then);
    }

    fn wait<T: 'static>(
        self,
        answer: impl Future<Output = Result<T, ApiError>> + 'static,
        then: Box<dyn FnOnce(T)>,
    ) {
        self.busy.set(true);
        self.problem.set(None);
        spawn_local(async move {
            let answer = answer.await;
            // The part of the page that sent the request may be gone when the response arrives.
            if self.busy.try_set(false).is_some() {
                return;
            }
            match answer {
                Ok(answer) => then(answer),
                Err(error) => self.problem.set(Some(error.message)),
            }
        });
    }
}
