//! Why a run cannot start on this node, in words for the person who submitted it.

use std::path::PathBuf;

use super::checkout::CheckoutError;
use super::container::ContainerError;

/// Why a run cannot start here. Each says how to get what is missing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrepareError {
    /// No interpreter.
    #[error(
        "there is no Python at {0:?}; name an interpreter or virtual environment with `python` in the run, --python for the \
         agent, or LOCKSTEP_PYTHON"
    )]
    NoPython(PathBuf),
    /// No PyTorch.
    #[error(
        "PyTorch cannot be imported by {python:?}: {complaint}. Install it with `{} -m pip install torch`, or name another \
         environment with `python` in the run, --python for the agent, or LOCKSTEP_PYTHON", python.display()
    )]
    NoTorch {
        /// The interpreter.
        python: PathBuf,
        /// The last of what it said.
        complaint: String,
    },
    /// It hangs.
    #[error(
        "importing PyTorch with {0:?} took longer than the {1} s that were left for it; is its file system reachable?"
    )]
    Slow(PathBuf, u64),
    /// The script or folder.
    #[error("{what} {path:?} is not on this node; put it there, or on a file system that all nodes share")]
    Missing {
        /// `the script` or `the workdir`.
        what: &'static str,
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The script is not one.
    #[error("the script {path:?} would fail at once: {complaint}")]
    Script {
        /// Where it is.
        path: PathBuf,
        /// What Python says.
        complaint: String,
    },
    /// The container.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// The working copy.
    #[error(transparent)]
    Checkout(#[from] CheckoutError),
    /// A file.
    #[error("{path:?} cannot be read on this node")]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The folder of checkpoints.
    #[error("checkpoint_dir {path:?} cannot be written on this node; no checkpoint could be saved")]
    Unwritable {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file system.
    #[error(
        "a file system that the run uses has not answered for a minute; look at its server and its mount"
    )]
    DiskHangs,
    /// A network interface.
    #[error("GLOO_SOCKET_IFNAME names {0}, and this node has no such network interface")]
    NoInterface(String),
    /// No port.
    #[error("no free TCP port could be found")]
    Port(#[source] std::io::Error),
}
