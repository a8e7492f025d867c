//! A run that cannot be had or changed.

use domain::ident::{AttemptNo, NodeName, RunId};
use store::state::StateError;

/// Why a run cannot be had or changed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No such run.
    #[error("there is no run {0}; GET /api/runs lists them")]
    Unknown(RunId),
    /// The store.
    #[error("the run's state cannot be read or written")]
    State(#[from] StateError),
    /// A stored machine of another version.
    #[error("the stored state of run {run} cannot be read; it may have been written by a newer version")]
    Stored {
        /// The run.
        run: RunId,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
    /// A stop cannot wait for a step or a checkpoint.
    #[error(
        "run {run} cannot be stopped at a later moment: {reason}. A stop without `after` sends SIGTERM and leaves its ranks the grace to save"
    )]
    CannotWait {
        /// The run.
        run: RunId,
        /// Why not.
        reason: String,
    },
    /// A report of a node that has no part in the attempt that it is about.
    #[error("node {node} has no part in attempt {attempt} of run {run}")]
    NotInAttempt {
        /// The run.
        run: RunId,
        /// The attempt.
        attempt: AttemptNo,
        /// Who reports.
        node: NodeName,
    },
    /// No other attempt may begin.
    #[error(
        "node {node} holds attempt {attempt} of run {run}, which this collector does not know: stop it with `lockstep run stop {run}`, or wait until it has ended"
    )]
    HeldUnknown {
        /// The run.
        run: RunId,
        /// The node.
        node: NodeName,
        /// The attempt that it holds.
        attempt: AttemptNo,
    },
    /// The values of its secrets.
    #[error("the run's secrets cannot be kept; look at the space and the rights of the data folder")]
    Secrets(#[source] std::io::Error),
    /// The change was not stored, together with those of others.
    #[error("run {0} could not be changed now; try again")]
    Busy(RunId),
}
