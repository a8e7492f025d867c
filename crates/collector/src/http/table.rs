//! The table of endpoints: the required role and the time limit of each. Each endpoint declares them where it is routed. The table is built
//! from the OpenAPI document, which is generated from the same routes.
//!
//! ```text
//! routes() ─ api_route(path, get_with(handler, needs(role, summary))) ─▶ OpenApi ─┬▶ Table ─▶ auth, limits
//!                                                                                 └▶ /api/openapi.json, docs/api.md
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aide::OperationOutput;
use aide::openapi::{Info, OpenApi, Operation, ReferenceOr, SecurityScheme};
use aide::transform::TransformOperation;
use axum::Json;
use axum::extract::State;
use axum::http::Method;
use domain::api::Problem;
use domain::api::session::Role;

use super::error::ApiError;
use super::query::Params;

/// The OpenAPI extension with the required role.
const ROLE: &str = "x-lockstep-role";
/// The OpenAPI extension with the time limit of a request in seconds, if it is not the default.
const WITHIN_S: &str = "x-lockstep-within-s";
const SCHEME: &str = "token";

/// Describes an endpoint that needs a role.
pub(super) fn needs(
    role: Role,
    summary: &'static str,
) -> impl FnOnce(TransformOperation<'_>) -> TransformOperation<'_> {
    move |mut operation| {
        let word = serde_json::to_value(role).expect("a role is a word");
        operation.inner_mut().extensions.insert(ROLE.to_owned(), word);
        operation.summary(summary).security_requirement(SCHEME)
    }
}

/// Describes an endpoint that needs no token.
pub(super) fn needs_no_token(
    summary: &'static str,
) -> impl FnOnce(TransformOperation<'_>) -> TransformOperation<'_> {
    move |operation| operation.summary(summary)
}

/// Describes an endpoint that needs a role and has its own time limit.
pub(super) fn needs_time(
    role: Role,
    within: Duration,
    summary: &'static str,
) -> impl FnOnce(TransformOperation<'_>) -> TransformOperation<'_> {
    move |mut operation| {
        let seconds = within.as_secs().into();
        operation
            .inner_mut()
            .extensions
            .insert(WITHIN_S.to_owned(), seconds);
        needs(role, summary)(operation)
    }
}

/// An endpoint of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// The required role.
    pub role: Role,
    /// The time limit of a request, if it is not the default.
    pub within: Option<Duration>,
}

/// All endpoints, by path template and method.
#[derive(Debug, Clone, Default)]
pub struct Table(Arc<BTreeMap<String, BTreeMap<String, Endpoint>>>);

impl Table {
    /// Builds the table from a document.
    pub(super) fn of(document: &OpenApi) -> Self {
        let paths = document.paths.iter().flat_map(|paths| &paths.paths);
        let endpoints = paths.filter_map(|(path, item)| {
            let ReferenceOr::Item(item) = item else {
                return None;
            };
            let by_method = item
                .iter()
                .filter_map(|(method, operation)| Some((method.to_uppercase(), endpoint(operation)?)));
            Some((path.clone(), by_method.collect()))
        });
        Self(Arc::new(endpoints.collect()))
    }

    /// Returns the endpoint of a request, or `None` if there is none.
    #[must_use]
    pub fn endpoint(&self, method: &Method, template: &str) -> Option<&Endpoint> {
        let method = if *method == Method::HEAD {
            &Method::GET
        } else {
            method
        };
        self.0.get(template)?.get(method.as_str())
    }

    /// Returns method, path and endpoint of each endpoint, ordered by path.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &Endpoint)> {
        self.0.iter().flat_map(|(path, by_method)| {
            by_method
                .iter()
                .map(move |(method, endpoint)| (method.as_str(), path.as_str(), endpoint))
        })
    }
}

fn endpoint(operation: &Operation) -> Option<Endpoint> {
    let role = serde_json::from_value(operation.extensions.get(ROLE)?.clone()).ok()?;
    let seconds = operation
        .extensions
        .get(WITHIN_S)
        .and_then(serde_json::Value::as_u64);
    Some(Endpoint {
        role,
        within: seconds.map(Duration::from_secs),
    })
}

/// A document without paths.
pub(super) fn document() -> OpenApi {
    let mut document = OpenApi {
        info: Info {
            title: "Lockstep".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..Info::default()
        },
        ..OpenApi::default()
    };
    let components = document.components.get_or_insert_default();
    let bearer = SecurityScheme::Http {
        scheme: "bearer".to_owned(),
        bearer_format: None,
        description: Some("A token of `lockstep token create`".to_owned()),
        extensions: Default::default(),
    };
    components
        .security_schemes
        .insert(SCHEME.to_owned(), ReferenceOr::Item(bearer));
    document
}

/// `GET /api/openapi.json`.
pub(super) async fn openapi(State(document): State<Arc<OpenApi>>) -> Json<Arc<OpenApi>> {
    Json(document)
}

impl OperationOutput for ApiError {
    type Inner = Problem;
}

impl aide::OperationInput for Params {}
