//! Tokens, roles, and the browser's session.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::time::TimestampMs;

/// Role of a token. Each role includes the roles before it, except `scrape` and `join`, which allow only one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Read everything.
    Viewer,
    /// Also start and stop runs, and silence alerts.
    Operator,
    /// Also manage tokens, webhooks and users.
    Admin,
    /// Only read `/metrics`.
    Scrape,
    /// Only connect an agent.
    Join,
}

impl Role {
    /// Returns true if a token of this role may do what requires the role `needed`.
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

/// Request body of `POST /api/session`, which logs a browser in.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Login {
    /// An API token.
    pub token: String,
}

/// Response of `GET /api/session` and of the login. The session cookie is HttpOnly.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Session {
    /// Role of the session.
    pub role: Role,
    /// Value of the header `X-CSRF-Token`, required for every request that changes something. Empty for bearer tokens.
    pub csrf: String,
    /// Version of the collector.
    pub version: String,
    /// Time of the collector's clock, to correct the browser's clock.
    pub now_ms: TimestampMs,
}

/// Request body of `POST /api/tokens`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct CreateToken {
    /// Role of the token.
    pub role: Role,
    /// Note for people: who or what uses the token.
    #[serde(default)]
    pub note: String,
    /// Lifetime in seconds. Default: no expiry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
}

/// Response to `POST /api/tokens` and `POST /api/tokens/join`. The only response that contains the token.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct NewToken {
    /// Id of the token, for listing and revoking.
    pub id: String,
    /// The secret token.
    pub token: String,
    /// When the token expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<TimestampMs>,
}

/// One token in `GET /api/tokens`, without the secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TokenView {
    /// Id of the token.
    pub id: String,
    /// Role of the token.
    pub role: Role,
    /// Note for people.
    pub note: String,
    /// When the token was created.
    pub created_ms: TimestampMs,
    /// When the token expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<TimestampMs>,
    /// When the token was last used.
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
