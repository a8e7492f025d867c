//! One delivery to one webhook, signed according to Standard Webhooks: HMAC-SHA256 over `id.timestamp.body`.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use domain::time::TimestampMs;
use hmac::{Hmac, KeyInit, Mac};
use reqwest::StatusCode;
use sha2::Sha256;
use store::state::webhooks::Webhook;

use super::message::Message;

/// Time limit of a request. A slower receiver is tried again later.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The prefix of a signing secret.
pub const SECRET_PREFIX: &str = "whsec_";

/// Why a message was not delivered. The text does not contain the URL, which may contain a secret.
#[derive(Debug, thiserror::Error)]
pub enum DeliveryError {
    /// The signing secret is malformed.
    #[error("the signing secret is not {SECRET_PREFIX} followed by base64")]
    Secret,
    /// The receiver did not answer.
    #[error("the receiver cannot be reached: {reason}")]
    Unreachable {
        /// The reason.
        reason: String,
        /// Whether there was a connection, so that the receiver may have the message although it did not answer.
        was_sent: bool,
    },
    /// The receiver answered with an error status.
    #[error("the receiver answered {0}")]
    Refused(StatusCode),
}

impl DeliveryError {
    /// Returns true if the receiver may have the message. An error status counts, because a proxy may have sent it.
    pub(super) fn was_sent(&self) -> bool {
        match self {
            Self::Secret => false,
            Self::Unreachable { was_sent, .. } => *was_sent,
            Self::Refused(_) => true,
        }
    }

    /// Returns true if the receiver rejects this message, so that another attempt is unlikely to succeed.
    pub(super) fn is_refusal(&self) -> bool {
        let for_now = [
            StatusCode::REQUEST_TIMEOUT,
            StatusCode::TOO_EARLY,
            StatusCode::TOO_MANY_REQUESTS,
        ];
        matches!(self, Self::Refused(status) if status.is_client_error() && !for_now.contains(status))
    }
}

/// Creates a client that follows no redirects: a message goes only to the configured URL.
pub(super) fn client() -> Result<reqwest::Client, reqwest::Error> {
    reqwest::Client::builder()
        .timeout(TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .build()
}

/// Posts a message.
pub(super) async fn post(
    client: &reqwest::Client,
    webhook: &Webhook,
    message: &Message,
    now_ms: TimestampMs,
) -> Result<(), DeliveryError> {
    let timestamp = (now_ms / 1_000).to_string();
    let signature = sign(&webhook.secret, &message.id, &timestamp, &message.body)?;
    let request = client
        .post(&webhook.url)
        .header("content-type", "application/json")
        .header("user-agent", concat!("lockstep/", env!("CARGO_PKG_VERSION")))
        .header("webhook-id", &message.id)
        .header("webhook-timestamp", timestamp)
        .header("webhook-signature", signature)
        .body(message.body.clone());
    let response = request.send().await.map_err(|error| DeliveryError::Unreachable {
        reason: root_cause(&error),
        was_sent: !error.is_connect(),
    })?;
    let status = response.status();
    if status.is_success() {
        Ok(())
    } else {
        Err(DeliveryError::Refused(status))
    }
}

/// Returns the value of `webhook-signature`.
///
/// # Errors
/// Returns an error if the secret is malformed.
pub fn sign(secret: &str, id: &str, timestamp: &str, body: &str) -> Result<String, DeliveryError> {
    let key = secret
        .strip_prefix(SECRET_PREFIX)
        .and_then(|text| STANDARD.decode(text).ok())
        .ok_or(DeliveryError::Secret)?;
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).map_err(|_| DeliveryError::Secret)?;
    mac.update(format!("{id}.{timestamp}.{body}").as_bytes());
    Ok(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
}

/// Returns the innermost cause, without the URL that the outer ones repeat.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    if error.is_timeout() {
        format!("no answer within {} s", TIMEOUT.as_secs())
    } else {
        cause.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the Standard Webhooks specification.
    #[test]
    fn signatures_are_as_specified() {
        let signature = sign(
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            "1614265330",
            r#"{"test": 2432232314}"#,
        );
        assert_eq!(
            signature.expect("a good secret"),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
        assert!(sign("hunter2", "", "", "").is_err());
    }
}
