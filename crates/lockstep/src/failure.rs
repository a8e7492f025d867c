//! How a command ends badly: exit code 1 when the thing itself failed, 2 for wrong usage, 3 when the collector cannot be
//! reached. 0 is success.

use std::process::ExitCode;

/// A command that did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What was asked for failed; 1.
    Failed(anyhow::Error),
    /// What was asked for makes no sense; 2.
    Usage(String),
    /// Nobody answers; 3.
    Unreachable(String),
}

impl Failure {
    /// Says on stderr what happened, and gives the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        match self {
            Self::Failed(error) => {
                eprintln!("error: {error:#}");
                ExitCode::from(1)
            }
            Self::Usage(message) => {
                eprintln!("error: {message}");
                ExitCode::from(2)
            }
            Self::Unreachable(message) => {
                eprintln!("error: {message}");
                ExitCode::from(3)
            }
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.into())
    }
}
