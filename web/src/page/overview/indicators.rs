//! The five indicators with their healthy bands: the median, and the worst by name. There is no average, because it hides the worst.

mod summary;
mod table;

use domain::metric::Unit;
use leptos::prelude::*;

use crate::language::{tr, tr_parts, tr_with};
use crate::live::Live;
use crate::route::Route;
use crate::ui::{dynamic_view, effect, fixed, show, text};
use summary::{Summary, Watched};
use table::{BandPosition, INDICATORS, Indicator};

/// Maximum number of runs to choose from; a longer list would not help.
const RUNS_MAX: usize = 50;

/// One tile per indicator, for all runs or one run.
#[component]
pub(super) fn Indicators() -> impl IntoView {
    let route = expect_context::<Route>();
    let chosen = route.param("of");
    let active = Memo::new(move |_| {
        let rows = expect_context::<Live>().runs.rows();
        let active = rows.iter().filter(|row| !row.get().state.is_final());
        active
            .take(RUNS_MAX)
            .map(|row| row.key.clone())
            .collect::<Vec<_>>()
    });
    let options = dynamic_view(move || {
        let chosen = chosen.get();
        let option = |run: String| {
            let selected = chosen.as_deref() == Some(run.as_str());
            view! { <option value=run.clone() selected=selected>{run.clone()}</option> }.into_any()
        };
        active
            .get()
            .into_iter()
            .map(option)
            .collect::<Vec<_>>()
            .into_any()
    });
    let choose = move |event| {
        let run = event_target_value(&event);
        route.set_param("of", Some(run.as_str()).filter(|run| !run.is_empty()));
    };
    view! {
        <section class="min-w-0" aria-label=tr("Indicators")>
            <div class="flex flex-wrap gap-3 items-center mb-1">
                <h2 class="font-bold">{tr("Indicators")}</h2>
                <select class="off-wall select select-sm w-auto ml-auto max-w-full" aria-label=tr("Indicators of") on:change=choose data-testid="indicators-of">
                    <option value="">{tr("all runs and GPUs")}</option>
                    {options}
                </select>
            </div>
            <div class="grid gap-2 grid-cols-1 sm:grid-cols-2 lg:grid-cols-3 xl:grid-cols-5">
                {INDICATORS.iter().map(|indicator| view! { <Tile indicator chosen /> }).collect_view()}
            </div>
        </section>
    }
}

#[component]
fn Tile(indicator: &'static Indicator, chosen: Memo<Option<String>>) -> impl IntoView {
    let watched = Watched::new();
    // One owner per choice: the next choice ends the watches of this one.
    effect(move || watched.follow(indicator, chosen.get().as_deref()));
    let shown = move || watched.first();
    let number =
        text(move || shown().map_or("–".to_owned(), |(_, summary)| show(summary.median, Unit::Ratio)));
    let position = move || {
        let judged = shown().filter(|(source, _)| indicator.sources[*source].judged);
        judged.map(|(_, summary)| indicator.position(summary.median))
    };
    let (class, word) = (
        text(move || position().map_or("hidden", BandPosition::class)),
        text(move || position().map_or("", BandPosition::word)),
    );
    let source = text(move || match shown() {
        Some((source, summary)) => tr_with(
            "median of {count} {source}; healthy: {band}",
            &[
                ("count", &fixed(summary.count, 0)),
                ("source", &tr(indicator.sources[source].words)),
                ("band", &tr(indicator.band)),
            ],
        ),
        None => tr_with(
            "not measured now; healthy: {band}",
            &[("band", &tr(indicator.band))],
        ),
    });
    // The link is kept while its text changes, because it may have the focus.
    let worst = move || shown().and_then(|(_, summary)| summary.worst);
    let (name, href) = (
        text(move || worst().map(|worst| worst.name).unwrap_or_default()),
        text(move || worst().map(|worst| worst.href).unwrap_or_default()),
    );
    let value = text(move || {
        worst()
            .map(|worst| show(worst.value, Unit::Ratio))
            .unwrap_or_default()
    });
    let [worst_name, worst_value, end] = tr_parts("worst {name} {value}");
    view! {
        <article class="border border-base-300 rounded p-2" data-testid="indicator" data-title=indicator.title>
            <h3 class="text-muted">{tr(indicator.title)}</h3>
            <p class="flex flex-wrap gap-2 items-baseline"><span class="text-xl font-bold tabular-nums">{number}</span> <span class=class>{word}</span></p>
            <Scale indicator watched />
            <p class="text-xs min-h-4" data-testid="worst"><span hidden=move || worst().is_none()>{worst_name} <a class="link" href=href>{name}</a> {worst_value} <b>{value}</b> {end}</span></p>
            <p class="text-xs text-muted">{source}</p>
        </article>
    }
}

/// The band, the median and the worst on a scale from 0 to 100 %; the text shows the same.
#[component]
fn Scale(indicator: &'static Indicator, watched: Watched) -> impl IntoView {
    let percent = |value: f64| value.clamp(0.0, 1.0) * 100.0;
    let (low, high) = (percent(indicator.healthy.0), percent(indicator.healthy.1));
    let mark = move |pick: fn(&Summary) -> Option<f64>| {
        text(move || {
            let value = watched.first().and_then(|(_, summary)| pick(&summary));
            value.map_or("-1rem".to_owned(), |value| {
                format!("calc({}% - 2px)", fixed(percent(value), 1))
            })
        })
    };
    view! {
        <div class="relative h-2 my-1 bg-base-300 overflow-hidden" aria-hidden="true">
            <div class="absolute inset-y-0 bg-success/40" style:left=format!("{}%", fixed(low, 0)) style:width=format!("{}%", fixed(high - low, 0))></div>
            <div class="absolute inset-y-0 w-0.5 bg-error" style:left=mark(|summary| summary.worst.as_ref().map(|worst| worst.value))></div>
            <div class="absolute inset-y-0 w-1 bg-base-content" style:left=mark(|summary| Some(summary.median))></div>
        </div>
    }
}
