//! Who is logged in, and requests in their name.
//!
//! Whatever answers "401" ends the session here, so that every page leads back to the log-in by itself.

use domain::api::session::{Role, Session};
use futures::FutureExt;
use gloo_net::http::Method;
use gloo_timers::future::TimeoutFuture;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::Serialize;
use serde::de::DeserializeOwned;
use wasm_bindgen::JsValue;

use crate::api::{self, ApiError, Asked};
use crate::json;

/// Where the session is asked for, opened and ended.
const PATH: &str = "/api/session";
/// Pause before asking again when nobody answered.
const RETRY_MS: u32 = 2_000;
/// The HTTP status of a request without a session.
const UNAUTHORIZED: u16 = 401;

/// The session. Cheap to copy; provided as context.
#[derive(Clone, Copy)]
pub(crate) struct Who {
    state: RwSignal<State>,
    /// The collector's version when this page first heard of it: the version of the page itself.
    version: RwSignal<Option<String>>,
}

/// What is known about it.
#[derive(Clone, PartialEq)]
enum State {
    Asking,
    LoggedOut,
    LoggedIn(Session),
}

/// The same, without the details that change while one is logged in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The collector has not said yet.
    Asking,
    /// A token is needed.
    LoggedOut,
    /// Come in.
    LoggedIn,
}

impl Who {
    /// Asks the collector whether this browser has a session already.
    pub(crate) fn ask() -> Self {
        let who = Self {
            state: RwSignal::new(State::Asking),
            version: RwSignal::new(None),
        };
        spawn_local(async move {
            while !who.is_still_good().await && who.is_asking() {
                TimeoutFuture::new(RETRY_MS).await
            }
        });
        who
    }

    /// Where we stand; tracked.
    pub(crate) fn phase(self) -> Phase {
        self.state.with(|state| match state {
            State::Asking => Phase::Asking,
            State::LoggedOut => Phase::LoggedOut,
            State::LoggedIn(_) => Phase::LoggedIn,
        })
    }

    /// Where we stand right now.
    pub(crate) fn phase_untracked(self) -> Phase {
        untrack(|| self.phase())
    }

    /// Whether the person may do what needs `role`; tracked.
    pub(crate) fn may(self, role: Role) -> bool {
        self.state
            .with(|state| matches!(state, State::LoggedIn(session) if session.role.allows(role)))
    }

    /// Whether a collector of `version` is the one this page came from.
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

    /// Ends the session. Where nobody answers it stays, since the cookie would.
    pub(crate) async fn log_out(self) -> Result<(), ApiError> {
        self.delete(PATH).await?;
        self.state.set(State::LoggedOut);
        Ok(())
    }

    /// Asks the collector again; false when it did not say that the session is good.
    pub(crate) async fn is_still_good(self) -> bool {
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

    /// `GET`, for an answer as it comes.
    pub(crate) fn fetch(self, path: &str) -> Asked {
        self.request(Method::GET, path, None)
    }

    /// `POST` with a JSON body.
    pub(crate) async fn post<T: DeserializeOwned>(
        self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ApiError> {
        // Only a map whose keys are no texts cannot be written, and the API has none.
        let body = serde_json::to_string(body).unwrap_or_default();
        read(self.request(Method::POST, path, Some(body)).await)
    }

    /// `POST` with a body that is JSON already, for an answer as it comes.
    pub(crate) fn send(self, path: &str, body: String) -> Asked {
        self.request(Method::POST, path, Some(body))
    }

    /// `DELETE`.
    pub(crate) async fn delete(self, path: &str) -> Result<(), ApiError> {
        self.request(Method::DELETE, path, None).await.map(drop)
    }

    fn request(self, method: Method, path: &str, body: Option<String>) -> Asked {
        let csrf = if method == Method::GET {
            String::new()
        } else {
            self.csrf()
        };
        let asked = api::ask(method, path, &csrf, body);
        async move {
            let answer = asked.await;
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

    /// The token that a changing request carries.
    fn csrf(self) -> String {
        self.state.with_untracked(|state| match state {
            State::LoggedIn(session) => session.csrf.clone(),
            _ => String::new(),
        })
    }

    fn is_asking(self) -> bool {
        self.state.with_untracked(|state| *state == State::Asking)
    }
}

fn read<T: DeserializeOwned>(answer: Result<JsValue, ApiError>) -> Result<T, ApiError> {
    json::read(&answer?).map_err(|error| api::unreadable(&error))
}
