//! Colours of states; the word is always beside them.

use domain::event::Severity;
use domain::run::state::RunState;

/// Badge class of a run's state.
pub(crate) fn state_class(state: RunState) -> &'static str {
    match state {
        RunState::Running => "badge badge-info",
        RunState::Succeeded => "badge badge-success",
        RunState::Failed | RunState::Lost => "badge badge-error",
        RunState::Stopping | RunState::Restarting => "badge badge-warning",
        _ => "badge badge-neutral",
    }
}

/// Alert class of a severity.
pub(crate) fn severity_class(severity: Severity) -> &'static str {
    match severity {
        Severity::Critical => "alert alert-error",
        Severity::Warning => "alert alert-warning",
        Severity::Info => "alert alert-info",
    }
}
