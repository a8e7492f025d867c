//! Requests and responses of the HTTP API. The dashboard and the CLI use these types too.
//!
//! Times are milliseconds since the epoch, in fields whose names end in `_ms`. Errors are RFC 9457 problem documents ([`Problem`]).
//! Responses under `/api/v1` have the same form as in Prometheus.

pub mod alerts;
pub mod bundle;
pub mod checkpoints;
pub mod diagnoses;
pub mod findings;
pub mod frames;
pub mod goodput;
pub mod inspect;
pub mod lists;
pub mod nodes;
pub mod prometheus;
pub mod runs;
pub mod session;
pub mod silences;
pub mod store;
pub mod stream;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::checkpoints::PruneLine;
use crate::run::spec::FieldError;

/// RFC 9457 problem document, `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// Stable identifier of the error: `about:blank` or `urn:lockstep:NAME`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Meaning of the HTTP status.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// What happened, to what, and what to do next.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Errors per field, for forms.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    /// Checkpoints that a prune would remove now. Set if the request named others, so that nothing was removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removes: Vec<PruneLine>,
}
