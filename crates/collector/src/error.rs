//! Why a collector does not start.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Each message says what to do next.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The rest of the world would read tokens off the wire.
    #[error(
        "{listen} can be reached by other machines, and tokens would cross the network in clear text; give --tls-cert and \
         --tls-key, or listen on 127.0.0.1, or pass --insecure-public if something in front of Lockstep does TLS"
    )]
    PublicWithoutTls {
        /// The address asked for.
        listen: SocketAddr,
    },
    /// The admin token that was given could be guessed.
    #[error(
        "the admin token in LOCKSTEP_ADMIN_TOKEN is shorter than {} characters; give a longer one, or none to have one made",
        crate::config::ADMIN_TOKEN_CHARS_MIN
    )]
    WeakAdminToken,
    /// A setting that makes no sense, alone or beside another.
    #[error("{0}")]
    Setting(String),
    /// The address is taken or not ours.
    #[error("cannot listen on {listen}; stop what uses it, or choose another address with --listen")]
    Listen {
        /// The address asked for.
        listen: SocketAddr,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// Certificate or key cannot be used.
    #[error("cannot use the certificate {cert} with its key; both must be PEM, and belong to each other", cert = cert.display())]
    Tls {
        /// The certificate's file.
        cert: PathBuf,
        /// What is wrong.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file in the data folder.
    #[error("cannot read or write {path}; check that the data folder is yours and its disk not full", path = path.display())]
    Data {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The store does not open.
    #[error("cannot open the store in {path}", path = path.display())]
    Store {
        /// The data folder.
        path: PathBuf,
        /// What the store says.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Rules, runs or tokens cannot be loaded from the store.
    #[error("cannot load {what} from the store")]
    Load {
        /// What.
        what: &'static str,
        /// What the store says.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
