//! The collector's configuration.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use domain::bytes::DisplayBytes;
use domain::time::DisplayDuration;
use ipnet::IpNet;
use store::StoreConfig;

use crate::error::StartError;

/// The default port for HTTP and gRPC.
pub const PORT_DEFAULT: u16 = 8470;
/// Minimum retention: one hour. Rules and charts look back that far.
const RETENTION_MS_MIN: i64 = 3_600_000;
/// Minimum size limit of the store: an empty database with its names takes some megabytes.
const RETENTION_BYTES_MIN: u64 = 64 << 20;
/// Default evaluation interval for groups of rules without their own: the most common setting of Prometheus installations.
pub const EVALUATION_INTERVAL_MS_DEFAULT: i64 = 15_000;
/// Minimum length of an admin token: a shorter one can be guessed. A generated token has 43 characters after its prefix.
pub const ADMIN_TOKEN_CHARS_MIN: usize = 20;

/// All settings. Start from [`Config::new`].
#[derive(Debug, Clone)]
pub struct Config {
    /// The address to listen on. Port 0 selects a free port.
    pub listen: SocketAddr,
    /// Where the data is stored, for how long, and how much.
    pub store: StoreConfig,
    /// Allows to listen on a public address without TLS.
    pub insecure_public: bool,
    /// Networks of the proxies in front of the collector. The address that they forward counts as the client's address.
    pub trusted_proxies: Vec<IpNet>,
    /// Certificate and key; `None` for plain HTTP.
    pub tls: Option<TlsFiles>,
    /// The admin token. If `None`, it is generated at the first start and stored in the data folder.
    pub admin_token: Option<Secret>,
    /// The URL of this collector in the links of messages. If `None`, it is built from the listen address.
    pub public_url: Option<String>,
    /// Paths and glob patterns of rule files.
    pub rules: Vec<String>,
    /// Whether the built-in rules are active.
    pub shipped_rules: bool,
    /// Evaluation interval of groups of rules without their own, in milliseconds.
    pub evaluation_interval_ms: i64,
}

/// PEM files of a server certificate.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The certificate, followed by its chain.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

impl Config {
    /// The folder of all files.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        &self.store.data_dir
    }

    /// The URL of this collector in the links of messages, without a trailing slash.
    #[must_use]
    pub fn external_url(&self) -> String {
        match &self.public_url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => {
                let scheme = if self.tls.is_some() { "https" } else { "http" };
                format!("{scheme}://{}", self.listen)
            }
        }
    }

    /// Default settings: loopback, no TLS, a generated admin token.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, PORT_DEFAULT)),
            store: StoreConfig::new(data_dir),
            insecure_public: false,
            trusted_proxies: Vec::new(),
            tls: None,
            admin_token: None,
            public_url: None,
            rules: Vec::new(),
            shipped_rules: true,
            evaluation_interval_ms: EVALUATION_INTERVAL_MS_DEFAULT,
        }
    }

    /// Rejects unsafe or contradictory settings.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        if !self.listen.ip().is_loopback() && self.tls.is_none() && !self.insecure_public {
            return Err(StartError::PublicWithoutTls { listen: self.listen });
        }
        self.check_store()?;
        match &self.admin_token {
            Some(token) if token.expose().chars().count() < ADMIN_TOKEN_CHARS_MIN => {
                Err(StartError::WeakAdminToken)
            }
            _ => Ok(()),
        }
    }

    /// Rejects settings that would drop samples as soon as they are stored, or never store any.
    fn check_store(&self) -> Result<(), StartError> {
        let defaults = StoreConfig::new(self.data_dir());
        let StoreConfig {
            retention_ms,
            out_of_order_ms: late_ms,
            ..
        } = self.store;
        let show = DisplayDuration;
        if retention_ms < RETENTION_MS_MIN {
            return Err(StartError::Setting(format!(
                "--retention {} is shorter than the minimum of {}; give a longer one",
                show(retention_ms),
                show(RETENTION_MS_MIN)
            )));
        }
        if late_ms < 0 || (late_ms > retention_ms && late_ms != defaults.out_of_order_ms) {
            return Err(StartError::Setting(format!(
                "--out-of-order {} is longer than --retention {}: samples that late would be dropped at once; give a shorter one",
                show(late_ms),
                show(retention_ms)
            )));
        }
        for (flag, rollup_ms, default_ms) in [
            ("--retention-1m", self.store.rollup_1m_ms, defaults.rollup_1m_ms),
            ("--retention-1h", self.store.rollup_1h_ms, defaults.rollup_1h_ms),
        ] {
            if rollup_ms != 0 && rollup_ms != default_ms && rollup_ms <= retention_ms {
                return Err(StartError::Setting(format!(
                    "{flag} {} is not longer than --retention {}, for which raw samples are kept; give a longer one, \
                     or 0 to keep no such roll-ups",
                    show(rollup_ms),
                    show(retention_ms)
                )));
            }
        }
        if let Some(bytes) = self
            .store
            .size_max_bytes
            .filter(|bytes| *bytes < RETENTION_BYTES_MIN)
        {
            return Err(StartError::Setting(format!(
                "--retention-size {} is less than {}, in which nothing useful fits",
                DisplayBytes(bytes),
                DisplayBytes(RETENTION_BYTES_MIN)
            )));
        }
        if self.store.series_max == 0 {
            return Err(StartError::Setting("--series-max must be at least 1".into()));
        }
        Ok(())
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

    /// Returns the secret itself.
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
    fn absurd_settings_of_the_store_are_refused_with_the_flag_to_change() {
        const HOUR_MS: i64 = 3_600_000;
        let check = |retention_ms: Option<i64>, out_of_order_ms: Option<i64>, series_max: Option<usize>| {
            let defaults = StoreConfig::new("/nowhere");
            let config = Config {
                store: StoreConfig {
                    retention_ms: retention_ms.unwrap_or(defaults.retention_ms),
                    out_of_order_ms: out_of_order_ms.unwrap_or(defaults.out_of_order_ms),
                    series_max: series_max.unwrap_or(defaults.series_max),
                    ..defaults
                },
                ..config("127.0.0.1:1")
            };
            config.check().map_err(|error| error.to_string())
        };
        assert_eq!(check(Some(24 * HOUR_MS), Some(2 * HOUR_MS), Some(10)), Ok(()));
        assert_eq!(check(Some(HOUR_MS), None, None), Ok(()));
        for (retention_ms, out_of_order_ms, series_max, flag) in [
            (Some(60_000), None, None, "--retention 1m"),
            (
                Some(24 * HOUR_MS),
                Some(25 * HOUR_MS),
                None,
                "--out-of-order 1d1h",
            ),
            (None, None, Some(0), "--series-max"),
        ] {
            let said = check(retention_ms, out_of_order_ms, series_max).expect_err(flag);
            assert!(said.contains(flag), "{said}");
        }
        let mut rolled = config("127.0.0.1:1");
        (rolled.store.rollup_1m_ms, rolled.store.rollup_1h_ms) = (0, 24 * HOUR_MS);
        let said = rolled.check().expect_err("a day is less than 15").to_string();
        assert!(said.contains("--retention-1h 1d"), "{said}");
        (rolled.store.rollup_1h_ms, rolled.store.size_max_bytes) = (0, Some(1));
        let said = rolled.check().expect_err("a byte").to_string();
        assert!(said.contains("--retention-size 1 B"), "{said}");
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
