//! Reports of the run's nodes that the collector could not read; their content is missing on this page.

use domain::api::runs::UnreadReport;
use leptos::prelude::*;

use super::run_signal::RunSignal;
use crate::language::tr;
use crate::ui::{Heading, When, dynamic_view};

/// The section; nothing if all reports were read.
#[component]
pub(super) fn NotRead(
    /// The run.
    run: RunSignal,
) -> impl IntoView {
    let reports = Memo::new(move |_| {
        run.with(|run| {
            run.as_ref()
                .map(|run| run.more.unread_reports.clone())
                .unwrap_or_default()
        })
    });
    view! {
        <When on=move || !reports.read().is_empty()>
            <section class="min-w-0" data-testid="unread">
                <Heading text=tr("Reports that could not be read") hint=tr("Agents and collector have different versions. Upgrade the collector first, then the agents.") />
                <ul class="card bg-base-200 border-l-4 border-warning p-3 grid gap-1">
                    {dynamic_view(move || reports.get().iter().map(line).collect::<Vec<AnyView>>().into_any())}
                </ul>
            </section>
        </When>
    }
}

fn line(report: &UnreadReport) -> AnyView {
    view! { <li class="break-words">{report.sentence()}</li> }.into_any()
}
