//! What an agent is told when it starts, already checked: no half-valid value travels further.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use domain::ident::NodeName;

pub use crate::exporter::HostLabel;

/// The default bound of the on-disk spool: a node of eight GPUs writes about 6 kB a second, so this is a day without a
/// collector, at the price of one small file system.
pub const SPOOL_BYTES_MAX: u64 = 512 << 20;

/// Everything an agent is told.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// The collector's URL, `http://host:port` or `https://…`. Without one the agent only serves its `/metrics`.
    pub collector: Option<String>,
    /// Lets a new agent in; exchanged for a lasting credential on the first connection.
    pub join_token: Option<Secret>,
    /// The name this node goes by.
    pub node: NodeName,
    /// Spool, credential and lock live here.
    pub data_dir: PathBuf,
    /// Where the host's `/proc` and `/sys` hang; `/` but in containers and tests.
    pub root: PathBuf,
    /// Which NVML library to open.
    pub nvml: NvmlSource,
    /// How `/metrics` are served.
    pub metrics: MetricsConfig,
    /// Whether this node lets the collector start processes on it.
    pub accepts_runs: bool,
    /// Whether jobs that were started by hand are watched as runs; none for where there are GPUs, and they are real.
    pub watch_jobs: Option<bool>,
    /// The Python interpreter for runs that name none.
    pub python: Option<PathBuf>,
    /// PEM file with the only certificate authority (or self-signed certificate) the collector may present.
    pub tls_ca: Option<PathBuf>,
    /// Bound of the on-disk spool; the oldest data goes first.
    pub spool_bytes_max: u64,
}

/// How the node's own `/metrics` are served.
#[derive(Debug, Clone, Default)]
pub struct MetricsConfig {
    /// Where; not at all when `None`.
    pub listen: Option<SocketAddr>,
    /// Whether to give up when that address is taken. A person who named it wants to know; the usual one may belong to another
    /// agent of this machine, and watching goes on without it.
    pub required: bool,
    /// HTTPS with this certificate.
    pub tls: Option<TlsFiles>,
    /// Only for who shows the token in this file.
    pub token_file: Option<PathBuf>,
    /// Under dcgm-exporter's names as well, the host under this label.
    pub dcgm_names: Option<HostLabel>,
}

/// A certificate and its key, both PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, and those between it and the authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Which NVML library to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NvmlSource {
    /// The machine's own `libnvidia-ml.so.1`.
    System,
    /// A library at a path.
    Path(PathBuf),
    /// The simulator, configured with a spec such as `h100x8:throttle`.
    Simulated {
        /// Where the simulator is; beside the executable when `None`.
        library: Option<PathBuf>,
        /// What to simulate.
        spec: String,
    },
}

/// A token. Never printed: its `Debug` hides it and it has no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a token, without the white space around it.
    #[must_use]
    pub fn new(text: impl AsRef<str>) -> Self {
        Self(text.as_ref().trim().to_owned())
    }

    /// The bare token, for the one place that sends or stores it.
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

    #[test]
    fn a_secret_does_not_show_itself() {
        let secret = Secret::new(" lsj_abc\n");
        assert_eq!(secret.expose(), "lsj_abc");
        assert_eq!(format!("{secret:?}"), "Secret(…)");
    }
}
