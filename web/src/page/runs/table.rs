//! The table of runs, in groups.

use domain::api::runs::RunSummary;
use domain::time::DisplayDuration;
use leptos::prelude::*;

use super::all::AllRuns;
use super::arrange::{Column, Grouping, RunGroup, arranged, duration_ms, label_text};
use super::choices::Choices;
use super::health::Health;
use super::row_keys::handle_row_keys;
use crate::language::{tr, tr_with};
use crate::live::{Live, Row, each};
use crate::ui::{Ago, StateBadge, When, dynamic_view, empty_view, text};

/// Number of rows shown at first; one click shows the rest.
const ROWS: usize = 200;
/// Number of columns, for the headings of groups.
const COLUMNS: &str = "13";

/// The table.
#[component]
pub(super) fn Table(all: AllRuns, choices: Choices) -> impl IntoView {
    let live = expect_context::<Live>();
    let health = Health::of();
    handle_row_keys();
    let shows_all = RwSignal::new(false);
    let groups = Memo::new(move |_| {
        let runs: Vec<RunSummary> = all.list.rows().iter().map(|row| row.get()).collect();
        // The time is not tracked: rows do not change their order while durations grow.
        arranged(&runs, &choices.arrangement(), live.now_ms.get_untracked())
    });
    let count = Memo::new(move |_| {
        let size = |group: &RunGroup| group.places.len();
        groups.with(|groups| groups.iter().map(size).sum::<usize>())
    });
    // The same limit for each group, so that a large one does not hide the others.
    let most = move || if shows_all.get() { usize::MAX } else { ROWS };
    let is_cut = move || groups.with(|groups| groups.iter().any(|group| group.places.len() > most()));
    let names = Memo::new(move |_| {
        let name = |group: &RunGroup| group.name.clone();
        groups.with(|groups| groups.iter().map(name).collect::<Vec<String>>())
    });
    let is_grouped = Memo::new(move |_| choices.arrangement().grouping != Grouping::None);
    let bodies = dynamic_view(move || {
        let is_grouped = is_grouped.get();
        let body = |name: String| {
            let of = name.clone();
            let rows = move || -> Vec<Row<RunSummary>> {
                let rows = all.list.rows();
                let of_place = |place: &usize| rows.get(*place).cloned();
                with_group(groups, &of, |group| {
                    group.places.iter().take(most()).filter_map(of_place).collect()
                })
            };
            let heading = if is_grouped {
                heading(groups, name)
            } else {
                empty_view()
            };
            let rows = each(rows, move |row| {
                view! { <RunRow row choices health /> }.into_any()
            });
            view! { <tbody>{heading} {rows}</tbody> }.into_any()
        };
        let bodies: Vec<AnyView> = names.get().into_iter().map(body).collect();
        bodies.into_any()
    });
    let show_all = text(move || tr_with("Show all {count} runs", &[("count", &count.get())]));
    let shown = text(move || {
        let (count, all) = (count.get(), all.list.rows().len());
        tr_with("{count} of {all} runs", &[("count", &count), ("all", &all)])
    });
    view! {
        <p class="text-muted text-sm" role="status" data-testid="runs-count">{shown}</p>
        <div class="overflow-x-auto" tabindex="0" role="region" aria-label=tr("All runs")>
            <table class="rows" data-testid="all-runs">
                <thead>
                    <tr>
                        <th><span class="sr-only">{tr("Compare")}</span></th>
                        {head(choices, Column::State, tr("State"), "")}
                        {head(choices, Column::Run, tr("Run"), "")}
                        <th class="number hidden sm:table-cell">{tr("Step")}</th>
                        <th class="number hidden sm:table-cell">{tr("Step time")}</th>
                        {head(choices, Column::Owner, tr("Owner"), "hidden sm:table-cell")}
                        {head(choices, Column::Program, tr("Program"), "hidden sm:table-cell")}
                        <th class="hidden md:table-cell">{tr("Labels")}</th>
                        {head(choices, Column::Ranks, tr("Ranks"), "number hidden lg:table-cell")}
                        <th class="hidden xl:table-cell">{tr("Nodes")}</th>
                        {head(choices, Column::Attempt, tr("Attempt"), "number hidden md:table-cell")}
                        {head(choices, Column::Duration, tr("Duration"), "number hidden sm:table-cell")}
                        {head(choices, Column::Submitted, tr("Submitted"), "")}
                    </tr>
                </thead>
                {bodies}
            </table>
        </div>
        <When on=is_cut>
            <button class="btn btn-ghost btn-sm" on:click=move |_| shows_all.set(true)>{show_all}</button>
        </When>
    }
}

/// Reads a group by its name; tracked. The default if there is no such group any more.
fn with_group<T: Default>(groups: Memo<Vec<RunGroup>>, name: &str, read: impl FnOnce(&RunGroup) -> T) -> T {
    groups.with(|groups| {
        let group = groups.iter().find(|group| group.name == name);
        group.map(read).unwrap_or_default()
    })
}

/// The heading of a group: its name, and how many runs it has.
fn heading(groups: Memo<Vec<RunGroup>>, name: String) -> AnyView {
    let title = if name.is_empty() {
        tr("None").to_owned()
    } else {
        name.clone()
    };
    let numbers = text(move || {
        let (count, active) = with_group(groups, &name, |group| (group.places.len(), group.active));
        tr_with(
            "runs: {count}, active: {active}",
            &[("count", &count), ("active", &active)],
        )
    });
    view! {
        <tr data-testid="run-group">
            <th colspan=COLUMNS scope="rowgroup" class="bg-base-200"><span class="text-base-content font-bold">{title}</span> " · " {numbers}</th>
        </tr>
    }
    .into_any()
}

/// The head of a column. A click sorts by it.
fn head(choices: Choices, column: Column, title: &'static str, class: &'static str) -> AnyView {
    let order = move || {
        let sort = choices.sort();
        (sort.by == column).then_some(sort.descending)
    };
    let sorted = text(move || match order() {
        Some(true) => "descending",
        Some(false) => "ascending",
        None => "none",
    });
    let arrow = text(move || match order() {
        Some(true) => " ▼",
        Some(false) => " ▲",
        None => "",
    });
    view! {
        <th class=class aria-sort=sorted>
            <button class="cursor-pointer hover:underline" on:click=move |_| choices.sort_by(column)>{title} <span aria-hidden="true">{arrow}</span></button>
        </th>
    }
    .into_any()
}

#[component]
fn RunRow(row: Row<RunSummary>, choices: Choices, health: Health) -> impl IntoView {
    let live = expect_context::<Live>();
    let run = row.signal();
    let id = StoredValue::new(row.key.clone());
    let state = Signal::derive(move || run.with(|run| run.state));
    let submitted_ms = Signal::derive(move || run.with(|run| run.submitted_ms));
    let of = move |say: fn(&RunSummary) -> String| text(move || run.with(say));
    let why = of(|run| {
        let message = run.outcome.as_ref().map(|outcome| outcome.message.to_string());
        message.unwrap_or_default()
    });
    let duration = text(move || {
        let lasted_ms = run.with(|run| {
            // Only an active run changes every second.
            let now_ms = if run.ended_ms.is_some() {
                0
            } else {
                live.now_ms.get()
            };
            duration_ms(run, now_ms)
        });
        lasted_ms.map_or_else(
            || "–".to_owned(),
            |lasted_ms| DisplayDuration(lasted_ms / 1_000 * 1_000).to_string(),
        )
    });
    let is_chosen = Memo::new(move |_| choices.chosen().iter().any(|one| id.with_value(|id| one == id)));
    let is_full = move || !is_chosen.get() && choices.chosen().len() == choices.chosen.len();
    let toggle = move |_| id.with_value(|id| choices.toggle(id));
    let compare = tr_with("Compare {run}", &[("run", &row.key)]);
    // A label never changes after the submission.
    let labels = row.peek(|run| {
        let labels = run
            .labels
            .iter()
            .map(|(key, value)| label(choices, label_text(key, value)));
        labels.collect::<Vec<AnyView>>()
    });
    let href = format!("/runs/{}", row.key);
    view! {
        <tr data-testid="run-row" data-run=row.key.clone()>
            <td><input type="checkbox" aria-label=compare prop:checked=is_chosen disabled=is_full on:change=toggle /></td>
            <td><StateBadge state /></td>
            <td class="max-w-40 sm:max-w-96">
                <a href=href class="link font-mono block truncate">{row.key.clone()}</a>
                <span class="block text-xs text-muted truncate empty:hidden" title=why>{why}</span>
                {health.mark(id)}
            </td>
            <td class="number hidden sm:table-cell">{health.step(id)}</td>
            <td class="number hidden sm:table-cell">{health.step_time(id)}</td>
            <td class="hidden sm:table-cell max-w-48 truncate">{of(|run| run.owner.clone().unwrap_or_else(|| "–".to_owned()))}</td>
            <td class="hidden sm:table-cell">{of(|run| run.program.clone())}</td>
            <td class="hidden md:table-cell">{labels}</td>
            <td class="number hidden lg:table-cell">{of(|run| if run.world_size == 0 { "–".to_owned() } else { run.world_size.to_string() })}</td>
            <td class="hidden xl:table-cell max-w-72 truncate">{of(|run| run.nodes.join(", "))}</td>
            <td class="number hidden md:table-cell">{of(|run| run.attempt.to_string())}</td>
            <td class="number hidden sm:table-cell">{duration}</td>
            <td><Ago at_ms=submitted_ms /></td>
        </tr>
    }
}

/// A label. A click shows only runs with it.
fn label(choices: Choices, words: String) -> AnyView {
    let hint = tr_with("Show only runs with {label}", &[("label", &words)]);
    let shown = words.clone();
    view! { <button class="link link-hover whitespace-nowrap mr-2" title=hint on:click=move |_| choices.set("label", &words)>{shown}</button> }
        .into_any()
}
