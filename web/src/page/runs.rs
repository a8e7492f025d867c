//! All runs as a table with their health: filtered, sorted and grouped by the address, and the choice of two runs to compare.

mod all;
mod arrange;
mod choices;
mod compared;
mod filter;
mod health;
mod row_keys;
mod table;

use leptos::prelude::*;

use crate::language::tr;
use crate::ui::{ErrorMessage, Title, When};
use all::AllRuns;
use choices::Choices;
use compared::CompareButton;
use filter::Filter;
use table::Table;

/// The page of all runs.
#[component]
pub(crate) fn RunsPage() -> impl IntoView {
    let all = AllRuns::of();
    let choices = Choices::of();
    view! {
        <Title of=tr("Runs") />
        <div class="flex flex-wrap gap-x-3 gap-y-1 items-center mb-1">
            <h1 class="text-lg font-bold">{tr("Runs")}</h1>
            <CompareButton all choices />
            <a href="/runs/new" class="btn btn-sm ml-auto">{tr("New run")}</a>
        </div>
        <ErrorMessage what=all.problem />
        <When on=move || !all.list.is_known()><p class="text-muted">{tr("Loading…")}</p></When>
        <When on=move || all.list.is_empty()><p class="text-muted">{tr("No runs yet.")}</p></When>
        <When on=move || all.list.is_known() && !all.list.is_empty()>
            <Filter all choices />
            <Table all choices />
        </When>
    }
}
