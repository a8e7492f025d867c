//! The HTTP API: requests with the session's cookie and CSRF token, errors as sentences.

use domain::api::Problem;
use domain::run::spec::FieldError;
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
    read(sent(Request::get(path).send().await).await?).await
}

/// `POST` with a JSON body.
pub(crate) async fn post<T: DeserializeOwned>(
    path: &str,
    csrf: &str,
    body: &impl Serialize,
) -> Result<T, ApiError> {
    let request = with_csrf(Request::post(path), csrf)
        .json(body)
        .map_err(|error| unreadable(&error))?;
    read(sent(request.send().await).await?).await
}

/// `DELETE`.
pub(crate) async fn delete(path: &str, csrf: &str) -> Result<(), ApiError> {
    sent(with_csrf(Request::delete(path), csrf).send().await)
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

async fn sent(result: Result<Response, gloo_net::Error>) -> Result<Response, ApiError> {
    let response = result.map_err(|_| ApiError {
        status: 0,
        message: "The collector does not answer. Is it running?".to_owned(),
        fields: vec![],
    })?;
    if response.ok() {
        return Ok(response);
    }
    let problem = response.json::<Problem>().await.ok();
    let said = problem.as_ref().map(|p| {
        if p.detail.is_empty() {
            p.title.clone()
        } else {
            p.detail.clone()
        }
    });
    Err(ApiError {
        status: response.status(),
        message: said.unwrap_or_else(|| format!("The collector answered {}.", response.status())),
        fields: problem.map(|p| p.errors).unwrap_or_default(),
    })
}

async fn read<T: DeserializeOwned>(response: Response) -> Result<T, ApiError> {
    let text = response.text().await.map_err(|error| unreadable(&error))?;
    // An answer without a body reads as `null`.
    let text = if text.is_empty() { "null" } else { &text };
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
