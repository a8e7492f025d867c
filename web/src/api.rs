//! The HTTP API: requests with the session's cookie and CSRF token, errors as sentences.

use domain::api::Problem;
use domain::run::spec::FieldError;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use gloo_net::http::{Request, RequestBuilder, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

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

/// `GET`.
pub(crate) async fn get<T: DeserializeOwned>(path: &str) -> Result<T, ApiError> {
    read(&send(Request::get(path).build()).await?)
}

/// `POST` with a JSON body.
pub(crate) async fn post<T: DeserializeOwned>(
    path: &str,
    csrf: &str,
    body: &impl Serialize,
) -> Result<T, ApiError> {
    read(&send(with_csrf(Request::post(path), csrf).json(body)).await?)
}

/// `DELETE`.
pub(crate) async fn delete(path: &str, csrf: &str) -> Result<(), ApiError> {
    send(with_csrf(Request::delete(path), csrf).build())
        .await
        .map(drop)
}

fn with_csrf(request: RequestBuilder, csrf: &str) -> RequestBuilder {
    if csrf.is_empty() {
        request
    } else {
        request.header("X-CSRF-Token", csrf)
    }
}

/// Sends a request and gives the answer's text. Boxed, so that it is compiled once and not into each who asks.
fn send(request: Result<Request, gloo_net::Error>) -> LocalBoxFuture<'static, Result<String, ApiError>> {
    async move {
        let request = request.map_err(|error| unreadable(&error))?;
        let response = request.send().await.map_err(|_| ApiError {
            status: 0,
            message: "The collector does not answer. Is it running?".to_owned(),
            fields: vec![],
        })?;
        if response.ok() {
            response.text().await.map_err(|error| unreadable(&error))
        } else {
            Err(refusal(response).await)
        }
    }
    .boxed_local()
}

async fn refusal(response: Response) -> ApiError {
    let status = response.status();
    match response.json::<Problem>().await {
        Ok(problem) => ApiError {
            status,
            message: if problem.detail.is_empty() {
                problem.title
            } else {
                problem.detail
            },
            fields: problem.errors,
        },
        Err(_) => ApiError {
            status,
            message: format!("The collector answered {status}."),
            fields: vec![],
        },
    }
}

fn read<T: DeserializeOwned>(text: &str) -> Result<T, ApiError> {
    // An answer without a body reads as `null`.
    let text = if text.is_empty() { "null" } else { text };
    serde_json::from_str(text).map_err(|error| unreadable(&error))
}

fn unreadable(error: &dyn std::fmt::Display) -> ApiError {
    let message =
        format!("The answer could not be read ({error}); reload the page, it may be of another version.");
    ApiError {
        status: 0,
        message,
        fields: vec![],
    }
}
