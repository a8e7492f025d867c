//! `lockstep collector`: store, rules, API and dashboard, without an agent.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use collector::{Config, Running, Secret, StartError, TlsFiles};
use domain::bytes::parse_bytes;
use domain::time::parse_duration_ms;
use ipnet::IpNet;
use store::StoreConfig;

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
    #[command(flatten)]
    keeping: Keeping,
    #[command(flatten)]
    rules: RuleOptions,
    /// PEM file with the server's certificate, then its chain.
    #[arg(long, env = "LOCKSTEP_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// PEM file with the private key of the certificate.
    #[arg(long, env = "LOCKSTEP_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Where people find this collector, for links in alerts, like https://lockstep.example. Default: the listen address.
    #[arg(long, env = "LOCKSTEP_PUBLIC_URL", value_name = "URL", value_parser = web_address)]
    public_url: Option<String>,
    /// The network of a reverse proxy in front of the collector, like 10.0.0.5 or 10.0.0.0/24; several times, or divided by commas. The
    /// client's address is then taken from the header X-Forwarded-For (or Forwarded) that the proxy sets, for limits per
    /// address. These headers are ignored when they come from anywhere else.
    #[arg(
        long = "trusted-proxy",
        env = "LOCKSTEP_TRUSTED_PROXY",
        value_name = "CIDR",
        value_delimiter = ',',
        value_parser = network
    )]
    trusted_proxies: Vec<IpNet>,
    /// Listen on a public address without TLS. Tokens cross the network in clear text then.
    #[arg(long, env = "LOCKSTEP_INSECURE_PUBLIC")]
    insecure_public: bool,
}

/// How much is kept, and how much is taken.
#[derive(Args, Clone)]
#[command(next_help_heading = "Storage")]
struct Keeping {
    /// How long to keep samples, like 30d; what is older becomes a roll-up, or goes. Default: 15d.
    #[arg(long, env = "LOCKSTEP_RETENTION", value_name = "DURATION", value_parser = positive_duration)]
    retention: Option<i64>,
    /// How long to keep roll-ups to a minute (minimum, maximum, average, last of each), from the samples' time on; 0 for
    /// none. Default: 90d.
    #[arg(long = "retention-1m", env = "LOCKSTEP_RETENTION_1M", value_name = "DURATION", value_parser = duration)]
    retention_1m: Option<i64>,
    /// How long to keep roll-ups to an hour; 0 for none. Default: 2y.
    #[arg(long = "retention-1h", env = "LOCKSTEP_RETENTION_1H", value_name = "DURATION", value_parser = duration)]
    retention_1h: Option<i64>,
    /// The most that samples and roll-ups may take on disk, like 50GiB; beyond it the oldest go, whatever their age.
    /// Default: no limit but the disk's.
    #[arg(long, env = "LOCKSTEP_RETENTION_SIZE", value_name = "SIZE", value_parser = size)]
    retention_size: Option<u64>,
    /// How late a sample may come. Agents keep about an hour of samples while they cannot reach the collector, so less
    /// than that loses some of them. Default: 70m.
    #[arg(long, env = "LOCKSTEP_OUT_OF_ORDER", value_name = "DURATION", value_parser = positive_duration)]
    out_of_order: Option<i64>,
    /// How many series there may be; what is beyond is refused and counted. All their names are in memory. Default: 1000000.
    #[arg(long, env = "LOCKSTEP_SERIES_MAX", value_name = "NUMBER")]
    series_max: Option<usize>,
    /// Free space of the data folder's disk below which no samples are taken, like 2GiB; queries and runs go on, and ingest
    /// begins again when there is room. Default: a hundredth of the disk, at least 64MiB and at most 1GiB.
    #[arg(long, env = "LOCKSTEP_MIN_FREE_SPACE", value_name = "SIZE", value_parser = size)]
    min_free_space: Option<u64>,
    /// The most memory for what queries have read from disk and may ask for again, like 256MiB; 0 for none. Default: a 64th of
    /// the machine's memory, at least 64MiB and at most 512MiB.
    #[arg(long, env = "LOCKSTEP_QUERY_CACHE", value_name = "SIZE", value_parser = size)]
    query_cache: Option<u64>,
}

/// Which rules are in force.
#[derive(Args, Clone)]
#[command(next_help_heading = "Rules")]
struct RuleOptions {
    /// Recording and alerting rules in Prometheus' format, like /etc/lockstep/rules/*.yaml; several times, or divided by
    /// commas. They are read again at SIGHUP and at POST /-/reload.
    #[arg(
        long,
        env = "LOCKSTEP_RULES",
        value_name = "PATH_OR_GLOB",
        value_delimiter = ','
    )]
    rules: Vec<String>,
    /// Leave out the rules that ship with Lockstep, and with them all of its own diagnoses.
    #[arg(long, env = "LOCKSTEP_NO_SHIPPED_RULES")]
    no_shipped_rules: bool,
    /// How often groups are evaluated that do not say so themselves. Default: 15s.
    #[arg(long, env = "LOCKSTEP_EVALUATION_INTERVAL", value_name = "DURATION", value_parser = positive_duration)]
    evaluation_interval: Option<i64>,
}

impl RuleOptions {
    fn apply(&self, config: &mut Config) {
        config.rules.clone_from(&self.rules);
        config.shipped_rules = !self.no_shipped_rules;
        if let Some(interval_ms) = self.evaluation_interval {
            config.evaluation_interval_ms = interval_ms;
        }
    }
}

impl Keeping {
    fn apply(&self, store: &mut StoreConfig) {
        fn set<T: Copy>(setting: &mut T, given: Option<T>) {
            if let Some(given) = given {
                *setting = given;
            }
        }
        set(&mut store.retention_ms, self.retention);
        set(&mut store.rollup_1m_ms, self.retention_1m);
        set(&mut store.rollup_1h_ms, self.retention_1h);
        set(&mut store.out_of_order_ms, self.out_of_order);
        set(&mut store.series_max, self.series_max);
        store.size_max_bytes = self.retention_size;
        store.min_free_bytes = self.min_free_space;
        store.chunk_cache_bytes_max = self.query_cache;
    }
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
        config.trusted_proxies.clone_from(&self.trusted_proxies);
        self.keeping.apply(&mut config.store);
        self.rules.apply(&mut config);
        config.public_url.clone_from(&self.public_url);
        config.tls = self
            .tls_cert
            .clone()
            .zip(self.tls_key.clone())
            .map(|(cert, key)| TlsFiles { cert, key });
        config.admin_token = std::env::var("LOCKSTEP_ADMIN_TOKEN").ok().map(Secret::new);
        let running = collector::start(config).await.map_err(|error| match error {
            StartError::Setting(message) => Failure::Usage(message),
            error => Failure::Failed(error.into()),
        })?;
        reload_at_hangup(&running)?;
        Ok(running)
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

/// SIGHUP, which says to a service that its files have changed, reads the rules again. What comes of it is in the log.
fn reload_at_hangup(running: &Running) -> Result<(), Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut hangups = signal(SignalKind::hangup())?;
    let app = running.app.clone();
    running.app.tasks.spawn(async move {
        while hangups.recv().await.is_some() {
            // The log has it, and the rules before stay in force.
            let _told = app.alerts.reload(&app.engine).await;
        }
    });
    Ok(())
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

fn duration(text: &str) -> Result<i64, String> {
    parse_duration_ms(text).map_err(|error| error.to_string())
}

fn positive_duration(text: &str) -> Result<i64, String> {
    match duration(text)? {
        0 => Err("must be longer than zero".to_owned()),
        ms => Ok(ms),
    }
}

fn size(text: &str) -> Result<u64, String> {
    parse_bytes(text).map_err(|error| error.to_string())
}

/// A network, or a single address.
fn network(text: &str) -> Result<IpNet, String> {
    let address = || text.parse::<IpAddr>().map(IpNet::from);
    text.parse()
        .or_else(|_| address())
        .map_err(|_| "write an address or a network, like 10.0.0.5 or 10.0.0.0/24".to_owned())
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use std::fmt::Write as _;

    use clap::{Arg, Command, FromArgMatches as _};

    use super::*;

    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/store.md");
    const BEGIN: &str = "<!-- settings: written by `cargo xtask generate` -->\n";
    const END: &str = "<!-- end of settings -->\n";

    #[test]
    fn the_settings_in_the_page_on_the_store_are_made_from_its_flags() {
        let page = std::fs::read_to_string(FILE).unwrap();
        let (before, rest) = page.split_once(BEGIN).unwrap();
        let (_, after) = rest.split_once(END).unwrap();
        let mut table = "| flag, variable | default | |\n|---|---|---|\n".to_owned();
        for flag in flags().get_arguments() {
            let (long, variable) = (flag.get_long().unwrap(), flag.get_env().unwrap());
            let (help, default) = said_of(flag);
            let variable = variable.to_str().unwrap();
            writeln!(table, "| `--{long}`, `{variable}` | {default} | {help} |").unwrap();
        }
        let expected = format!("{before}{BEGIN}{table}{END}{after}");
        if std::env::var_os("LOCKSTEP_GENERATE").is_some() {
            std::fs::write(FILE, &expected).unwrap();
            return;
        }
        assert!(
            page == expected,
            "docs/store.md is not what the flags say: run `cargo xtask generate`"
        );
    }

    #[test]
    fn the_defaults_that_help_names_are_those_of_the_store() {
        let mut given = vec!["collector".to_owned()];
        for flag in flags().get_arguments() {
            let value = said_of(flag).1;
            // Others are said in words.
            if !value.contains(' ') {
                given.push(format!("--{}={value}", flag.get_long().unwrap()));
            }
        }
        assert_eq!(given.len(), 6, "{given:?}");
        let matches = flags().try_get_matches_from(given).unwrap();
        let mut store = StoreConfig::new("data");
        Keeping::from_arg_matches(&matches).unwrap().apply(&mut store);
        assert_eq!(format!("{store:?}"), format!("{:?}", StoreConfig::new("data")));
    }

    fn flags() -> Command {
        Keeping::augment_args(Command::new("collector"))
    }

    /// What a flag is for, and its default.
    fn said_of(flag: &Arg) -> (String, String) {
        let help = flag.get_help().unwrap().to_string();
        let (help, default) = help.split_once(" Default: ").expect("help names the default");
        (help.to_owned(), default.trim_end_matches('.').to_owned())
    }
}
