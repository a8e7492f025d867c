//! Why a collector does not start.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The errors of a start. Each message says what to do next.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Without TLS, anyone in the network could read tokens.
    #[error(
        "{listen} can be reached by other machines, and tokens would cross the network in clear text; give --tls-cert \
         and --tls-key, or listen on 127.0.0.1, or pass --insecure-public if a proxy in front of Lockstep terminates \
         TLS"
    )]
    PublicWithoutTls {
        /// The requested address.
        listen: SocketAddr,
    },
    /// The given admin token could be guessed.
    #[error(
        "the admin token in LOCKSTEP_ADMIN_TOKEN is shorter than {} characters; give a longer one, or none to generate one",
        crate::config::ADMIN_TOKEN_CHARS_MIN
    )]
    WeakAdminToken,
    /// A setting that is invalid, alone or together with another.
    #[error("{0}")]
    Setting(String),
    /// The address is in use or is not an address of this machine.
    #[error(
        "cannot listen on {listen}; stop the process that uses it, or choose another address with --listen"
    )]
    Listen {
        /// The requested address.
        listen: SocketAddr,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The certificate or key cannot be used.
    #[error("cannot use the certificate {cert} with its key; both must be PEM files, and must match", cert = cert.display())]
    Tls {
        /// The file of the certificate.
        cert: PathBuf,
        /// The error of the TLS library.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file in the data folder cannot be read or written.
    #[error("cannot read or write {path}; check that you own the data folder and that its disk is not full", path = path.display())]
    Data {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The store does not open.
    #[error("cannot open the store in {path}", path = path.display())]
    Store {
        /// The data folder.
        path: PathBuf,
        /// The error of the store.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Rules, runs or tokens cannot be loaded from the store.
    #[error("cannot load {what} from the store")]
    Load {
        /// What could not be loaded.
        what: &'static str,
        /// The error of the store.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl StartError {
    /// Returns the error for something that cannot be loaded.
    pub(crate) fn load(
        what: &'static str,
        error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        let source = error.into();
        Self::Load { what, source }
    }
}
