//! What is wrong, how the five indicators stand, the GPUs, the runs.

mod grid;
mod indicators;

use domain::api::runs::RunSummary;
use leptos::prelude::*;
use leptos_router::components::A;

use crate::live::Live;
use crate::ui::{DiagnosisCard, ago, state_class};
use grid::GpuGrid;
use indicators::Indicators;

/// The first page.
#[component]
pub(crate) fn Overview() -> impl IntoView {
    view! {
        <div class="grid gap-6">
            <Indicators />
            <Diagnoses />
            <GpuGrid />
            <Runs />
        </div>
    }
}

#[component]
fn Diagnoses() -> impl IntoView {
    let live = expect_context::<Live>();
    let cards = move || {
        live.diagnoses.get().map(|all| {
            if all.is_empty() {
                return view! { <p class="opacity-70">"Nothing is wrong that a rule knows of."</p> }
                    .into_any();
            }
            all.into_iter()
                .map(|diagnosis| view! { <DiagnosisCard diagnosis /> })
                .collect_view()
                .into_any()
        })
    };
    view! {
        <section>
            <h2 class="text-lg font-bold mb-2">"Diagnoses"</h2>
            <div class="grid gap-3" data-testid="diagnoses">{cards}</div>
        </section>
    }
}

#[component]
fn Runs() -> impl IntoView {
    let live = expect_context::<Live>();
    let rows = move || {
        live.runs.get().map(|runs| {
            if runs.is_empty() {
                return view! { <tr><td colspan="6" class="opacity-70">"No runs yet. "
                <A href="/runs/new" attr:class="link">"Start one"</A>"."</td></tr> }
                .into_any();
            }
            runs.into_iter()
                .map(|run| view! { <RunRow run /> })
                .collect_view()
                .into_any()
        })
    };
    view! {
        <section>
            <div class="flex justify-between items-center mb-2">
                <h2 class="text-lg font-bold">"Runs"</h2>
                <A href="/runs/new" attr:class="btn btn-primary btn-sm">"New run"</A>
            </div>
            <div class="overflow-x-auto">
                <table class="table table-sm" data-testid="runs">
                    <thead><tr><th>"Run"</th><th>"State"</th><th>"Program"</th><th>"Nodes"</th><th>"Ranks"</th><th>"Submitted"</th></tr></thead>
                    <tbody>{rows}</tbody>
                </table>
            </div>
        </section>
    }
}

#[component]
fn RunRow(run: RunSummary) -> impl IntoView {
    let why = run.outcome.map(|outcome| outcome.message).unwrap_or_default();
    view! {
        <tr>
            <td><A href=format!("/runs/{}", run.id) attr:class="link">{run.id.clone()}</A></td>
            <td><span class=state_class(run.state)>{run.state.as_str()}</span>" "<span class="text-xs opacity-70">{why}</span></td>
            <td>{run.program}</td>
            <td>{run.nodes.join(", ")}</td>
            <td>{run.world_size}</td>
            <td>{ago(run.submitted_ms)}</td>
        </tr>
    }
}
