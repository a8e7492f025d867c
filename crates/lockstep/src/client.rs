//! The CLI's way to the collector: the same HTTP API as everyone's.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use domain::api::Problem;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::failure::Failure;
use crate::locate;

/// Longer than the collector's own time-out for a query, so that its answer wins.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(130);
/// For what reads or rewrites everything there is.
const LONG_TIMEOUT: Duration = Duration::from_secs(24 * 3_600);
const DEFAULT_URL: &str = "http://127.0.0.1:8470";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the collector is and how to be let in.
#[derive(Args, Clone)]
pub(crate) struct Target {
    /// The collector's address.
    #[arg(
        long,
        env = "LOCKSTEP_URL",
        default_value = DEFAULT_URL,
        global = true
    )]
    url: String,
    /// An API token. Without one, the admin token in the data folder of a collector on this machine is used.
    /// Prefer the variable: arguments are visible to other users of the machine.
    #[arg(long, env = "LOCKSTEP_TOKEN", hide_env_values = true, global = true)]
    token: Option<String>,
    /// PEM file of the certificate authority that signed the collector's certificate.
    #[arg(long, env = "LOCKSTEP_TLS_CA", global = true)]
    tls_ca: Option<PathBuf>,
}

/// A collector that can be asked.
pub(crate) struct Client {
    http: reqwest::Client,
    url: String,
    token: String,
}

impl Target {
    /// Makes a client; nothing is sent yet.
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        let url = self.url.trim_end_matches('/').to_owned();
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(Failure::Usage(format!(
                "--url {url:?} is not an http:// or https:// address"
            )));
        }
        let data_dir = data_dir();
        // This machine's admin token is nobody else's business: it goes to this machine only.
        let local = is_loopback(&url);
        let kept = || {
            Some(&data_dir)
                .filter(|_| local)
                .and_then(|dir| locate::local_token(dir))
        };
        let token = self.token.clone().or_else(kept).ok_or_else(|| {
            Failure::Usage(format!(
                "no token: set LOCKSTEP_TOKEN, or run this on the collector's machine, with a loopback --url, as the user that can read {}",
                data_dir.join("admin.token").display()
            ))
        })?;
        if token.trim().is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Failure::Usage(
                "the token has characters no token has; copy it again".to_owned(),
            ));
        }
        let http = self.http(&url, REQUEST_TIMEOUT)?;
        Ok(Client { http, url, token })
    }

    /// A client for an address: one on this machine is asked without a proxy, and only certificates that were named are trusted.
    pub(crate) fn http(&self, url: &str, timeout: Duration) -> Result<reqwest::Client, Failure> {
        crate::command::install_crypto();
        let mut builder = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(timeout);
        if is_loopback(url) {
            // A proxy of the environment leads elsewhere, and would see the token.
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
            // Certificates of the public authorities are not carried along: a collector has its own.
            None => builder.tls_certs_only([]),
        };
        builder.build().map_err(|error| Failure::Failed(error.into()))
    }

    /// Whether somebody has said that there is a collector: by its address, by a token, or by having started one here.
    pub(crate) fn is_meant(&self) -> bool {
        self.url() != DEFAULT_URL || self.token.is_some() || locate::local_token(&data_dir()).is_some()
    }

    /// The collector's address, as it was given.
    pub(crate) fn url(&self) -> &str {
        self.url.trim_end_matches('/')
    }
}

fn data_dir() -> PathBuf {
    std::env::var_os("LOCKSTEP_DATA").map_or_else(locate::default_data_dir, PathBuf::from)
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
    /// A client of a collector of this process.
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

    /// `POST path` with a form; the answer has no body.
    pub(crate) async fn post_form(&self, path: &str, form: &[(&str, String)]) -> Result<(), Failure> {
        let request = self.request(Method::POST, path).form(form).timeout(LONG_TIMEOUT);
        self.send(request).await.map(drop)
    }

    /// `GET path`, whose answer is read as it comes, however long it takes.
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
                    .context("the collector's answer could not be read; are both of the same version?"),
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
        Err(refused(status, &body))
    }

    fn unreachable(&self, error: &reqwest::Error) -> Failure {
        let mut cause: &dyn std::error::Error = error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        let cause = cause.to_string();
        let next = if cause.contains("certificate") {
            "Name the certificate to trust with --tls-ca or LOCKSTEP_TLS_CA"
        } else {
            "Start one with `lockstep up`, or name another with --url or LOCKSTEP_URL"
        };
        Failure::Unreachable(format!("no collector answers at {}: {cause}. {next}", self.url))
    }
}

/// Both error forms the collector has: problem documents, and Prometheus' own under /api/v1.
fn refused(status: StatusCode, body: &str) -> Failure {
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
        let said = if problem.detail.is_empty() {
            problem.title
        } else {
            problem.detail
        };
        format!("{said}{fields}")
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
