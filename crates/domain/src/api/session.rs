//! Who is asking: tokens, roles, and the browser's session.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::time::TimestampMs;

/// What a token may do. Each role includes those before it, but for `scrape` and `join`, which may do one thing only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Read everything.
    Viewer,
    /// Also start and stop runs, silence alerts.
    Operator,
    /// Also tokens, webhooks, users.
    Admin,
    /// Only `/metrics`.
    Scrape,
    /// Only connect an agent.
    Join,
}

impl Role {
    /// Whether a token of this role may do what needs `needed`.
    #[must_use]
    pub fn allows(self, needed: Role) -> bool {
        let rank = |role| match role {
            Role::Viewer => Some(0),
            Role::Operator => Some(1),
            Role::Admin => Some(2),
            Role::Scrape | Role::Join => None,
        };
        match (rank(self), rank(needed)) {
            (Some(has), Some(needs)) => has >= needs,
            (Some(_), None) => needed == Role::Scrape || self == Role::Admin,
            (None, _) => self == needed,
        }
    }
}

/// `POST /api/session`: log a browser in.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Login {
    /// An API token.
    pub token: String,
}

/// `GET /api/session`, and the answer to a log-in. The cookie itself is HttpOnly.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Session {
    /// What this session may do.
    pub role: Role,
    /// To be sent as `X-CSRF-Token` with every request that changes something; empty for bearer tokens.
    pub csrf: String,
    /// The collector's version.
    pub version: String,
    /// The collector's clock, to correct the browser's.
    pub now_ms: TimestampMs,
}

/// `POST /api/tokens`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct CreateToken {
    /// What it may do.
    pub role: Role,
    /// For people: who or what has it.
    #[serde(default)]
    pub note: String,
    /// Lifetime in seconds; for ever when empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
}

/// The one time a token is shown: answer to `POST /api/tokens` and `POST /api/tokens/join`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct NewToken {
    /// Its id, for listing and revoking.
    pub id: String,
    /// The secret.
    pub token: String,
    /// When it stops working.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<TimestampMs>,
}

/// `GET /api/tokens`: never the secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TokenView {
    /// Its id.
    pub id: String,
    /// What it may do.
    pub role: Role,
    /// For people.
    pub note: String,
    /// When it was made.
    pub created_ms: TimestampMs,
    /// When it stops working.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<TimestampMs>,
    /// When it was last used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_ms: Option<TimestampMs>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_include_the_smaller_ones_only() {
        assert!(
            Role::Admin.allows(Role::Viewer)
                && Role::Admin.allows(Role::Scrape)
                && Role::Admin.allows(Role::Join)
        );
        assert!(
            Role::Viewer.allows(Role::Scrape)
                && !Role::Viewer.allows(Role::Operator)
                && !Role::Operator.allows(Role::Join)
        );
        assert!(
            Role::Scrape.allows(Role::Scrape)
                && !Role::Scrape.allows(Role::Viewer)
                && !Role::Join.allows(Role::Scrape)
        );
    }
}
