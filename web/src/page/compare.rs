//! Two runs, or two attempts of one run, side by side: what differs in their settings, then their figures and their curves by step.

mod charts;
mod choice;
mod curve;
mod differences;
mod figures;
mod head;
mod loaded;
mod metrics;
mod side;
mod state;

use leptos::prelude::*;

use crate::language::tr;
use crate::ui::{ErrorMessage, Title, When, text};
use charts::Charts;
use differences::Differences;
use figures::Figures;
use head::Heads;
use loaded::Loaded;
use state::State;

/// The page of a comparison; the address names both sides.
#[component]
pub(crate) fn ComparePage() -> impl IntoView {
    let state = State::of();
    let has_choices = move || state.choices.with(Option::is_some);
    let is_loaded = move || state.loaded.with(Option::is_some);
    let is_waiting = move || has_choices() && !is_loaded() && state.problem.with(Option::is_none);
    let is_same = Memo::new(move |_| {
        let loaded = state.loaded;
        loaded.with(|loaded| loaded.as_ref().is_some_and(Loaded::is_same))
    });
    let back = text(move || state.list_href());
    view! {
        <Title of=tr("Compare runs") />
        <div class="grid grid-cols-1 gap-4">
            <div class="flex flex-wrap gap-x-3 gap-y-1 items-center">
                <h1 class="text-lg font-bold">{tr("Compare runs")}</h1>
                <When on=has_choices><button class="btn btn-sm" on:click=move |_| state.swap() data-testid="swap">{tr("Swap")}</button></When>
                <a class="link ml-auto" href=back>{tr("Choose other runs")}</a>
            </div>
            <ErrorMessage what=state.problem />
            <When on=move || !has_choices()><p class="text-muted">{tr("Choose two runs in the list of runs, then press Compare.")}</p></When>
            <When on=is_waiting><p class="text-muted" role="status">{tr("Loading…")}</p></When>
            <When on=is_loaded><Heads state /></When>
            <When on=is_same><p class="alert alert-warning text-sm" role="status">{tr("Both sides are the same attempt. Choose another attempt.")}</p></When>
            <When on=move || is_loaded() && !is_same.get()>
                <Differences state />
                <Figures state />
                <Charts state />
            </When>
        </div>
    }
}
