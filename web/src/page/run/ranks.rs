//! Attempts, nodes and ranks of a run, with how each ended.

use domain::api::runs::{AttemptView, NodeTaskView, RankView};
use leptos::prelude::*;

use super::Known;
use crate::live::{Keyed, List, Row};
use crate::ui::{Heading, text};

/// The last attempt open, those before it folded.
#[component]
pub(super) fn Ranks(
    /// The run.
    run: Known,
) -> impl IntoView {
    let attempts =
        followed(move || run.with(|run| run.as_ref().map(|run| run.attempts.clone()).unwrap_or_default()));
    let newest_first = move || {
        let mut rows = attempts.rows();
        rows.reverse();
        rows
    };
    let is_last = move |key: &str| {
        untrack(|| attempts.rows())
            .last()
            .is_some_and(|last| last.key == key)
    };
    view! {
        <section class="min-w-0">
            <Heading text="Attempts and ranks" hint="Each start of the run, its processes on each node, and how they ended." />
            <div class="grid grid-cols-1 gap-2"><For each=newest_first key=|row| row.key.clone() let:row><Attempt open=is_last(&row.key) row /></For></div>
        </section>
    }
}

/// `open`: when it is first shown; from then on the viewer decides.
#[component]
fn Attempt(row: Row<AttemptView>, open: bool) -> impl IntoView {
    let attempt = row.signal();
    let outcome = text(move || {
        attempt.with(|attempt| {
            attempt
                .outcome
                .as_ref()
                .map_or("under way".to_owned(), |outcome| outcome.message.clone())
        })
    });
    let nodes = followed(move || attempt.with(|attempt| attempt.nodes.clone()));
    view! {
        <details class="card bg-base-200 p-3" open=open>
            <summary class="cursor-pointer break-words">
                <b>"Attempt " {row.key.clone()}</b> " (" {text(move || attempt.with(|attempt| attempt.cause.clone()))} "): " {outcome}
            </summary>
            <For each=move || nodes.rows() key=|row| row.key.clone() let:row><Node row /></For>
        </details>
    }
}

#[component]
fn Node(row: Row<NodeTaskView>) -> impl IntoView {
    let node = row.signal();
    let ranks = followed(move || node.with(|node| node.ranks.clone()));
    view! {
        <div class="mt-2">
            <p class="font-mono text-sm">{row.key.clone()}</p>
            <code class="text-xs break-all opacity-70">{text(move || node.with(|node| node.command.clone()))}</code>
            <table class="table table-xs w-auto" data-testid="ranks">
                <thead><tr><th>"Rank"</th><th>"PID"</th><th>"Step"</th><th>"End"</th></tr></thead>
                <tbody><For each=move || ranks.rows() key=|row| row.key.clone() let:row><RankRow row /></For></tbody>
            </table>
        </div>
    }
}

#[component]
fn RankRow(row: Row<RankView>) -> impl IntoView {
    let rank = row.signal();
    let number = |n: Option<u64>| n.map_or("–".to_owned(), |n| n.to_string());
    view! {
        <tr>
            <td>{row.key.clone()}</td>
            <td>{text(move || number(rank.with(|rank| rank.pid.map(u64::from))))}</td>
            <td>{text(move || number(rank.with(|rank| rank.step)))}</td>
            <td class="break-words">{text(move || rank.with(|rank| rank.exit.as_ref().map_or("–".to_owned(), ToString::to_string)))}</td>
        </tr>
    }
}

/// Rows that keep their identity while what they are taken from changes.
fn followed<T: Keyed + PartialEq + Send + Sync + 'static>(items: impl Fn() -> Vec<T> + 'static) -> List<T> {
    let list = List::new();
    Effect::new(move || list.take(items()));
    list
}
