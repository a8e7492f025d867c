//! The CLI's client of the collector. It uses the same HTTP API as every other client.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use domain::api::Problem;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::failure::Failure;
use crate::locate;

/// Longer than the collector's own query timeout, so that the collector's error message arrives first.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(130);
/// For requests that read or rewrite the whole store.
const LONG_TIMEOUT: Duration = Duration::from_secs(24 * 3_600);
const DEFAULT_URL: &str = "http://127.0.0.1:8470";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The collector's address and the credentials for it.
#[derive(Args, Clone)]
pub(crate) struct Target {
    /// Address of the collector.
    #[arg(
        long,
        env = "LOCKSTEP_URL",
        default_value = DEFAULT_URL,
        global = true
    )]
    url: String,
    /// API token. Default: the admin token in the data folder of a collector on this machine.
    /// Prefer the environment variable: other users of the machine can see arguments.
    #[arg(long, env = "LOCKSTEP_TOKEN", hide_env_values = true, global = true)]
    token: Option<String>,
    /// PEM file of the certificate authority that signed the collector's certificate.
    #[arg(long, env = "LOCKSTEP_TLS_CA", global = true)]
    tls_ca: Option<PathBuf>,
}

/// A configured connection to one collector.
pub(crate) struct Client {
    http: reqwest::Client,
    url: String,
    token: String,
}

impl Target {
    /// Makes a client. Sends nothing yet.
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        let url = self.url.trim_end_matches('/').to_owned();
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(Failure::Usage(format!(
                "--url {url:?} is not an http:// or https:// address"
            )));
        }
        // The admin token of this machine is sent to loopback addresses only.
        let local_token = || is_loopback(&url).then(locate::local_token).flatten();
        let token = self.token.clone().or_else(local_token).ok_or_else(|| {
            Failure::Usage(format!(
                "no token: set LOCKSTEP_TOKEN, or run this command on the collector's machine, with a loopback --url, as a user who can read {}",
                locate::data_dir().join("admin.token").display()
            ))
        })?;
        if token.trim().is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Failure::Usage(
                "the token contains invalid characters; copy it again".to_owned(),
            ));
        }
        let http = self.http(&url, REQUEST_TIMEOUT)?;
        Ok(Client { http, url, token })
    }

    /// Makes an HTTP client for `url`. It trusts only the certificates of `--tls-ca`, and uses no proxy for a loopback address.
    pub(crate) fn http(&self, url: &str, timeout: Duration) -> Result<reqwest::Client, Failure> {
        crate::command::install_crypto();
        let mut builder = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(timeout);
        if is_loopback(url) {
            // A proxy from the environment would receive the token.
            builder = builder.no_proxy();
        }
        builder = match &self.tls_ca {
            Some(path) => {
                let pem = std::fs::read(path)
                    .map_err(|error| Failure::Usage(format!("--tls-ca {}: {error}", path.display())))?;
                let authority = reqwest::Certificate::from_pem(&pem).map_err(|_| {
                    Failure::Usage(format!("--tls-ca {}: not a PEM certificate", path.display()))
                })?;
                builder.tls_certs_only([authority])
            }
            // The public certificate authorities are not included: a collector has its own certificate.
            None => builder.tls_certs_only([]),
        };
        builder.build().map_err(|error| Failure::Failed(error.into()))
    }

    /// Returns true if the user named a collector: by an address, by a token, or by having started one on this machine.
    pub(crate) fn is_configured(&self) -> bool {
        self.url() != DEFAULT_URL || self.token.is_some() || locate::local_token().is_some()
    }

    /// The collector's address as given, without trailing slashes.
    pub(crate) fn url(&self) -> &str {
        self.url.trim_end_matches('/')
    }
}

/// Returns the innermost cause of an error. The outer ones only say that a request failed.
pub(crate) fn last_cause(error: &reqwest::Error) -> String {
    let first: &dyn std::error::Error = error;
    let last = std::iter::successors(Some(first), |error| error.source()).last();
    last.map(ToString::to_string).unwrap_or_default()
}

fn is_loopback(url: &str) -> bool {
    let host = reqwest::Url::parse(url)
        .ok()
        .and_then(|url| url.host_str().map(str::to_owned));
    host.is_some_and(|host| {
        let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    })
}

impl Client {
    /// Makes a client of a collector that runs in this process.
    pub(crate) fn with_token(url: &str, token: &str) -> Result<Self, Failure> {
        let target = Target {
            url: url.to_owned(),
            token: Some(token.to_owned()),
            tls_ca: None,
        };
        target.client()
    }

    /// `GET path` with query parameters.
    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<T, Failure> {
        self.json(self.request(Method::GET, path).query(query)).await
    }

    /// `POST path` with a JSON body.
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        self.json(self.request(Method::POST, path).json(body)).await
    }

    /// `POST path` with a form. The response has no body.
    pub(crate) async fn post_form(&self, path: &str, form: &[(&str, String)]) -> Result<(), Failure> {
        let request = self.request(Method::POST, path).form(form).timeout(LONG_TIMEOUT);
        self.send(request).await.map(drop)
    }

    /// `GET path`. The caller reads the response as it arrives; the timeout is [`LONG_TIMEOUT`].
    pub(crate) async fn stream(&self, path: &str, query: &[(&str, String)]) -> Result<Response, Failure> {
        let request = self.request(Method::GET, path).query(query).timeout(LONG_TIMEOUT);
        self.send(request).await
    }

    /// `DELETE path`.
    pub(crate) async fn delete(&self, path: &str) -> Result<(), Failure> {
        self.send(self.request(Method::DELETE, path)).await.map(drop)
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http
            .request(method, format!("{}{path}", self.url))
            .bearer_auth(&self.token)
    }

    async fn json<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, Failure> {
        let response = self.send(request).await?;
        response.json().await.map_err(|error| {
            Failure::Failed(
                anyhow::Error::new(error)
                    .context("the collector's response could not be parsed; check that the client and the collector have the same version"),
            )
        })
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = response.text().await.unwrap_or_default();
        Err(error_from_response(status, &body))
    }

    fn unreachable(&self, error: &reqwest::Error) -> Failure {
        let cause = last_cause(error);
        let next = if cause.contains("certificate") {
            "Set the certificate to trust with --tls-ca or LOCKSTEP_TLS_CA"
        } else {
            "Start one with `lockstep up`, or set its address with --url or LOCKSTEP_URL"
        };
        Failure::Unreachable(format!("no collector answers at {}: {cause}. {next}", self.url))
    }
}

/// Reads both error formats of the collector: problem documents, and Prometheus' own under /api/v1.
fn error_from_response(status: StatusCode, body: &str) -> Failure {
    #[derive(serde::Deserialize)]
    struct PrometheusError {
        error: String,
    }
    let message = if let Ok(problem) = serde_json::from_str::<Problem>(body) {
        let fields = problem
            .errors
            .iter()
            .map(|e| format!("\n  {}: {}", e.field, e.message))
            .collect::<String>();
        let text = if problem.detail.is_empty() {
            problem.title
        } else {
            problem.detail
        };
        format!("{text}{fields}")
    } else if let Ok(error) = serde_json::from_str::<PrometheusError>(body) {
        error.error
    } else {
        format!("the collector answered {status}")
    };
    match status.as_u16() {
        400 | 422 => Failure::Usage(message),
        _ => Failure::Failed(anyhow::anyhow!(message)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_admin_token_of_this_machine_stays_on_it() {
        for local in [
            "http://127.0.0.1:8470",
            "http://localhost",
            "https://[::1]:1",
            "http://127.9.9.9",
        ] {
            assert!(is_loopback(local), "{local}");
        }
        for other in [
            "http://10.0.0.1:8470",
            "http://localhost.example",
            "http://127.0.0.1@example.org",
            "http://",
        ] {
            assert!(!is_loopback(other), "{other}");
        }
    }
}
