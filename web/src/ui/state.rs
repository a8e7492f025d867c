//! Colours of states; the word is always beside them.

use domain::api::alerts::AlertState;
use domain::event::Severity;
use domain::run::state::RunState;
use leptos::prelude::*;

use super::text;

/// A run's state.
#[component]
pub(crate) fn StateBadge(
    /// The state.
    #[prop(into)]
    state: Signal<RunState>,
) -> impl IntoView {
    let class = text(move || match state.get() {
        RunState::Running => "badge badge-sm badge-info",
        RunState::Succeeded => "badge badge-sm badge-success",
        RunState::Failed | RunState::Lost => "badge badge-sm badge-error",
        RunState::Stopping | RunState::Restarting => "badge badge-sm badge-warning",
        _ => "badge badge-sm badge-neutral",
    });
    view! { <span class=class data-testid="run-state">{text(move || state.get().as_str())}</span> }
}

/// Badge class and word of an alert's state.
pub(crate) fn alert_badge(state: AlertState) -> (&'static str, &'static str) {
    match state {
        AlertState::Pending => ("badge badge-sm badge-info", "pending"),
        AlertState::Firing => ("badge badge-sm badge-warning", "firing"),
        AlertState::Resolved => ("badge badge-sm badge-ghost", "resolved"),
    }
}

/// The border's colour of a diagnosis.
pub(crate) fn severity_class(severity: Severity) -> &'static str {
    match severity {
        Severity::Critical => "border-error",
        Severity::Warning => "border-warning",
        Severity::Info => "border-info",
    }
}

/// Badge class and word of a severity.
pub(crate) fn severity_word(severity: Severity) -> (&'static str, &'static str) {
    match severity {
        Severity::Critical => ("badge badge-sm badge-error", "critical"),
        Severity::Warning => ("badge badge-sm badge-warning", "warning"),
        Severity::Info => ("badge badge-sm badge-info", "info"),
    }
}
