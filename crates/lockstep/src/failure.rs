//! The errors of commands and their exit codes: 1 if the command failed, 2 for wrong usage, 3 if the collector cannot be reached. Success
//! is 0.

use std::process::ExitCode;

/// Why a command did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command failed. Exit code 1.
    Failed(anyhow::Error),
    /// The arguments are wrong. Exit code 2.
    Usage(String),
    /// The collector does not answer. Exit code 3.
    Unreachable(String),
}

impl Failure {
    /// Returns the message, with its causes.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Failed(error) => format!("{error:#}"),
            Self::Usage(message) | Self::Unreachable(message) => message.clone(),
        }
    }

    /// Prints the error to stderr and returns the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        eprintln!("error: {}", self.message());
        ExitCode::from(match self {
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
            Self::Unreachable(_) => 3,
        })
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
