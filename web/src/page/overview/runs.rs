//! The runs, newest first.

use domain::api::runs::RunSummary;
use leptos::prelude::*;

use crate::live::{Live, Row, each};
use crate::ui::{Ago, Heading, StateBadge, When, text};

/// A row each.
#[component]
pub(super) fn Runs() -> impl IntoView {
    let all = expect_context::<Live>().runs;
    view! {
        <section class="min-w-0">
            <Heading text="Runs" hint="Trainings that Lockstep started, newest first. Open one for its live charts and log.">
                <a href="/runs/new" class="btn btn-primary btn-sm">"New run"</a>
            </Heading>
            <When on=move || !all.is_known()><p class="opacity-70">"Loading…"</p></When>
            <When on=move || all.is_empty()>
                <p class="opacity-70">"No run so far. " <a href="/runs/new" class="link">"Start one"</a>": the recipe ddp needs nothing but PyTorch."</p>
            </When>
            <When on=move || all.is_known() && !all.is_empty()>
                <div class="overflow-x-auto">
                    <table class="table table-sm" data-testid="runs">
                        <thead>
                            <tr>
                                <th>"Run"</th>
                                <th>"State"</th>
                                <th class="hidden sm:table-cell">"Program"</th>
                                <th class="hidden sm:table-cell">"Nodes"</th>
                                <th class="hidden sm:table-cell">"Ranks"</th>
                                <th class="hidden sm:table-cell">"Attempts"</th>
                                <th>"Submitted"</th>
                            </tr>
                        </thead>
                        <tbody>{each(move || all.rows(), |row| view! { <RunRow row /> }.into_any())}</tbody>
                    </table>
                </div>
            </When>
        </section>
    }
}

#[component]
fn RunRow(row: Row<RunSummary>) -> impl IntoView {
    let run = row.signal();
    let state = Signal::derive(move || run.with(|run| run.state));
    let submitted_ms = Signal::derive(move || run.with(|run| run.submitted_ms));
    let why = text(move || {
        let message = run.with(|run| run.outcome.as_ref().map(|outcome| outcome.message.to_string()));
        message.unwrap_or_default()
    });
    let ranks = text(move || match run.with(|run| run.world_size) {
        0 => "–".to_owned(),
        known => known.to_string(),
    });
    view! {
        <tr>
            <td><a href=format!("/runs/{}", row.key) class="link font-mono whitespace-nowrap">{row.key.clone()}</a></td>
            <td><StateBadge state /><p class="text-xs opacity-70 break-words max-w-md">{why}</p></td>
            <td class="hidden sm:table-cell">{text(move || run.with(|run| run.program.clone()))}</td>
            <td class="hidden sm:table-cell">{text(move || run.with(|run| run.nodes.join(", ")))}</td>
            <td class="hidden sm:table-cell">{ranks}</td>
            <td class="hidden sm:table-cell" data-testid="run-attempts">{text(move || run.with(|run| run.attempt.to_string()))}</td>
            <td><Ago at_ms=submitted_ms /></td>
        </tr>
    }
}
