//! The node task of an attempt: the command line that started it, and its ranks.

use domain::api::runs::{NodeTaskView, RankView};
use domain::ident::{AttemptNo, Rank};
use domain::run::state::StallCause;
use leptos::prelude::*;
use wasm_bindgen::prelude::*;

use super::super::address::log_link;
use super::super::change_dialog::ChangeDialog;
use super::super::followed::followed;
use crate::language::{tr, tr_with};
use crate::live::{Row, each};
use crate::ui::{When, clock, dynamic_view, empty_view, text};

#[wasm_bindgen]
extern "C" {
    /// Copies text to the clipboard. Returns false if the browser refuses.
    #[wasm_bindgen(js_name = lockstepCopy)]
    fn copy(text: &str) -> bool;
}

/// The node in an attempt. `root`: the rank that failed first.
#[component]
pub(super) fn Node(
    row: Row<NodeTaskView>,
    attempt: AttemptNo,
    root: Memo<Option<Rank>>,
    can_exclude: Memo<bool>,
    dialog: ChangeDialog,
) -> impl IntoView {
    let node = row.signal();
    let ranks = followed(move || node.with(|node| node.ranks.clone()));
    let command = text(move || node.with(|node| node.command.clone()));
    let copied = RwSignal::new(tr("Copy"));
    let copy = move |_| {
        copied.set(if copy(&command.get_untracked()) {
            tr("Copied")
        } else {
            tr("Select and copy it")
        })
    };
    let name = StoredValue::new(row.key.clone());
    let exclusion = StoredValue::new(tr_with("Exclude… {node}", &[("node", &row.key)]));
    let exclude = move |_| dialog.open_exclusion(name.get_value());
    let label = tr_with("Copy the command line of {node}", &[("node", &row.key)]);
    view! {
        <div class="mt-2">
            <p class="flex flex-wrap gap-2 items-center">
                <span class="font-mono text-sm">{row.key.clone()}</span>
                <When on=can_exclude><button class="btn btn-xs" aria-label=exclusion.get_value() on:click=exclude data-testid="exclude">{tr("Exclude…")}</button></When>
            </p>
            <When on=move || !command.read().is_empty()>
                <p class="flex gap-2 items-start">
                    <code class="text-xs break-all opacity-70 select-all min-w-0" data-testid="command">{command}</code>
                    <button class="btn btn-ghost btn-xs" aria-label=label.clone() on:click=copy>{copied}</button>
                </p>
            </When>
            <table class="rows narrow" data-testid="ranks">
                <thead><tr><th>{tr("Rank")}</th><th>{tr("PID")}</th><th>{tr("Step")}</th><th>{tr("End")}</th></tr></thead>
                <tbody>{each(move || ranks.rows(), move |row| view! { <RankRow row attempt root dialog /> }.into_any())}</tbody>
            </table>
        </div>
    }
}

#[component]
fn RankRow(
    row: Row<RankView>,
    attempt: AttemptNo,
    root: Memo<Option<Rank>>,
    dialog: ChangeDialog,
) -> impl IntoView {
    let rank = row.signal();
    let link = row.peek(|rank| log_link(&dialog.run_id(), Some(attempt), rank.rank, "0"));
    let number = |n: Option<u64>| n.map_or("–".to_owned(), |n| n.to_string());
    let of = move |part: fn(&RankView) -> Option<u64>| text(move || number(rank.with(part)));
    let fell = Memo::new(move |_| rank.with(|rank| rank.cascade));
    let is_root = Memo::new(move |_| rank.with(|rank| Some(rank.rank) == root.get() && !rank.cascade));
    let traceback = Memo::new(move |_| rank.with(|rank| traceback(rank).filter(|_| is_root.get())));
    view! {
        <tr class=text(move || if fell.get() { "opacity-80" } else { "" }) data-testid="rank">
            <td>{link}</td>
            <td>{of(|rank| rank.pid.map(u64::from))}</td>
            <td>{of(|rank| rank.step.or(rank.exit.as_ref().and_then(|exit| exit.last_step)))}</td>
            <td class="break-words">
                <span class="state state-critical" hidden=move || !is_root.get()>{tr("failed first")}</span>
                <span class="badge badge-xs badge-ghost" hidden=move || !fell.get()>{tr("secondary failure")}</span>
                " " {text(move || rank.with(end))}
                {dynamic_view(move || traceback.get().map_or_else(empty_view, folded))}
            </td>
        </tr>
    }
}

/// Returns how the rank ended; of a rank that makes no progress, since when and why.
fn end(rank: &RankView) -> String {
    match (&rank.exit, &rank.stall) {
        (Some(exit), _) => exit.to_string(),
        (None, Some(stall)) => tr_with(
            "stuck since {time}: {cause}",
            &[
                ("time", &clock(stall.since_ms)),
                ("cause", &words_of(&stall.cause)),
            ],
        ),
        (None, None) => "–".to_owned(),
    }
}

fn words_of(cause: &StallCause) -> &'static str {
    match cause {
        StallCause::Stopped => tr("a signal or a debugger stopped its process"),
        StallCause::Uninterruptible => {
            tr("its process waits in the kernel for a disk, a network file system or a driver")
        }
        StallCause::NoStep | StallCause::Other(_) => tr("it finishes no step"),
    }
}

/// Returns the end of the traceback of the exception that ended the rank.
fn traceback(rank: &RankView) -> Option<String> {
    rank.exit.as_ref()?.traceback.clone()
}

/// Renders a traceback as a disclosure. Its lines wrap, so that they do not widen the table.
fn folded(traceback: String) -> AnyView {
    view! {
        <details data-testid="traceback">
            <summary class="cursor-pointer">{tr("Traceback")}</summary>
            <pre class="bg-base-300 rounded p-2 whitespace-pre-wrap break-all">{traceback}</pre>
        </details>
    }
    .into_any()
}
