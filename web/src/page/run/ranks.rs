//! Attempts, nodes and ranks of a run, with how each ended.

use domain::api::runs::{AttemptView, NodeTaskView, RankView, RunView};
use leptos::prelude::*;

/// The last attempt open, those before it folded.
#[component]
pub(super) fn Ranks(run: RwSignal<Option<RunView>>) -> impl IntoView {
    let attempts = move || {
        let attempts = run.with(|run| run.as_ref().map(|run| run.attempts.clone()).unwrap_or_default());
        let last = attempts.len().saturating_sub(1);
        attempts
            .into_iter()
            .enumerate()
            .rev()
            .map(|(n, attempt)| view! { <Attempt attempt open={n == last} /> })
            .collect_view()
    };
    view! { <section class="grid gap-2" aria-label="Attempts">{attempts}</section> }
}

#[component]
fn Attempt(attempt: AttemptView, open: bool) -> impl IntoView {
    let outcome = attempt
        .outcome
        .map_or("under way".to_owned(), |outcome| outcome.message);
    let nodes = attempt
        .nodes
        .into_iter()
        .map(|node| view! { <Node node /> })
        .collect_view();
    view! {
        <details class="card bg-base-200 p-3" open=open>
            <summary class="cursor-pointer"><b>"Attempt " {attempt.attempt.0}</b> " (" {attempt.cause} "): " {outcome}</summary>
            {nodes}
        </details>
    }
}

#[component]
fn Node(node: NodeTaskView) -> impl IntoView {
    let rows = node
        .ranks
        .into_iter()
        .map(|rank| view! { <RankRow rank /> })
        .collect_view();
    view! {
        <div class="mt-2 overflow-x-auto">
            <p class="font-mono text-sm">{node.node}</p>
            <code class="text-xs break-all opacity-70">{node.command}</code>
            <table class="table table-xs" data-testid="ranks">
                <thead><tr><th>"Rank"</th><th>"PID"</th><th>"Step"</th><th>"End"</th></tr></thead>
                <tbody>{rows}</tbody>
            </table>
        </div>
    }
}

#[component]
fn RankRow(rank: RankView) -> impl IntoView {
    let number = |n: Option<u64>| n.map_or("–".to_owned(), |n| n.to_string());
    let end = rank.exit.map_or("–".to_owned(), |exit| {
        match (exit.error_type, exit.signal, exit.code) {
            _ if exit.out_of_memory => "killed by the kernel: out of memory".to_owned(),
            (Some(kind), ..) => format!("{kind}: {}", exit.message.unwrap_or_default()),
            (None, Some(signal), _) => format!("signal {signal}"),
            (None, None, Some(code)) => format!("exit code {code}"),
            (None, None, None) => "ended".to_owned(),
        }
    });
    view! {
        <tr>
            <td>{rank.rank.0}</td>
            <td>{number(rank.pid.map(u64::from))}</td>
            <td>{number(rank.step)}</td>
            <td class="break-all">{end}</td>
        </tr>
    }
}
