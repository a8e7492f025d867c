//! The legend and the choices of the grid.

use leptos::prelude::*;

use super::Choices;
use super::measure::{MEASURES, Shows};
use crate::language::tr;
use crate::route::Route;
use crate::ui::{dynamic_view, show, text};

/// The heading and the choices. Each choice is a parameter of the address.
#[component]
pub(super) fn Controls(choices: Choices, gpus: Memo<usize>) -> impl IntoView {
    let measures: Vec<_> = MEASURES
        .iter()
        .map(|measure| (measure.key, tr(measure.title)))
        .collect();
    view! {
        <div class="flex flex-wrap gap-x-3 gap-y-1 items-center mb-1">
            <h2 class="font-bold">{tr("GPUs")} <span class="font-normal text-muted">" " {text(move || gpus.get().to_string())}</span></h2>
            <div class="off-wall flex flex-wrap gap-2 items-center ml-auto" hidden=move || gpus.get() == 0>
                {choice(tr("Measure"), "colour", choices.measure, &measures)}
                {choice(tr("Colour shows"), "show", choices.shows, &[("difference", tr("difference to the median of the run")), ("value", tr("value"))])}
                {choice(tr("Grouped by"), "group", choices.grouping, &[("node", tr("by node")), ("run", tr("by run")), ("rack", tr("by rack"))])}
                {choice(tr("View"), "gpus", choices.view, &[("cells", tr("cells")), ("table", tr("table: worst 50"))])}
            </div>
        </div>
    }
}

/// A select box. The first entry is the default and is not stored in the address.
fn choice(
    label: &'static str,
    param: &'static str,
    chosen: Memo<Option<String>>,
    options: &[(&'static str, &'static str)],
) -> AnyView {
    let route = expect_context::<Route>();
    let default = options.first().map_or("", |(key, _)| *key);
    let options = options.iter().copied().map(|(key, title)| {
        let selected =
            Signal::derive(move || chosen.with(|chosen| chosen.as_deref().unwrap_or(default) == key));
        view! { <option value=key prop:selected=selected>{title}</option> }.into_any()
    });
    let options: Vec<AnyView> = options.collect();
    let choose = move |event| {
        let value = event_target_value(&event);
        route.set_param(param, Some(value.as_str()).filter(|value| *value != default));
    };
    view! {
        <select class="select select-sm w-auto max-w-full" aria-label=label on:change=choose data-testid=format!("gpus-{param}")>{options}</select>
    }
    .into_any()
}

/// The meaning of colours, shapes and patterns.
#[component]
pub(super) fn Legend(choices: Choices) -> impl IntoView {
    let ends = dynamic_view(move || {
        let measure = choices.measure();
        let (class, low, high) = match choices.shows() {
            Shows::Difference => (
                "from-(--below) via-(--level) to-(--above)",
                measure.difference(-measure.span),
                measure.difference(measure.span),
            ),
            Shows::Value => (
                "from-[#00224e] via-[#7c7b78] to-[#fee838]",
                show(measure.scale.0, measure.unit),
                show(measure.scale.1, measure.unit),
            ),
        };
        view! {
            <span>{low}</span>
            <span class=format!("inline-block h-2 w-24 bg-gradient-to-r {class}") aria-hidden="true"></span>
            <span>{high}</span>
        }
        .into_any()
    });
    view! {
        <p class="flex flex-wrap gap-x-3 gap-y-1 items-center text-xs text-muted">
            <span class="inline-flex gap-1 items-center">{ends}</span>
            <span class="inline-flex gap-1 items-center"><span class="inline-block size-3 border-2 border-error" aria-hidden="true"></span>{tr("named by a diagnosis")}</span>
            <span class="inline-flex gap-1 items-center"><span class="text-error" aria-hidden="true">"✕"</span>{tr("node down")}</span>
            <span class="inline-flex gap-1 items-center"><span class="inline-block size-3 unmeasured" aria-hidden="true"></span>{tr("not measured")}</span>
        </p>
    }
}
