//! The HTTP API: requests with the session's cookie and CSRF token, errors as sentences.

use domain::api::Problem;
use domain::run::spec::FieldError;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use gloo_net::http::{Method, RequestBuilder, Response};
use wasm_bindgen::JsValue;

use crate::json;

/// A request that did not succeed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ApiError {
    /// The HTTP status; 0 when nobody answered.
    pub(crate) status: u16,
    /// What happened, for a person.
    pub(crate) message: String,
    /// Field by field, for a form.
    pub(crate) fields: Vec<FieldError>,
}

/// The answer's JSON.
pub(crate) type Asked = LocalBoxFuture<'static, Result<JsValue, ApiError>>;

/// Asks; with a CSRF token when it is to change something, with a body of JSON when there is one. One function for all, boxed,
/// so that it is compiled once and not into each who asks.
pub(crate) fn ask(method: Method, path: &str, csrf: &str, body: Option<String>) -> Asked {
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
            message: "The collector does not answer. Is it running?".to_owned(),
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
            message: format!("The collector answered {status}."),
            fields: vec![],
        },
    }
}

/// An answer that is not what was expected.
pub(crate) fn unreadable(error: &dyn std::fmt::Display) -> ApiError {
    let message =
        format!("The answer could not be read ({error}); reload the page, it may be of another version.");
    ApiError {
        status: 0,
        message,
        fields: vec![],
    }
}
