//! The memory plan before the start, or why there is none.

use domain::api::runs::MemoryForecast;
use domain::plan::Verdict;
use leptos::prelude::*;

use super::editor::Editor;
use crate::language::{tr, tr_with};
use crate::ui::{bytes, dynamic_view, empty_view};

/// The plan of the run as it is typed.
#[component]
pub(super) fn MemoryPlan(editor: Editor) -> impl IntoView {
    let answer = editor.check.answer;
    let plan =
        Memo::new(move |_| answer.with(|answer| (answer.memory.clone(), answer.memory_unknown.clone())));
    let shown = dynamic_view(move || match plan.get() {
        (Some(plan), _) => planned(&plan),
        (None, Some(why)) => {
            view! { <p class="text-sm text-muted">{tr("No memory plan:")} " " {why}</p> }.into_any()
        }
        (None, None) => empty_view(),
    });
    view! {
        <section aria-labelledby="memory-plan" data-testid="memory-plan">
            <h2 id="memory-plan" class="text-lg font-bold">{tr("Memory plan")}</h2>
            {shown}
        </section>
    }
}

fn planned(plan: &MemoryForecast) -> AnyView {
    let peak = bytes(plan.peak_bytes);
    let peak = tr_with(
        "Peak per GPU: {peak}, {when}. GPUs: {count}.",
        &[("peak", &peak), ("when", &plan.peak_at), ("count", &plan.gpus)],
    );
    let parts = plan.parts.iter().map(|part| {
        let (name, size) = (part.name.clone(), bytes(part.bytes));
        view! { <tr><td>{name}</td><td class="text-right">{size}</td></tr> }.into_any()
    });
    let parts: Vec<AnyView> = parts.collect();
    let ways: Vec<AnyView> = plan
        .ways_to_fit
        .iter()
        .map(|way| view! { <li>{way.clone()}</li> }.into_any())
        .collect();
    let ways = (!ways.is_empty()).then(|| view! { <p class="mt-2">{tr("What would make it fit:")}</p> <ul class="list-disc ml-5">{ways}</ul> }.into_any());
    view! {
        <div class="text-sm">
            <p>{fit(plan)} " " {peak}</p>
            <details>
                <summary class="cursor-pointer py-1">{tr("Parts at the peak")}</summary>
                <table class="table table-xs w-auto"><tbody>{parts}</tbody></table>
            </details>
            {ways}
        </div>
    }
    .into_any()
}

fn fit(plan: &MemoryForecast) -> AnyView {
    let Some(fit) = plan.fit else {
        return tr("No node that accepts runs has a GPU.").into_any();
    };
    let (class, word) = match fit.verdict {
        Verdict::Fits => ("badge-success", tr("✓ fits")),
        Verdict::Tight => ("badge-warning", tr("◆ tight")),
        Verdict::DoesNotFit => ("badge-error", tr("▲ does not fit")),
    };
    let memory = bytes(fit.gpu_memory_bytes);
    let of = tr_with("into the smallest GPU, {memory}.", &[("memory", &memory)]);
    view! { <span class=format!("badge badge-sm {class}")>{word}</span> " " {of} }.into_any()
}
