//! The server of `/metrics`: HTTP or HTTPS, with or without a token. It serves only this page.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use axum_server::Handle;
use axum_server::tls_rustls::RustlsConfig;
use listener::{Connection, Connections, HEAD_TIMEOUT, Limits};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio_util::sync::CancellationToken;

use super::{Exporter, MetricSelection};
use crate::config::{MetricsConfig, Secret, TlsFiles};

/// Each scraper keeps one connection. The server may close a connection that has not presented the token, to accept a newer one. A scraper
/// whose idle connection is closed connects again.
const CONNECTIONS: Limits = Limits {
    total: 256,
    unauthenticated: 192,
    unauthenticated_per_address: 64,
    head_timeout: HEAD_TIMEOUT,
};
/// How long responses in progress may take when the agent stops.
const LAST_ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// Errors of the metrics server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be used.
    #[error("cannot serve metrics at {address}; choose another address with --metrics-listen")]
    Listen {
        /// The address to listen on.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The certificate or its private key cannot be used.
    #[error(
        "cannot serve metrics with the certificate {cert:?}; check --metrics-tls-cert and --metrics-tls-key (PEM)"
    )]
    Tls {
        /// The certificate file.
        cert: PathBuf,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The token file cannot be read.
    #[error("cannot read the token of --metrics-token-file {path:?}")]
    Token {
        /// The token file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The token file is empty. An empty token would accept all clients or none, and neither is intended.
    #[error("--metrics-token-file {path:?} is empty; write a token into it")]
    NoToken {
        /// The token file.
        path: PathBuf,
    },
}

/// A bound listener with everything that it needs to serve.
#[derive(Debug)]
pub(crate) struct Server {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<RustlsConfig>,
    token: Option<Token>,
}

/// The digest of a token. Comparing two digests takes the same time wherever they differ.
#[derive(Debug, Clone)]
struct Token([u8; 32]);

/// The state that requests use.
#[derive(Debug)]
struct Shared {
    exporter: Exporter,
    token: Option<Token>,
}

impl Server {
    /// Binds the address and reads the certificate, its key and the token. Returns `None` if no address is configured, or if the address is
    /// in use and is not required.
    ///
    /// # Errors
    /// See [`ServerError`].
    pub(crate) fn bind(config: &MetricsConfig) -> Result<Option<Self>, ServerError> {
        let Some(address) = config.listen else {
            return Ok(None);
        };
        let tls = config.tls.as_ref().map(server_tls).transpose()?;
        let token = config.token_file.as_deref().map(read_token).transpose()?;
        let failed = |source| ServerError::Listen { address, source };
        let listener = match TcpListener::bind(address) {
            Ok(listener) => listener,
            Err(error) if !config.required && error.kind() == io::ErrorKind::AddrInUse => {
                tracing::warn!(%address, "the metrics address is already in use, so this agent's metrics are not served; choose another address with --metrics-listen");
                return Ok(None);
            }
            Err(source) => return Err(failed(source)),
        };
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Some(Self {
            listener,
            address,
            tls,
            token,
        }))
    }

    /// Serves metrics until `shutdown` is cancelled.
    pub(crate) async fn serve(self, exporter: Exporter, shutdown: CancellationToken) {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        tracing::info!(
            token = self.token.is_some(),
            "metrics at {scheme}://{}/metrics",
            self.address
        );
        if self.token.is_some() && self.tls.is_none() && !self.address.ip().is_loopback() {
            tracing::warn!(
                "the token for /metrics is sent without encryption; enable TLS with --metrics-tls-cert and --metrics-tls-key"
            );
        }
        let shared = Shared {
            exporter,
            token: self.token,
        };
        let app = Router::new()
            .route("/metrics", get(metrics))
            .with_state(Arc::new(shared));
        let handle = Handle::new();
        let ender = handle.clone();
        tokio::spawn(async move {
            shutdown.cancelled().await;
            ender.graceful_shutdown(Some(LAST_ANSWERS_WITHIN));
        });
        let connections = Connections::new(CONNECTIONS, Vec::new());
        if let Err(error) = listener::serve(self.listener, self.tls, app, connections, handle).await {
            tracing::warn!(%error, "the metrics server stopped");
        }
    }
}

async fn metrics(
    State(shared): State<Arc<Shared>>,
    Extension(connection): Extension<Connection>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    if let Some(token) = &shared.token {
        if !bearer(&headers).is_some_and(|shown| token.is(shown)) {
            let ask = [(header::WWW_AUTHENTICATE, "Bearer")];
            let words = "a token is required: send the header Authorization: Bearer TOKEN\n";
            return (StatusCode::UNAUTHORIZED, ask, words).into_response();
        }
        connection.authenticate();
    }
    let selection = match MetricSelection::parse(query.as_deref().unwrap_or_default()) {
        Ok(selection) => selection,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok());
    let format = shared.exporter.format(&selection, accept);
    let page = shared.exporter.page(&selection, format);
    ([(header::CONTENT_TYPE, format.content_type())], page).into_response()
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let shown = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = shown.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

impl Token {
    fn new(secret: &Secret) -> Self {
        Self(Sha256::digest(secret.expose()).into())
    }

    fn is(&self, shown: &str) -> bool {
        let shown: [u8; 32] = Sha256::digest(shown).into();
        self.0.ct_eq(&shown).into()
    }
}

fn read_token(path: &Path) -> Result<Token, ServerError> {
    let text = std::fs::read_to_string(path).map_err(|source| ServerError::Token {
        path: path.to_owned(),
        source,
    })?;
    let secret = Secret::new(text);
    if secret.expose().is_empty() {
        return Err(ServerError::NoToken {
            path: path.to_owned(),
        });
    }
    Ok(Token::new(&secret))
}

fn server_tls(files: &TlsFiles) -> Result<RustlsConfig, ServerError> {
    let read = || -> Result<rustls::ServerConfig, Box<dyn std::error::Error + Send + Sync>> {
        let chain = CertificateDer::pem_file_iter(&files.cert)?.collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_file(&files.key)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    };
    let config = read().map_err(|source| ServerError::Tls {
        cert: files.cert.clone(),
        source,
    })?;
    Ok(RustlsConfig::from_config(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn only_the_whole_token_is_the_token() {
        let token = Token::new(&Secret::new("s3cret\n"));
        assert!(token.is("s3cret"));
        for other in ["", "s3cre", "s3cret2", "S3CRET"] {
            assert!(!token.is(other), "{other:?}");
        }
        let headers =
            |value: &'static str| HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
        assert_eq!(bearer(&headers("bearer  s3cret")), Some("s3cret"));
        assert_eq!(bearer(&headers("Basic s3cret")), None);
        assert_eq!(bearer(&HeaderMap::new()), None);
    }

    #[test]
    fn an_empty_or_missing_token_file_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert!(read_token(&path).unwrap_err().to_string().contains("token"));
        std::fs::write(&path, " \n").unwrap();
        assert!(read_token(&path).unwrap_err().to_string().contains("is empty"));
    }
}
