//! The diagnosis as a file, for a ticket or for people without access to the dashboard.

use leptos::prelude::*;

use super::diagnosis_state::DiagnosisState;
use crate::language::tr;
use crate::ui::Heading;

/// The link to the file. The browser sends the cookie of the session, so the address contains no token.
#[component]
pub(super) fn Bundle(state: DiagnosisState) -> impl IntoView {
    let hint = tr(
        "One JSON file: this diagnosis with its evidence and history, the values of its charts, the findings about its run, and the events around it. It contains no tokens, environment variables or secrets; in log lines, the values of secrets are replaced.",
    );
    view! {
        <section class="min-w-0" aria-label=tr("Bundle")>
            <Heading text=tr("Bundle") hint=hint />
            <a class="btn min-h-12" href=state.path("/bundle") download="" data-testid="bundle">{tr("Download bundle")}</a>
        </section>
    }
}
