//! The end of a rank's output, followed live.

mod tail;

use domain::api::runs::{LogSource, RunView};
use domain::api::stream::{Push, Request};
use domain::ident::Rank;
use leptos::html::Pre;
use leptos::prelude::*;

use super::Known;
use crate::live::Live;
use crate::ui::{Heading, When, text};
use tail::Tail;

/// How much of the past is asked for.
const TAIL_BYTES: u64 = 32 * 1024;
/// Who is this close to the end, in pixels, wants to see the end.
const NEAR_END_PX: i32 = 40;

/// A choice of rank and stream, and its text.
#[component]
pub(super) fn Log(
    /// The run's id.
    id: String,
    /// The run.
    run: Known,
) -> impl IntoView {
    let sources = Memo::new(move |_| run.with(|run| run.as_ref().map(sources).unwrap_or_default()));
    let chosen = RwSignal::new(0_usize);
    let source = Memo::new(move |_| sources.with(|all| all.get(chosen.get()).or(all.first()).cloned()));
    let option = move |(n, source): (usize, LogSource)| view! { <option value=n.to_string() selected=n == chosen.get_untracked()>{title(&source)}</option> };
    let options = move || sources.get().into_iter().enumerate().map(option).collect_view();
    let choose = move |event| chosen.set(event_target_value(&event).parse().unwrap_or(0));
    view! {
        <section class="min-w-0">
            <Heading text="Log" hint="What a rank prints, as it prints it. Scroll up to read; back at the end it follows again.">
                <select class="select select-sm w-auto max-w-full" on:change=choose aria-label="Log of" data-testid="log-of">{options}</select>
            </Heading>
            <When on=move || source.with(Option::is_none)><p class="opacity-70">"Nothing runs yet."</p></When>
            {move || source.get().map(|source| view! { <Follow run=id.clone() source /> })}
        </section>
    }
}

#[component]
fn Follow(run: String, source: LogSource) -> impl IntoView {
    let tail = RwSignal::new(Tail::default());
    let problem = RwSignal::new(None::<String>);
    let place = NodeRef::<Pre>::new();
    let follows = StoredValue::new(true);
    let request = |id| Request::WatchLog {
        id,
        run,
        source,
        tail_bytes: TAIL_BYTES,
    };
    expect_context::<Live>().watch(request, move |push| match push {
        Push::Log { piece, .. } => {
            problem.set(None);
            tail.update(|tail| tail.take(&piece));
        }
        Push::Failed { message, .. } => problem.set(Some(message)),
        _ => {}
    });
    let scrolled = move |_| {
        if let Some(element) = place.get_untracked() {
            let below = element.scroll_height() - element.scroll_top() - element.client_height();
            follows.set_value(below <= NEAR_END_PX);
        }
    };
    Effect::new(move || {
        tail.track();
        if let Some(element) = place.get().filter(|_| follows.get_value()) {
            element.set_scroll_top(element.scroll_height());
        }
    });
    view! {
        <When on=move || problem.with(Option::is_some)><p class="alert alert-warning text-sm mb-2" role="alert">{text(move || problem.get().unwrap_or_default())}</p></When>
        <pre
            node_ref=place
            class="bg-base-200 rounded p-2 text-xs h-72 overflow-auto whitespace-pre-wrap"
            tabindex="0"
            role="log"
            aria-live="off"
            aria-label="Log"
            data-testid="log"
            on:scroll=scrolled
        >{text(move || tail.with(|tail| tail.text().to_owned()))}</pre>
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
