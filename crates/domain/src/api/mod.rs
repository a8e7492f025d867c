//! What the HTTP API exchanges: the dashboard, the CLI and `curl` all speak these types.
//!
//! Times are milliseconds since the epoch, in fields ending in `_ms`. Errors are RFC 9457 problem documents
//! ([`Problem`]). Under `/api/v1` the shapes are Prometheus' own.

pub mod alerts;
pub mod checkpoints;
pub mod diagnoses;
pub mod findings;
pub mod inspect;
pub mod nodes;
pub mod prometheus;
pub mod runs;
pub mod session;
pub mod silences;
pub mod store;
pub mod stream;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::spec::FieldError;

/// RFC 9457 problem document, `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// A stable name: `about:blank` or `urn:lockstep:NAME`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The HTTP status' meaning.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What happened, to what, and what to do next.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Field by field, for a form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
}
