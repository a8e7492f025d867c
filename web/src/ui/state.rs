//! Colours and shapes of states; a word is always shown beside them.

use domain::api::alerts::AlertState;
use domain::event::Severity;
use domain::run::state::RunState;
use leptos::prelude::*;

use super::text;
use crate::language::{marked, tr};

/// The state of a run.
#[component]
pub(crate) fn StateBadge(
    /// The state.
    #[prop(into)]
    state: Signal<RunState>,
) -> impl IntoView {
    let class = text(move || run_state_class(state.get()));
    view! { <span class=class data-testid="run-state">{text(move || run_state_word(state.get()))}</span> }
}

/// Returns the word of a run's state.
pub(crate) fn run_state_word(state: RunState) -> &'static str {
    match state {
        RunState::Draft => tr("draft"),
        RunState::Queued => tr("queued"),
        RunState::Preparing => tr("preparing"),
        RunState::Starting => tr("starting"),
        RunState::Running => tr("running"),
        RunState::Stopping => tr("stopping"),
        RunState::Stopped => tr("stopped"),
        RunState::Restarting => tr("restarting"),
        RunState::Succeeded => tr("succeeded"),
        RunState::Failed => tr("failed"),
        RunState::Lost => tr("lost"),
    }
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

/// Returns the CSS class of an alert's state, and its word in English.
pub(crate) fn alert_badge(state: AlertState) -> (&'static str, &'static str) {
    match state {
        AlertState::Pending => ("state state-info", marked("pending")),
        AlertState::Firing => ("state state-warning", marked("firing")),
        AlertState::Resolved => ("state state-ok", marked("resolved")),
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
        Severity::Critical => ("state state-critical", tr("critical")),
        Severity::Warning => ("state state-warning", tr("warning")),
        Severity::Info => ("state state-info", tr("info")),
    }
}
