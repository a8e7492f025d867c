//! Colours and shapes of states; a word is always shown beside them.

use domain::api::alerts::AlertState;
use domain::event::Severity;
use domain::run::state::RunState;
use leptos::prelude::*;

use super::text;

/// The state of a run.
#[component]
pub(crate) fn StateBadge(
    /// The state.
    #[prop(into)]
    state: Signal<RunState>,
) -> impl IntoView {
    let class = text(move || run_state_class(state.get()));
    view! { <span class=class data-testid="run-state">{text(move || state.get().as_str())}</span> }
}

/// Returns the CSS class of a run's state.
pub(crate) fn run_state_class(state: RunState) -> &'static str {
    match state {
        RunState::Running => "state state-info",
        RunState::Succeeded => "state state-ok",
        RunState::Failed | RunState::Lost => "state state-critical",
        RunState::Stopping | RunState::Restarting => "state state-warning",
        _ => "state state-unknown",
    }
}

/// Returns CSS class and word of an alert's state.
pub(crate) fn alert_badge(state: AlertState) -> (&'static str, &'static str) {
    match state {
        AlertState::Pending => ("state state-info", "pending"),
        AlertState::Firing => ("state state-warning", "firing"),
        AlertState::Resolved => ("state state-ok", "resolved"),
    }
}

/// Returns the CSS class for the border of a diagnosis.
pub(crate) fn severity_class(severity: Severity) -> &'static str {
    match severity {
        Severity::Critical => "border-error",
        Severity::Warning => "border-warning",
        Severity::Info => "border-info",
    }
}

/// Returns CSS class and word of a severity.
pub(crate) fn severity_word(severity: Severity) -> (&'static str, &'static str) {
    match severity {
        Severity::Critical => ("state state-critical", "critical"),
        Severity::Warning => ("state state-warning", "warning"),
        Severity::Info => ("state state-info", "info"),
    }
}
