//! The curves of both sides on one axis of steps.

use leptos::prelude::*;

use super::loaded::Loaded;
use super::metrics::Metric;
use super::state::State;
use crate::chart::{StepChart, StepLines};
use crate::language::{tr, tr_with};
use crate::ui::{Heading, dynamic_view, text};

/// One chart per metric, and the choice of the rank.
#[component]
pub(super) fn Charts(state: State) -> impl IntoView {
    let chart = |(place, metric): (usize, Metric)| {
        let lines = Memo::new(move |_| {
            let lines = |loaded: &Loaded| loaded.lines(place);
            state
                .loaded
                .with(|loaded| loaded.as_ref().map_or_else(StepLines::default, lines))
        });
        let empty = text(move || {
            let rank = state.rank.get();
            tr_with("Rank {rank} has no values on either side.", &[("rank", &rank)])
        });
        view! { <StepChart title=metric.title() hint=metric.hint() unit=metric.unit() lines empty /> }
            .into_any()
    };
    let charts: Vec<AnyView> = Metric::ALL.into_iter().enumerate().map(chart).collect();
    let warnings = Memo::new(move |_| {
        state
            .loaded
            .with(|loaded| loaded.as_ref().map(Loaded::warnings).unwrap_or_default())
    });
    let warnings = dynamic_view(move || {
        let line = |warning: String| view! { <p class="text-muted text-sm">{warning}</p> }.into_any();
        let lines: Vec<AnyView> = warnings.get().into_iter().map(line).collect();
        lines.into_any()
    });
    let choose = move |event| state.choose_rank(event_target_value(&event).parse().unwrap_or(0));
    view! {
        <section class="min-w-0" data-testid="curves">
            <Heading text=tr("By step") hint=tr("Values of one rank on both sides. Under pipeline parallelism, only ranks of the last stage have a loss. Drag to zoom in on steps in all charts; double-click to reset.")>
                <label class="text-sm flex gap-2 items-center">{tr("Rank")}
                    <input class="input input-sm w-20" type="number" min="0" prop:value=move || state.rank.get().to_string() on:change=choose data-testid="rank" />
                </label>
            </Heading>
            {warnings}
            <div class="grid grid-cols-1 gap-3 lg:grid-cols-2">{charts}</div>
        </section>
    }
}
