//! Another attempt of a run that has ended: from which checkpoint, and whether it can be.

use domain::api::checkpoints::ResumeRun;
use domain::api::runs::ResumedFrom;
use domain::ident::RunId;
use domain::run::state::{Event, Machine, RunState};

use super::Runs;
use super::error::RunError;

/// A run that cannot go on as wished.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// The run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// It has not ended.
    #[error("run {run} is {}, it has not ended; stop it first if it is to begin again elsewhere", state.as_str())]
    NotEnded {
        /// The run.
        run: RunId,
        /// Where it stands.
        state: RunState,
    },
    /// Nothing to go on from.
    #[error(
        "no complete checkpoint of run {0} is known; name one with `checkpoint`, or begin anew with `from_start`"
    )]
    NoCheckpoint(RunId),
    /// The one that was named is not whole.
    #[error("checkpoint {path} cannot be gone on from: {problem}")]
    Incomplete {
        /// Which one.
        path: String,
        /// What is missing.
        problem: String,
    },
    /// Not a path.
    #[error("checkpoint {0:?} is not an absolute path")]
    NotAbsolute(String),
    /// Two wishes at once.
    #[error("name a checkpoint or begin from the start, not both")]
    Both,
}

impl Runs {
    /// What a wish to resume means for a run. A checkpoint that is not on the list is taken as named: the nodes look for it when they
    /// prepare.
    ///
    /// # Errors
    /// When there is no such run, it has not ended, or there is nothing to go on from.
    pub async fn resumption(&self, run: &RunId, wish: &ResumeRun) -> Result<Event, ResumeError> {
        let machine = self.machine(run).await?;
        if !machine.state.is_final() {
            return Err(ResumeError::NotEnded {
                run: run.clone(),
                state: machine.state,
            });
        }
        self.check_none_held(run)?;
        let from = match &wish.checkpoint {
            Some(_) if wish.from_start => return Err(ResumeError::Both),
            Some(path) => Some(named(&machine, path)?),
            None if !wish.from_start && machine.resume_point().is_none() => {
                return Err(ResumeError::NoCheckpoint(run.clone()));
            }
            None => None,
        };
        Ok(Event::ResumeRequested {
            from,
            from_start: wish.from_start,
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
