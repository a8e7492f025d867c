//! The agent's configuration. All values are already checked, so no invalid value travels further.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use domain::ident::{NodeName, RackName};

pub use crate::exporter::HostLabel;

/// The default size limit of the spool on disk. A node with eight GPUs writes about 6 kB per second, so this is enough for one day without
/// a collector, and it costs only one small file system.
pub const SPOOL_BYTES_MAX: u64 = 512 << 20;

/// The configuration of an agent.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// The collector's URL, `http://host:port` or `https://…`. If `None`, the agent only serves its `/metrics`.
    pub collector: Option<String>,
    /// The join token of a new agent. The agent exchanges it for a permanent credential on the first connection.
    pub join_token: Option<Secret>,
    /// The name of this node.
    pub node: NodeName,
    /// The rack in which this node is, if known.
    pub rack: Option<RackName>,
    /// The folder with the spool, the credential and the lock.
    pub data_dir: PathBuf,
    /// The folder that contains the host's `/proc` and `/sys`: `/`, except in containers and tests.
    pub root: PathBuf,
    /// The NVML library to open.
    pub nvml: NvmlSource,
    /// How `/metrics` is served.
    pub metrics: MetricsConfig,
    /// True if the collector may start processes on this node.
    pub accepts_runs: bool,
    /// Whether the agent watches jobs that were started by hand as runs. `None`: only on nodes with real GPUs.
    pub watch_jobs: Option<bool>,
    /// The Python interpreter for runs that do not name one.
    pub python: Option<PathBuf>,
    /// A PEM file with the only certificate authority (or self-signed certificate) that the agent accepts from the collector.
    pub tls_ca: Option<PathBuf>,
    /// The size limit of the spool on disk, in bytes. When the spool is full, the agent drops the oldest data.
    pub spool_bytes_max: u64,
}

/// The configuration of the node's own `/metrics`.
#[derive(Debug, Clone, Default)]
pub struct MetricsConfig {
    /// The address to listen on. If `None`, metrics are not served.
    pub listen: Option<SocketAddr>,
    /// True if the agent must not start when that address is in use. This is set when a person chose the address. The default address may
    /// belong to another agent of this machine; then this agent runs without serving metrics.
    pub required: bool,
    /// The certificate for HTTPS. If `None`, metrics are served over HTTP.
    pub tls: Option<TlsFiles>,
    /// A file with a token. If set, clients must present this token.
    pub token_file: Option<PathBuf>,
    /// If set, metrics are also served under dcgm-exporter's names, with the host name in this label.
    pub dcgm_names: Option<HostLabel>,
}

/// A certificate and its private key, both in PEM format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, followed by the intermediate certificates.
    pub cert: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
}

/// The NVML library to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NvmlSource {
    /// The system's `libnvidia-ml.so.1`.
    System,
    /// The library at this path.
    Path(PathBuf),
    /// The simulator, configured with a specification such as `h100x8:throttle`.
    Simulated {
        /// The path of the simulator library. If `None`, the one beside the executable.
        library: Option<PathBuf>,
        /// The specification of what to simulate.
        spec: String,
    },
}

/// A token. It is never printed: `Debug` hides it, and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Creates a secret from a text, without leading and trailing white space.
    #[must_use]
    pub fn new(text: impl AsRef<str>) -> Self {
        Self(text.as_ref().trim().to_owned())
    }

    /// Returns the token itself, for the code that sends or stores it.
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
