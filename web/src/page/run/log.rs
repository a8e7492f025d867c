//! The end of a rank's output, followed live.

use domain::api::runs::{LogSource, RunView};
use domain::api::stream::{Push, Request};
use domain::ident::Rank;
use leptos::html::Pre;
use leptos::prelude::*;

use crate::live::Live;

/// How much of the past is asked for, and how much is kept on the page.
const TAIL_BYTES: u64 = 32 * 1024;
const KEPT_BYTES: usize = 128 * 1024;

/// A choice of rank and stream, and its text.
#[component]
pub(super) fn Log(id: String, run: RwSignal<Option<RunView>>) -> impl IntoView {
    let sources = Memo::new(move |_| run.with(|run| run.as_ref().map(sources).unwrap_or_default()));
    let chosen = RwSignal::new(None::<usize>);
    let source = Memo::new(move |_| {
        sources.with(|all| {
            chosen
                .get()
                .and_then(|n| all.get(n).cloned())
                .or_else(|| all.first().cloned())
        })
    });
    let options = move || {
        sources
            .get()
            .into_iter()
            .enumerate()
            .map(|(n, source)| view! { <option value=n.to_string()>{title(&source)}</option> })
            .collect_view()
    };
    let choose = move |event| chosen.set(event_target_value(&event).parse().ok());
    view! {
        <section class="card bg-base-200 p-3">
            <div class="flex flex-wrap gap-2 items-center mb-2">
                <h3 class="font-semibold">"Log"</h3>
                <select class="select select-sm w-auto" on:change=choose aria-label="log of">{options}</select>
            </div>
            {move || source.get().map(|source| view! { <Tail run=id.clone() source /> })}
        </section>
    }
}

#[component]
fn Tail(run: String, source: LogSource) -> impl IntoView {
    let live = expect_context::<Live>();
    let text = RwSignal::new(String::new());
    let place = NodeRef::<Pre>::new();
    live.watch(
        |id| Request::WatchLog {
            id,
            run,
            source,
            tail_bytes: TAIL_BYTES,
        },
        move |push| match push {
            Push::Log { piece, .. } => text.update(|text| append(text, &piece.text)),
            Push::Failed { message, .. } => text.set(message),
            _ => {}
        },
    );
    Effect::new(move || {
        text.track();
        if let Some(element) = place.get() {
            element.set_scroll_top(element.scroll_height());
        }
    });
    view! { <pre node_ref=place class="bg-base-300 rounded p-2 text-xs h-72 overflow-auto whitespace-pre-wrap" data-testid="log">{text}</pre> }
}

fn append(text: &mut String, piece: &str) {
    text.push_str(piece);
    if text.len() > KEPT_BYTES {
        let cut = (text.len() - KEPT_BYTES..=text.len())
            .find(|at| text.is_char_boundary(*at))
            .unwrap_or(0);
        text.drain(..cut);
    }
}

/// Each rank's stdout and stderr, then the launcher's, of the last attempt.
fn sources(run: &RunView) -> Vec<LogSource> {
    let Some(attempt) = run.attempts.last() else {
        return vec![];
    };
    let source = |node: &str, rank: Option<Rank>, stream: &str| LogSource {
        attempt: attempt.attempt,
        node: node.to_owned(),
        rank,
        stream: stream.to_owned(),
    };
    let mut all = Vec::new();
    for node in &attempt.nodes {
        for rank in &node.ranks {
            all.extend(["stdout", "stderr"].map(|stream| source(&node.node, Some(rank.rank), stream)));
        }
        all.extend(["stdout", "stderr"].map(|stream| source(&node.node, None, stream)));
    }
    all
}

fn title(source: &LogSource) -> String {
    match source.rank {
        Some(rank) => format!("rank {rank} {} ({})", source.stream, source.node),
        None => format!("launcher {} ({})", source.stream, source.node),
    }
}
