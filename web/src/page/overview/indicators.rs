//! The five indicators against their healthy bands.

mod table;

use domain::api::stream::Request;
use domain::metric::Unit;
use leptos::prelude::*;

use crate::live::{Live, News};
use crate::ui::{Heading, fixed, show, text};
use table::{INDICATORS, Indicator, Place};

/// One tile for each.
#[component]
pub(super) fn Indicators() -> impl IntoView {
    view! {
        <section>
            <Heading text="Indicators" hint="How well the hardware is used, averaged over everything that reports; the shaded part of each scale is the healthy band." />
            <div class="grid gap-3 grid-cols-2 md:grid-cols-3 lg:grid-cols-5">
                {INDICATORS.iter().map(|indicator| view! { <Tile indicator /> }).collect_view()}
            </div>
        </section>
    }
}

#[component]
fn Tile(indicator: &'static Indicator) -> impl IntoView {
    let shown = first_answer(indicator);
    let place = move || {
        let judged = shown.get().filter(|(n, _)| indicator.sources[*n].judged);
        judged.map(|(_, value)| indicator.place(value))
    };
    let number = text(move || {
        shown
            .get()
            .map_or("–".to_owned(), |(_, value)| show(value, Unit::Ratio))
    });
    let source = text(move || {
        shown
            .get()
            .map_or("nothing reports it now", |(n, _)| indicator.sources[n].words)
    });
    let (class, word) = (
        text(move || place().map_or("hidden", Place::class)),
        text(move || place().map_or("", Place::word)),
    );
    view! {
        <article class="card bg-base-200 p-3 gap-1" data-testid="indicator" data-title=indicator.title>
            <h3 class="text-sm opacity-80">{indicator.title}</h3>
            <p class="flex flex-wrap gap-2 items-center"><span class="text-xl sm:text-2xl font-bold">{number}</span> <span class=class>{word}</span></p>
            <Scale indicator shown />
            <p class="text-xs opacity-70">"healthy: " {indicator.band}</p>
            <p class="text-xs opacity-70">{source}</p>
        </article>
    }
}

/// The band and the value on a line from 0 to 100 %; the words say the same.
#[component]
fn Scale(indicator: &'static Indicator, shown: Memo<Option<(usize, f64)>>) -> impl IntoView {
    let percent = |value: f64| value.clamp(0.0, 1.0) * 100.0;
    let (low, high) = (percent(indicator.healthy.0), percent(indicator.healthy.1));
    let band = format!("left: {}%; width: {}%", fixed(low, 0), fixed(high - low, 0));
    let mark = text(move || match shown.get() {
        Some((_, value)) => format!("left: calc({}% - 2px)", fixed(percent(value), 1)),
        None => "display: none".to_owned(),
    });
    view! {
        <div class="relative h-2 rounded bg-base-300 overflow-hidden" aria-hidden="true">
            <div class="absolute inset-y-0 bg-success/40" style=band></div>
            <div class="absolute inset-y-0 w-1 bg-base-content" style=mark></div>
        </div>
    }
}

/// The first of the indicator's sources that answers, and its value.
fn first_answer(indicator: &'static Indicator) -> Memo<Option<(usize, f64)>> {
    let live = expect_context::<Live>();
    let values = RwSignal::new(vec![None::<f64>; indicator.sources.len()]);
    for (n, source) in indicator.sources.iter().enumerate() {
        let watched = |id| Request::WatchInstant {
            id,
            query: source.query.to_owned(),
        };
        live.watch(watched, move |news| {
            let value = match news {
                News::Frame { series, .. } => series
                    .first()
                    .and_then(|column| column.values.last().copied().flatten()),
                _ => None,
            };
            values.update(|values| values[n] = value);
        });
    }
    Memo::new(move |_| {
        let values = values.read();
        let answers = values.iter().enumerate();
        answers.filter_map(|(n, value)| Some((n, (*value)?))).next()
    })
}
