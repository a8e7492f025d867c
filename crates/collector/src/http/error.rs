//! Errors of the API: RFC 9457 problem documents, and Prometheus' own form under `/api/v1`.
//!
//! Handlers return an [`ApiError`]. The outermost layer, [`shape`], converts all other errors (a body that is too large, an unknown method)
//! to the same form, so that clients parse one form only.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use domain::api::Problem;
use domain::api::checkpoints::PruneLine;
use domain::api::prometheus::Answer;
use domain::run::spec::FieldError;
use store::state::StateError;

use crate::evaluator::QueryError;
use crate::self_metrics::SelfMetrics;

/// Maximum number of bytes kept of a library's own error text.
const DETAIL_BYTES_MAX: usize = 2_048;

/// Why a request failed, in words for the user.
#[derive(Debug, Clone)]
pub struct ApiError {
    status: StatusCode,
    detail: String,
    errors: Vec<FieldError>,
    /// The checkpoints that a prune would remove now, if the request named others.
    removes: Vec<PruneLine>,
    /// Prometheus' error type, if it differs from the one for the status.
    prometheus: Option<&'static str>,
    retry_after_s: Option<u64>,
}

/// The result of an endpoint.
pub type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    /// Creates an error with any status. The text says what happened, to what, and what to do next.
    #[must_use]
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
            errors: Vec::new(),
            removes: Vec::new(),
            prometheus: None,
            retry_after_s: None,
        }
    }

    /// 400: the request is invalid.
    #[must_use]
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// 401: the token is missing or invalid.
    #[must_use]
    pub fn unauthorized(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, detail)
    }

    /// 403: the token is valid, but its role does not allow this.
    #[must_use]
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, detail)
    }

    /// 404: not found.
    #[must_use]
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// 409: not possible in the current state.
    #[must_use]
    pub fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, detail)
    }

    /// Adds the checkpoints that a prune would remove now.
    #[must_use]
    pub fn with_removes(self, removes: Vec<PruneLine>) -> Self {
        Self { removes, ..self }
    }

    /// 422: valid syntax, but some fields are not acceptable.
    #[must_use]
    pub fn invalid(detail: impl Into<String>, errors: Vec<FieldError>) -> Self {
        Self {
            errors,
            ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
        }
    }

    /// 429: too many requests.
    #[must_use]
    pub fn too_many(detail: impl Into<String>, retry_after_s: u64) -> Self {
        Self {
            retry_after_s: Some(retry_after_s),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, detail)
        }
    }

    /// 503: not possible now.
    #[must_use]
    pub fn unavailable(detail: impl Into<String>) -> Self {
        Self::busy(detail, 1)
    }

    /// 503: not possible now, retry after some seconds.
    #[must_use]
    pub fn busy(detail: impl Into<String>, retry_after_s: u64) -> Self {
        Self {
            retry_after_s: Some(retry_after_s),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        }
    }

    /// 500: an error of the collector. The cause is logged, not sent to the client.
    #[must_use]
    pub fn internal(doing: &str, error: &(dyn std::error::Error + 'static)) -> Self {
        let causes: Vec<_> = std::iter::successors(error.source(), |error| error.source())
            .map(ToString::to_string)
            .collect();
        tracing::error!(%error, ?causes, "failed while {doing}");
        let detail = format!("the collector failed while {doing}; its log says why");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, detail)
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    fn problem(&self) -> Problem {
        Problem {
            kind: "about:blank".into(),
            title: self.status.canonical_reason().unwrap_or("Error").into(),
            status: self.status.as_u16(),
            detail: self.detail.clone(),
            errors: self.errors.clone(),
            removes: self.removes.clone(),
        }
    }

    fn answer(&self) -> Answer<()> {
        Answer {
            status: "error".into(),
            data: None,
            error_type: Some(self.prometheus.unwrap_or(error_type(self.status)).into()),
            error: Some(self.detail.clone()),
            warnings: Vec::new(),
            infos: Vec::new(),
        }
    }
}

fn error_type(status: StatusCode) -> &'static str {
    match status {
        StatusCode::NOT_FOUND => "not_found",
        StatusCode::UNAUTHORIZED => "unauthorized",
        StatusCode::FORBIDDEN => "forbidden",
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => "unavailable",
        status if status.is_server_error() => "internal",
        _ => "bad_data",
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Json(self.problem()).into_response();
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(self);
        response
    }
}

impl From<StateError> for ApiError {
    fn from(error: StateError) -> Self {
        match error {
            StateError::Conflict { .. } | StateError::Exists { .. } | StateError::Full { .. } => {
                Self::conflict(error.to_string())
            }
            error => Self::internal("reading or writing its state", &error),
        }
    }
}

impl From<QueryError> for ApiError {
    /// Uses Prometheus' status codes: 400 for an invalid query, 422 for one that cannot be evaluated, 503 if the time was over.
    fn from(error: QueryError) -> Self {
        let status = match error.reason() {
            "bad_data" => StatusCode::BAD_REQUEST,
            "execution" => StatusCode::UNPROCESSABLE_ENTITY,
            "timeout" | "canceled" => StatusCode::SERVICE_UNAVAILABLE,
            "unavailable" => return Self::unavailable(error.to_string()),
            _ => return Self::internal("reading series", &error),
        };
        Self {
            prometheus: Some(error.reason()),
            ..Self::new(status, error.to_string())
        }
    }
}

/// The answer to unknown paths under `/api`.
pub(super) async fn unknown_endpoint(uri: Uri) -> ApiError {
    ApiError::not_found(format!(
        "there is no endpoint {}; check its spelling, and that client and collector have the same version",
        uri.path()
    ))
}

/// Converts every error to the form of its path, and counts answers.
pub(super) async fn shape(State(metrics): State<Arc<SelfMetrics>>, request: Request, next: Next) -> Response {
    let prometheus = request.uri().path().starts_with("/api/v1/");
    let mut response = next.run(request).await;
    metrics
        .requests
        .with_label_values(&[class(response.status())])
        .inc();
    if !response.status().is_client_error() && !response.status().is_server_error() {
        return response;
    }
    let known = response.extensions_mut().remove::<ApiError>();
    match known {
        Some(error) if prometheus => as_prometheus(&error, response),
        Some(_) => response,
        None if is_json(&response) => response,
        None => {
            let error = read_error(response).await;
            if prometheus {
                as_prometheus(&error, error.clone().into_response())
            } else {
                error.into_response()
            }
        }
    }
}

fn class(status: StatusCode) -> &'static str {
    match status.as_u16() / 100 {
        1 => "1xx",
        2 => "2xx",
        3 => "3xx",
        4 => "4xx",
        _ => "5xx",
    }
}

fn is_json(response: &Response) -> bool {
    let kind = response
        .headers()
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("application/") && kind.contains("json"))
}

/// Converts an error to Prometheus' form. Status and headers stay the same.
fn as_prometheus(error: &ApiError, mut response: Response) -> Response {
    let body = serde_json::to_vec(&error.answer()).expect("an answer without data serialises");
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.remove(header::CONTENT_LENGTH);
    headers.remove(header::CONTENT_ENCODING);
    *response.body_mut() = Body::from(body);
    response
}

/// Converts an error that a library has answered to an [`ApiError`].
async fn read_error(response: Response) -> ApiError {
    let status = response.status();
    let text = match axum::body::to_bytes(response.into_body(), DETAIL_BYTES_MAX).await {
        Ok(bytes) => String::from_utf8_lossy(&bytes).trim().to_owned(),
        Err(_) => String::new(),
    };
    let detail = match status {
        StatusCode::METHOD_NOT_ALLOWED => "this endpoint does not support this method".into(),
        StatusCode::PAYLOAD_TOO_LARGE => format!("the request body is too large: {text}"),
        _ => text,
    };
    ApiError::new(status, detail)
}
