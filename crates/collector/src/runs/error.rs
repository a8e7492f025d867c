//! Why a run cannot be read or changed.

use domain::api::checkpoints::PruneLine;
use domain::ident::{AttemptNo, NodeName, RunId};
use store::state::StateError;

/// Why a run cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The run is unknown.
    #[error("there is no run {0}; GET /api/runs lists them")]
    Unknown(RunId),
    /// The store failed.
    #[error("the run's state cannot be read or written")]
    State(#[from] StateError),
    /// The stored state is of another version and cannot be read.
    #[error("the stored state of run {run} cannot be read; it may have been written by a newer version")]
    Stored {
        /// The run.
        run: RunId,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// The stop cannot wait for a step or a checkpoint.
    #[error(
        "run {run} cannot be stopped at a later moment: {reason}. A stop without `after` sends SIGTERM and gives its ranks the grace period to save"
    )]
    CannotWait {
        /// The run.
        run: RunId,
        /// Why it cannot wait.
        reason: String,
    },
    /// Another user submitted the run from which hidden values would be taken.
    #[error(
        "the values of {} are hidden: only the token that submitted run {run}, or an admin, can reuse them. Give the values again, for \
         example with `lockstep run submit FILE --secret NAME`",
        names.join(", ")
    )]
    HiddenValues {
        /// The run that has the values.
        run: RunId,
        /// The names of the secrets and variables.
        names: Vec<String>,
    },
    /// A report of a node that has no part in the attempt.
    #[error("node {node} has no part in attempt {attempt} of run {run}")]
    NotInAttempt {
        /// The run.
        run: RunId,
        /// The attempt.
        attempt: AttemptNo,
        /// The node that sent the report.
        node: NodeName,
    },
    /// No other attempt may begin while a node holds an unknown one.
    #[error(
        "node {node} holds attempt {attempt} of run {run}, which this collector does not know: stop it with `lockstep run stop {run}`, or wait until it has ended"
    )]
    HeldUnknown {
        /// The run.
        run: RunId,
        /// The node.
        node: NodeName,
        /// The attempt that the node holds.
        attempt: AttemptNo,
    },
    /// The values of the run's secrets cannot be written.
    #[error(
        "the run's secrets cannot be stored; check the free space and the permissions of the data folder"
    )]
    Secrets(#[source] std::io::Error),
    /// A prune would remove other checkpoints than those that the request names. Contains those that it would remove.
    #[error(
        "nothing was removed: the checkpoints to remove are not, or no longer, those that the request names in `removes`. Check the new \
         list, then confirm it"
    )]
    RemovalChanged(Vec<PruneLine>),
    /// The change was part of a batch that could not be stored.
    #[error("run {0} could not be changed now; try again")]
    Busy(RunId),
}
