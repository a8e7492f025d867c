//! Requests to the HTTP API with the session's cookie and CSRF token. Errors are sentences for users.

use domain::api::Problem;
use domain::run::spec::FieldError;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use gloo_net::http::{Method, RequestBuilder, Response};
use wasm_bindgen::JsValue;

use crate::json;
use crate::language::{tr, tr_with};

/// A request that failed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ApiError {
    /// The HTTP status; 0 if there was no response.
    pub(crate) status: u16,
    /// The error message for users.
    pub(crate) message: String,
    /// Errors per field of a form.
    pub(crate) fields: Vec<FieldError>,
}

/// The response as JSON.
pub(crate) type ResponseFuture = LocalBoxFuture<'static, Result<JsValue, ApiError>>;

/// Sends a request: with the CSRF token if it changes something, with a JSON body if there is one. One boxed function, so that it is
/// compiled once and not for each caller.
pub(crate) fn send(method: Method, path: &str, csrf: &str, body: Option<String>) -> ResponseFuture {
    let mut request = RequestBuilder::new(path).method(method);
    if !csrf.is_empty() {
        request = request.header("X-CSRF-Token", csrf);
    }
    let request = match body {
        Some(body) => request.header("Content-Type", "application/json").body(body),
        None => request.build(),
    };
    async move {
        let request = request.map_err(|error| unreadable(&error))?;
        let response = request.send().await.map_err(|_| ApiError {
            status: 0,
            message: tr("The collector does not answer. Is it running?").to_owned(),
            fields: vec![],
        })?;
        if response.ok() {
            parsed(&response).await
        } else {
            Err(refusal(response).await)
        }
    }
    .boxed_local()
}

async fn parsed(response: &Response) -> Result<JsValue, ApiError> {
    let text = response.text().await.map_err(|error| unreadable(&error))?;
    json::parse(&text).map_err(|error| unreadable(&error))
}

async fn refusal(response: Response) -> ApiError {
    let status = response.status();
    let problem = parsed(&response).await.ok();
    match problem.and_then(|problem| json::read::<Problem>(&problem).ok()) {
        Some(problem) => ApiError {
            status,
            message: if problem.detail.is_empty() {
                problem.title
            } else {
                problem.detail
            },
            fields: problem.errors,
        },
        None => ApiError {
            status,
            message: tr_with("The collector returned {status}.", &[("status", &status)]),
            fields: vec![],
        },
    }
}

/// Returns the error for a response that cannot be read.
pub(crate) fn unreadable(error: &dyn std::fmt::Display) -> ApiError {
    let message = tr_with(
        "Cannot read the collector's response ({error}). Reload the page: it may be outdated.",
        &[("error", &error)],
    );
    ApiError {
        status: 0,
        message,
        fields: vec![],
    }
}
