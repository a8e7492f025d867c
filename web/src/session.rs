//! The session of the user, and requests in its name.
//!
//! Any response with status 401 ends the session here, so every page returns to the log-in page.

use domain::api::session::{Role, Session};
use futures::FutureExt;
use gloo_net::http::Method;
use gloo_timers::future::TimeoutFuture;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::Serialize;
use serde::de::DeserializeOwned;
use wasm_bindgen::JsValue;

use crate::api::{self, ApiError, ResponseFuture};
use crate::json;

/// The path for reading, opening and ending the session.
const PATH: &str = "/api/session";
/// Pause before a retry without a response.
const RETRY_MS: u32 = 2_000;
/// The HTTP status of a request without a session.
const UNAUTHORIZED: u16 = 401;

/// The session. Cheap to copy; provided as context.
#[derive(Clone, Copy)]
pub(crate) struct UserSession {
    state: RwSignal<State>,
    /// The collector's version when this page loaded, which is the version of the page itself.
    version: RwSignal<Option<String>>,
}

/// The state of the session.
#[derive(Clone, PartialEq)]
enum State {
    Loading,
    LoggedOut,
    LoggedIn(Session),
}

/// The state without details that change during a session.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The collector has not answered yet.
    Loading,
    /// A token is needed.
    LoggedOut,
    /// The session is valid.
    LoggedIn,
}

impl UserSession {
    /// Requests from the collector whether this browser has a session.
    pub(crate) fn load() -> Self {
        let session = Self {
            state: RwSignal::new(State::Loading),
            version: RwSignal::new(None),
        };
        spawn_local(async move {
            while !session.refresh().await && session.is_loading() {
                TimeoutFuture::new(RETRY_MS).await
            }
        });
        session
    }

    /// Returns the phase; tracked.
    pub(crate) fn phase(self) -> Phase {
        self.state.with(|state| match state {
            State::Loading => Phase::Loading,
            State::LoggedOut => Phase::LoggedOut,
            State::LoggedIn(_) => Phase::LoggedIn,
        })
    }

    /// Returns the phase; not tracked.
    pub(crate) fn phase_untracked(self) -> Phase {
        untrack(|| self.phase())
    }

    /// Returns true if the user has `role`; tracked.
    pub(crate) fn may(self, role: Role) -> bool {
        self.state
            .with(|state| matches!(state, State::LoggedIn(session) if session.role.allows(role)))
    }

    /// Returns true if this page came from a collector of `version`.
    pub(crate) fn is_of(self, version: &str) -> bool {
        self.version
            .with_untracked(|ours| ours.as_deref().is_none_or(|ours| ours == version))
    }

    /// Opens a session with a token.
    pub(crate) async fn log_in(self, token: &str) -> Result<(), ApiError> {
        let login = domain::api::session::Login {
            token: token.trim().to_owned(),
        };
        let session = self.post(PATH, &login).await?;
        self.enter(session);
        Ok(())
    }

    /// Ends the session. If the collector does not respond, the session stays, because its cookie stays.
    pub(crate) async fn log_out(self) -> Result<(), ApiError> {
        self.delete(PATH).await?;
        self.state.set(State::LoggedOut);
        Ok(())
    }

    /// Requests the session again. Returns false unless the collector confirms it.
    pub(crate) async fn refresh(self) -> bool {
        match self.get(PATH).await {
            Ok(session) => {
                self.enter(session);
                true
            }
            Err(_) => false,
        }
    }

    /// `GET`.
    pub(crate) async fn get<T: DeserializeOwned>(self, path: &str) -> Result<T, ApiError> {
        read(self.request(Method::GET, path, None).await)
    }

    /// `GET` that returns the raw response.
    pub(crate) fn fetch(self, path: &str) -> ResponseFuture {
        self.request(Method::GET, path, None)
    }

    /// `POST` with a JSON body.
    pub(crate) async fn post<T: DeserializeOwned>(
        self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ApiError> {
        // Serialisation fails only for maps whose keys are not strings, and the API has none.
        let body = serde_json::to_string(body).unwrap_or_default();
        read(self.request(Method::POST, path, Some(body)).await)
    }

    /// `POST` with a serialised JSON body that returns the raw response.
    pub(crate) fn send(self, path: &str, body: String) -> ResponseFuture {
        self.request(Method::POST, path, Some(body))
    }

    /// `DELETE`.
    pub(crate) async fn delete(self, path: &str) -> Result<(), ApiError> {
        self.request(Method::DELETE, path, None).await.map(drop)
    }

    fn request(self, method: Method, path: &str, body: Option<String>) -> ResponseFuture {
        let csrf = if method == Method::GET {
            String::new()
        } else {
            self.csrf()
        };
        let response = api::send(method, path, &csrf, body);
        async move {
            let answer = response.await;
            if answer.as_ref().is_err_and(|error| error.status == UNAUTHORIZED) {
                self.state.set(State::LoggedOut);
            }
            answer
        }
        .boxed_local()
    }

    fn enter(self, session: Session) {
        self.version
            .update_untracked(|ours| _ = ours.get_or_insert_with(|| session.version.clone()));
        self.state.set(State::LoggedIn(session));
    }

    /// Returns the CSRF token for requests that change something.
    fn csrf(self) -> String {
        self.state.with_untracked(|state| match state {
            State::LoggedIn(session) => session.csrf.clone(),
            _ => String::new(),
        })
    }

    fn is_loading(self) -> bool {
        self.state.with_untracked(|state| *state == State::Loading)
    }
}

fn read<T: DeserializeOwned>(answer: Result<JsValue, ApiError>) -> Result<T, ApiError> {
    json::read(&answer?).map_err(|error| api::unreadable(&error))
}
