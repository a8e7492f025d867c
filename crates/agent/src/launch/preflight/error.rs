//! The reasons why a run cannot start on this node, for the person who submitted it.

use std::path::PathBuf;

use super::checkout::CheckoutError;
use super::container::ContainerError;

/// Why a run cannot start on this node. Each message says how to correct it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrepareError {
    /// The Python interpreter does not exist.
    #[error(
        "there is no Python at {0:?}; name an interpreter or virtual environment with `python` in the run, --python for the \
         agent, or LOCKSTEP_PYTHON"
    )]
    NoPython(PathBuf),
    /// Python cannot import PyTorch.
    #[error(
        "PyTorch cannot be imported by {python:?}: {complaint}. Install it with `{} -m pip install torch`, or name another \
         environment with `python` in the run, --python for the agent, or LOCKSTEP_PYTHON", python.display()
    )]
    NoTorch {
        /// The interpreter.
        python: PathBuf,
        /// The last line of the error output.
        complaint: String,
    },
    /// The import of PyTorch took too long.
    #[error(
        "importing PyTorch with {0:?} took longer than the {1} s that were left for it; is its file system reachable?"
    )]
    Slow(PathBuf, u64),
    /// The script or a folder is missing.
    #[error("{what} {path:?} is not on this node; put it there, or on a file system that all nodes share")]
    Missing {
        /// What is missing, such as `the script` or `the workdir`.
        what: &'static str,
        /// The path.
        path: PathBuf,
    },
    /// The script cannot run.
    #[error("the script {path:?} would fail at once: {complaint}")]
    Script {
        /// The path of the script.
        path: PathBuf,
        /// Python's error message.
        complaint: String,
    },
    /// The container cannot start.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// The checkout failed.
    #[error(transparent)]
    Checkout(#[from] CheckoutError),
    /// A file cannot be read.
    #[error("{path:?} cannot be read on this node")]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        source: std::io::Error,
    },
    /// The checkpoint folder cannot be written.
    #[error("checkpoint_dir {path:?} cannot be written on this node; no checkpoint could be saved")]
    Unwritable {
        /// The path.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        source: std::io::Error,
    },
    /// A file system does not answer.
    #[error("a file system that the run uses has not answered for a minute; check its server and its mount")]
    DiskHangs,
    /// A network interface is missing.
    #[error("GLOO_SOCKET_IFNAME names {0}, but this node has no such network interface")]
    NoInterface(String),
    /// No port could be bound.
    #[error("no free TCP port could be found")]
    Port(#[source] std::io::Error),
}
