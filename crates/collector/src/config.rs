//! What the collector is told at its start.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use crate::error::StartError;

/// The port of HTTP and gRPC.
pub const PORT_DEFAULT: u16 = 8470;
/// An admin token shorter than this can be guessed; ours have 43 characters behind their prefix.
pub const ADMIN_TOKEN_CHARS_MIN: usize = 20;

/// Everything that can be set. Start from [`Config::new`].
#[derive(Debug, Clone)]
pub struct Config {
    /// Where to listen; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Where everything is kept.
    pub data_dir: PathBuf,
    /// Listen on a public address even without TLS.
    pub insecure_public: bool,
    /// Certificate and key; none for plain HTTP.
    pub tls: Option<TlsFiles>,
    /// The admin token; made at the first start and kept in the data folder when none is given.
    pub admin_token: Option<Secret>,
    /// Where people find this collector, for links in messages; made from the listen address when none is given.
    pub public_url: Option<String>,
    /// How long samples are kept, in milliseconds; the store's default when none is given.
    pub retention_ms: Option<i64>,
}

/// PEM files of a server certificate.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The certificate, then its chain.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

impl Config {
    /// Loopback, no TLS, a generated admin token.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, PORT_DEFAULT)),
            data_dir: data_dir.into(),
            insecure_public: false,
            tls: None,
            admin_token: None,
            public_url: None,
            retention_ms: None,
        }
    }

    /// Refuses what would be unsafe.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        if !self.listen.ip().is_loopback() && self.tls.is_none() && !self.insecure_public {
            return Err(StartError::PublicWithoutTls { listen: self.listen });
        }
        match &self.admin_token {
            Some(token) if token.expose().chars().count() < ADMIN_TOKEN_CHARS_MIN => {
                Err(StartError::WeakAdminToken)
            }
            _ => Ok(()),
        }
    }
}

/// A text that is never printed, logged or serialised by accident.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself, for the one who needs it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(listen: &str) -> Config {
        Config {
            listen: listen.parse().expect("an address"),
            ..Config::new("/nowhere")
        }
    }

    #[test]
    fn a_public_address_needs_tls_or_a_word() {
        for loopback in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1"] {
            assert!(config(loopback).check().is_ok(), "{loopback}");
        }
        for public in ["0.0.0.0:1", "10.0.0.1:1", "[::]:1"] {
            let refused = config(public).check().expect_err(public).to_string();
            assert!(
                refused.contains("--tls-cert") && refused.contains("--insecure-public"),
                "{refused}"
            );
            assert!(
                Config {
                    insecure_public: true,
                    ..config(public)
                }
                .check()
                .is_ok(),
                "{public}"
            );
        }
    }

    #[test]
    fn a_guessable_admin_token_is_refused_and_none_is_printed() {
        let weak = Config {
            admin_token: Some(Secret::new("hunter2")),
            ..config("127.0.0.1:1")
        };
        assert!(matches!(weak.check(), Err(StartError::WeakAdminToken)));
        assert!(!format!("{weak:?}").contains("hunter2"));
    }
}
