//! `lockstep collector`: store, rules, API and dashboard, without an agent.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use collector::{Config, Running, Secret, TlsFiles};
use domain::time::parse_duration_ms;

use crate::failure::Failure;
use crate::locate;

/// Start a collector only; agents on other machines connect to it.
#[derive(Args)]
#[command(after_help = "Example, for other machines to reach:
  lockstep collector --listen 0.0.0.0:8470 --tls-cert server.pem --tls-key server.key
  lockstep token join            then, on each node: lockstep agent --collector https://HOST:8470 --tls-ca ca.pem")]
pub(crate) struct Collector {
    #[command(flatten)]
    options: CollectorOptions,
}

/// What `collector` and `up` have in common.
#[derive(Args, Clone)]
pub(crate) struct CollectorOptions {
    /// Where to listen, for browsers, Prometheus, Grafana and agents alike.
    #[arg(long, env = "LOCKSTEP_LISTEN", default_value = "127.0.0.1:8470")]
    listen: SocketAddr,
    /// Where to keep everything. Default: /var/lib/lockstep for root, else the user's data folder.
    #[arg(long, env = "LOCKSTEP_DATA", value_name = "DIR")]
    data: Option<PathBuf>,
    /// How long to keep samples, like 30d.
    #[arg(long, env = "LOCKSTEP_RETENTION", value_name = "DURATION", value_parser = positive_duration)]
    retention: Option<i64>,
    /// PEM file with the server's certificate, then its chain.
    #[arg(long, env = "LOCKSTEP_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// PEM file with the private key of the certificate.
    #[arg(long, env = "LOCKSTEP_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Where people find this collector, for links in alerts, like https://lockstep.example. Default: the listen address.
    #[arg(long, env = "LOCKSTEP_PUBLIC_URL", value_name = "URL", value_parser = web_address)]
    public_url: Option<String>,
    /// Listen on a public address without TLS. Tokens cross the network in clear text then.
    #[arg(long, env = "LOCKSTEP_INSECURE_PUBLIC")]
    insecure_public: bool,
}

impl CollectorOptions {
    /// The data folder that was asked for, or the default one.
    pub(crate) fn data_dir(&self) -> PathBuf {
        self.data.clone().unwrap_or_else(locate::default_data_dir)
    }

    /// The certificate, which is also what a local agent has to trust.
    pub(crate) fn tls_cert(&self) -> Option<&PathBuf> {
        self.tls_cert.as_ref()
    }

    /// Starts the collector and says where it is.
    pub(crate) async fn start(&self) -> Result<Running, Failure> {
        let mut config = Config::new(self.data_dir());
        config.listen = self.listen;
        config.insecure_public = self.insecure_public;
        config.retention_ms = self.retention;
        config.public_url.clone_from(&self.public_url);
        config.tls = self
            .tls_cert
            .clone()
            .zip(self.tls_key.clone())
            .map(|(cert, key)| TlsFiles { cert, key });
        config.admin_token = std::env::var("LOCKSTEP_ADMIN_TOKEN").ok().map(Secret::new);
        collector::start(config)
            .await
            .map_err(|error| Failure::Failed(error.into()))
    }

    /// The address a person or agent on this machine uses.
    pub(crate) fn local_url(&self, running: &Running) -> String {
        let scheme = if self.tls_cert.is_some() { "https" } else { "http" };
        let mut address = running.local_addr;
        if address.ip().is_unspecified() {
            address.set_ip(if address.is_ipv4() {
                [127, 0, 0, 1].into()
            } else {
                std::net::Ipv6Addr::LOCALHOST.into()
            });
        }
        format!("{scheme}://{address}")
    }
}

impl Collector {
    pub(crate) async fn execute(self) -> Result<(), Failure> {
        let mut running = self.options.start().await?;
        announce(&self.options, &running);
        let result = tokio::select! {
            asked = super::asked_to_end() => asked,
            stopped = running.wait() => ended(stopped),
        };
        running.shutdown().await;
        result
    }
}

/// Serving never ends by itself, so when it does the process must not stay, deaf.
pub(super) fn ended(result: std::io::Result<()>) -> Result<(), Failure> {
    let error = result
        .err()
        .map_or_else(|| anyhow::anyhow!("nobody asked it to"), Into::into);
    Err(Failure::Failed(
        error.context("the collector has stopped serving"),
    ))
}

/// Tells the person who started it where to go next.
pub(crate) fn announce(options: &CollectorOptions, running: &Running) {
    println!("Lockstep is at {}", options.local_url(running));
    let file = options.data_dir().join("admin.token");
    match &running.admin_token_created {
        Some(token) => println!(
            "Log in with this token (kept in {}):\n\n    {token}\n",
            file.display()
        ),
        None => println!("Log in with the token in {}", file.display()),
    }
}

fn positive_duration(text: &str) -> Result<i64, String> {
    let ms = parse_duration_ms(text).map_err(|error| error.to_string())?;
    if ms > 0 {
        Ok(ms)
    } else {
        Err("must be longer than zero".to_owned())
    }
}

fn web_address(text: &str) -> Result<String, String> {
    let host = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"));
    match host {
        Some(host) if !host.is_empty() => Ok(text.to_owned()),
        _ => Err("write an http:// or https:// address".to_owned()),
    }
}
