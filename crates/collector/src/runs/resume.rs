//! Another attempt of an ended run: from which checkpoint, and whether it is possible.

use domain::api::checkpoints::ResumeRun;
use domain::api::runs::ResumedFrom;
use domain::ident::RunId;
use domain::run::state::{Event, Machine, RunState};

use super::Runs;
use super::error::RunError;

/// Why a run cannot be resumed.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// The run is unknown or cannot be changed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The run has not ended.
    #[error("run {run} is {} and has not ended; stop it first", state.as_str())]
    NotEnded {
        /// The run.
        run: RunId,
        /// The state of the run.
        state: RunState,
    },
    /// There is no checkpoint to resume from.
    #[error(
        "no complete checkpoint of run {0} is known; name one with `checkpoint`, or start from the beginning with `from_start`"
    )]
    NoCheckpoint(RunId),
    /// The named checkpoint is incomplete.
    #[error("checkpoint {path} cannot be used to resume: {problem}")]
    Incomplete {
        /// The path of the checkpoint.
        path: String,
        /// What is missing.
        problem: String,
    },
    /// The named checkpoint is not an absolute path.
    #[error("checkpoint {0:?} is not an absolute path")]
    NotAbsolute(String),
    /// Both `checkpoint` and `from_start` are given.
    #[error("give either `checkpoint` or `from_start`, not both")]
    Both,
}

impl Runs {
    /// Returns the event for a request to resume a run. A checkpoint that is not on the list is accepted as named: the nodes look for it
    /// when they prepare.
    ///
    /// # Errors
    /// Returns an error if the run is unknown, has not ended, or has nothing to resume from.
    pub async fn resumption(&self, run: &RunId, request: &ResumeRun) -> Result<Event, ResumeError> {
        let machine = self.machine(run).await?;
        if !machine.state.is_final() {
            return Err(ResumeError::NotEnded {
                run: run.clone(),
                state: machine.state,
            });
        }
        self.check_none_held(run)?;
        let from = match &request.checkpoint {
            Some(_) if request.from_start => return Err(ResumeError::Both),
            Some(path) => Some(named(&machine, path)?),
            None if !request.from_start && machine.resume_point().is_none() => {
                return Err(ResumeError::NoCheckpoint(run.clone()));
            }
            None => None,
        };
        Ok(Event::ResumeRequested {
            from,
            from_start: request.from_start,
        })
    }
}

fn named(machine: &Machine, path: &str) -> Result<ResumedFrom, ResumeError> {
    if !path.starts_with('/') {
        return Err(ResumeError::NotAbsolute(path.to_owned()));
    }
    let known = machine
        .checkpoints
        .iter()
        .find(|checkpoint| checkpoint.path == path);
    match known {
        Some(checkpoint) if !checkpoint.complete => Err(ResumeError::Incomplete {
            path: path.to_owned(),
            problem: checkpoint
                .problem
                .clone()
                .unwrap_or_else(|| "it is not complete".to_owned()),
        }),
        known => Ok(ResumedFrom {
            path: path.to_owned(),
            step: known.and_then(|checkpoint| checkpoint.step),
        }),
    }
}
