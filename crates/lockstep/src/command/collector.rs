//! `lockstep collector`: store, rules, API and dashboard, without an agent.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::Args;
use collector::{Config, Running, Secret, StartError, TlsFiles};
use domain::bytes::parse_bytes;
use domain::time::parse_duration_ms;
use ipnet::IpNet;
use store::StoreConfig;

use crate::failure::Failure;
use crate::locate;

/// Start only a collector. Agents on other machines connect to it.
#[derive(Args)]
#[command(after_help = "Example with access from other machines:
  lockstep collector --listen 0.0.0.0:8470 --tls-cert server.pem --tls-key server.key
  export LOCKSTEP_URL=https://HOST:8470 LOCKSTEP_TLS_CA=ca.pem LOCKSTEP_TOKEN=$(cat DATA/admin.token)
  lockstep token join            then, on each node: LOCKSTEP_JOIN=TOKEN lockstep agent --collector https://HOST:8470 --tls-ca ca.pem")]
pub(crate) struct Collector {
    #[command(flatten)]
    options: CollectorOptions,
}

/// Options that `collector` and `up` share.
#[derive(Args, Clone)]
pub(crate) struct CollectorOptions {
    /// Address on which to listen, for browsers, Prometheus, Grafana and agents.
    #[arg(long, env = "LOCKSTEP_LISTEN", default_value = "127.0.0.1:8470")]
    listen: SocketAddr,
    /// Data folder. Default: /var/lib/lockstep for root, otherwise the user's data folder.
    #[arg(long, env = "LOCKSTEP_DATA", value_name = "DIR")]
    data: Option<PathBuf>,
    #[command(flatten)]
    storage: StorageOptions,
    #[command(flatten)]
    rules: RuleOptions,
    /// PEM file with the server's certificate, followed by its chain.
    #[arg(long, env = "LOCKSTEP_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// PEM file with the private key of the certificate.
    #[arg(long, env = "LOCKSTEP_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// URL under which users reach this collector, for links in notifications; for example https://lockstep.example. Default: the listen
    /// address.
    #[arg(long, env = "LOCKSTEP_PUBLIC_URL", value_name = "URL", value_parser = web_address)]
    public_url: Option<String>,
    /// Network of a reverse proxy in front of the collector, for example 10.0.0.5 or 10.0.0.0/24. Can be given several times or as a
    /// comma-separated list. For limits per address, the collector then takes the client's address from the header X-Forwarded-For
    /// (or Forwarded) that the proxy sets. It ignores these headers from all other addresses.
    #[arg(
        long = "trusted-proxy",
        env = "LOCKSTEP_TRUSTED_PROXY",
        value_name = "CIDR",
        value_delimiter = ',',
        value_parser = network
    )]
    trusted_proxies: Vec<IpNet>,
    /// Listen on a public address without TLS. Tokens then cross the network in clear text.
    #[arg(long, env = "LOCKSTEP_INSECURE_PUBLIC")]
    insecure_public: bool,
}

/// Limits of the store.
#[derive(Args, Clone)]
#[command(next_help_heading = "Storage")]
struct StorageOptions {
    /// How long to keep samples, for example 30d. Older samples are replaced by roll-ups or deleted. Default: 15d.
    #[arg(long, env = "LOCKSTEP_RETENTION", value_name = "DURATION", value_parser = positive_duration)]
    retention: Option<i64>,
    /// How long to keep one-minute roll-ups (minimum, maximum, average and last value), measured from the time of the samples; 0
    /// for no such roll-ups. Default: 90d.
    #[arg(long = "retention-1m", env = "LOCKSTEP_RETENTION_1M", value_name = "DURATION", value_parser = duration)]
    retention_1m: Option<i64>,
    /// How long to keep one-hour roll-ups; 0 for no such roll-ups. Default: 2y.
    #[arg(long = "retention-1h", env = "LOCKSTEP_RETENTION_1H", value_name = "DURATION", value_parser = duration)]
    retention_1h: Option<i64>,
    /// Maximum size of samples and roll-ups on disk, for example 50GiB. Beyond it the oldest are deleted, whatever their age.
    /// Default: as much as fits on the disk.
    #[arg(long, env = "LOCKSTEP_RETENTION_SIZE", value_name = "SIZE", value_parser = size)]
    retention_size: Option<u64>,
    /// How late a sample may arrive. Agents keep about one hour of samples while they cannot reach the collector, so a shorter
    /// time loses some of them. Default: 70m.
    #[arg(long, env = "LOCKSTEP_OUT_OF_ORDER", value_name = "DURATION", value_parser = positive_duration)]
    out_of_order: Option<i64>,
    /// Maximum number of series. Samples of further series are refused and counted. The labels of all series are in memory.
    /// Default: 1000000.
    #[arg(long, env = "LOCKSTEP_SERIES_MAX", value_name = "NUMBER")]
    series_max: Option<usize>,
    /// Minimum free space on the disk of the data folder, for example 2GiB. Below it the collector refuses samples, while queries
    /// and runs continue; it accepts samples again when there is enough space. Default: 1 % of the disk, at least 64MiB and at most 1GiB.
    #[arg(long, env = "LOCKSTEP_MIN_FREE_SPACE", value_name = "SIZE", value_parser = size)]
    min_free_space: Option<u64>,
    /// Maximum memory for cached data that queries have read from disk, for example 256MiB; 0 for no cache. Default: 1/64 of
    /// the machine's memory, at least 64MiB and at most 512MiB.
    #[arg(long, env = "LOCKSTEP_QUERY_CACHE", value_name = "SIZE", value_parser = size)]
    query_cache: Option<u64>,
}

/// Which rules the collector evaluates.
#[derive(Args, Clone)]
#[command(next_help_heading = "Rules")]
struct RuleOptions {
    /// Recording and alerting rules in Prometheus' format, for example /etc/lockstep/rules/*.yaml. Can be given several times or
    /// as a comma-separated list. SIGHUP and POST /-/reload read them again.
    #[arg(
        long,
        env = "LOCKSTEP_RULES",
        value_name = "PATH_OR_GLOB",
        value_delimiter = ','
    )]
    rules: Vec<String>,
    /// Do not load the rules that ship with Lockstep. Without them there are no built-in diagnoses.
    #[arg(long, env = "LOCKSTEP_NO_SHIPPED_RULES")]
    no_shipped_rules: bool,
    /// How often to evaluate rule groups that set no interval of their own. Default: 15s.
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

impl StorageOptions {
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
    /// Returns the data folder: the given one, or the default.
    pub(crate) fn data_dir(&self) -> PathBuf {
        self.data.clone().unwrap_or_else(locate::default_data_dir)
    }

    /// Returns the certificate file. A local agent must trust this certificate.
    pub(crate) fn tls_cert(&self) -> Option<&PathBuf> {
        self.tls_cert.as_ref()
    }

    /// Starts the collector and the task that reloads the rules at SIGHUP.
    pub(crate) async fn start(&self) -> Result<Running, Failure> {
        let mut config = Config::new(self.data_dir());
        config.listen = self.listen;
        config.insecure_public = self.insecure_public;
        config.trusted_proxies.clone_from(&self.trusted_proxies);
        self.storage.apply(&mut config.store);
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
        reload_on_sighup(&running)?;
        Ok(running)
    }

    /// Returns the address for users and agents on this machine.
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

/// Reads the rules again at each SIGHUP, the usual signal to a service that its files have changed. The log has the result.
fn reload_on_sighup(running: &Running) -> Result<(), Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut hangups = signal(SignalKind::hangup())?;
    let app = running.app.clone();
    running.app.tasks.spawn(async move {
        while hangups.recv().await.is_some() {
            // The reload logs an error itself, and the old rules stay in force.
            let _logged_by_reload = app.alerts.reload(&app.engine).await;
        }
    });
    Ok(())
}

impl Collector {
    pub(crate) async fn execute(self) -> Result<(), Failure> {
        let mut running = self.options.start().await?;
        announce(&self.options, &running);
        let result = tokio::select! {
            requested = super::shutdown_requested() => requested,
            stopped = running.wait() => ended(stopped),
        };
        running.shutdown().await;
        result
    }
}

/// Turns the end of serving into an error. Serving never ends by itself, so the process must exit and not stay without a listener.
pub(super) fn ended(result: std::io::Result<()>) -> Result<(), Failure> {
    let error = result
        .err()
        .map_or_else(|| anyhow::anyhow!("no stop was requested"), Into::into);
    Err(Failure::Failed(
        error.context("the collector has stopped serving"),
    ))
}

/// Prints the address and where the admin token is.
pub(crate) fn announce(options: &CollectorOptions, running: &Running) {
    println!("Lockstep is at {}", options.local_url(running));
    let file = options.data_dir().join("admin.token");
    let is_given = std::env::var("LOCKSTEP_ADMIN_TOKEN").is_ok();
    println!(
        "{}",
        login_help(running.admin_token_created.as_deref(), is_given, &file)
    );
}

/// Returns how to log in. `is_given`: the token comes from the environment and is in no file.
fn login_help(created: Option<&str>, is_given: bool, file: &Path) -> String {
    match created {
        Some(token) => format!(
            "Log in with this token (stored in {}):\n\n    {token}\n",
            file.display()
        ),
        None if is_given => "Log in with the token in LOCKSTEP_ADMIN_TOKEN".to_owned(),
        None => format!("Log in with the token in {}", file.display()),
    }
}

fn duration(text: &str) -> Result<i64, String> {
    parse_duration_ms(text).map_err(|error| error.to_string())
}

/// Parses a duration that is longer than zero. Returns milliseconds.
pub(super) fn positive_duration(text: &str) -> Result<i64, String> {
    match duration(text)? {
        0 => Err("must be longer than zero".to_owned()),
        ms => Ok(ms),
    }
}

fn size(text: &str) -> Result<u64, String> {
    parse_bytes(text).map_err(|error| error.to_string())
}

/// Parses a network or a single address.
fn network(text: &str) -> Result<IpNet, String> {
    let address = || text.parse::<IpAddr>().map(IpNet::from);
    text.parse()
        .or_else(|_| address())
        .map_err(|_| "must be an address or a network, for example 10.0.0.5 or 10.0.0.0/24".to_owned())
}

fn web_address(text: &str) -> Result<String, String> {
    let host = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"));
    match host {
        Some(host) if !host.is_empty() => Ok(text.to_owned()),
        _ => Err("must be an http:// or https:// address".to_owned()),
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
            let (help, default) = help_and_default(flag);
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
    fn the_start_names_the_place_of_the_admin_token() {
        let file = Path::new("/data/admin.token");
        for (created, is_given, expected) in [
            (Some("secret"), false, "stored in /data/admin.token"),
            (None, false, "the token in /data/admin.token"),
            (None, true, "the token in LOCKSTEP_ADMIN_TOKEN"),
        ] {
            let help = login_help(created, is_given, file);
            assert!(help.contains(expected), "{help}");
        }
    }

    #[test]
    fn the_defaults_that_help_names_are_those_of_the_store() {
        let mut given = vec!["collector".to_owned()];
        for flag in flags().get_arguments() {
            let value = help_and_default(flag).1;
            // Defaults with a space are descriptions, not values.
            if !value.contains(' ') {
                given.push(format!("--{}={value}", flag.get_long().unwrap()));
            }
        }
        assert_eq!(given.len(), 6, "{given:?}");
        let matches = flags().try_get_matches_from(given).unwrap();
        let mut store = StoreConfig::new("data");
        StorageOptions::from_arg_matches(&matches)
            .unwrap()
            .apply(&mut store);
        assert_eq!(format!("{store:?}"), format!("{:?}", StoreConfig::new("data")));
    }

    fn flags() -> Command {
        StorageOptions::augment_args(Command::new("collector"))
    }

    /// Returns the description of a flag and its default.
    fn help_and_default(flag: &Arg) -> (String, String) {
        let help = flag.get_help().unwrap().to_string();
        let (help, default) = help.split_once(" Default: ").expect("help names the default");
        (help.to_owned(), default.trim_end_matches('.').to_owned())
    }
}
