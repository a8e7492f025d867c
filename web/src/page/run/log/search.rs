//! Searches all logs of a run.

use domain::api::runs::{LogMatch, LogMatches};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::choice::title;
use super::plain::plain;
use super::position::LogPosition;
use crate::language::{tr, tr_with};
use crate::session::UserSession;
use crate::ui::{ErrorMessage, dynamic_view, empty_view};

/// Maximum number of lines shown; if there are more, the page says so.
const LINES_MAX: u32 = 200;

/// The form and the results; each line links to its position in the log.
#[component]
pub(super) fn Search(run: String, position: RwSignal<LogPosition>) -> impl IntoView {
    let session = expect_context::<UserSession>();
    let words = RwSignal::new(String::new());
    let regex = RwSignal::new(false);
    let busy = RwSignal::new(false);
    let found = RwSignal::new(None::<LogMatches>);
    let problem = RwSignal::new(None::<String>);
    let search = move |event: SubmitEvent| {
        event.prevent_default();
        found.set(None);
        problem.set(None);
        if words.with_untracked(String::is_empty) {
            return;
        }
        let q = words.with_untracked(|words| js_sys::encode_uri_component(words));
        let regex = regex.get_untracked();
        let path = format!("/api/runs/{run}/logs/search?q={q}&regex={regex}&limit={LINES_MAX}");
        busy.set(true);
        spawn_local(async move {
            let answer = session.get(&path).await;
            // The user may have left the page.
            if busy.try_set(false).is_none() {
                match answer {
                    Ok(matches) => found.set(Some(matches)),
                    Err(error) => problem.set(Some(error.message)),
                }
            }
        });
    };
    let lines = dynamic_view(move || {
        found
            .get()
            .map_or_else(empty_view, |found| shown(&found, position))
    });
    view! {
        <form class="flex flex-wrap gap-2 items-center mb-2" role="search" on:submit=search>
            <input class="input input-sm grow" type="search" name="q" placeholder=tr("Search all ranks") aria-label=tr("Search the logs of all ranks") bind:value=words />
            <label class="text-sm flex gap-1 items-center"><input type="checkbox" name="regex" bind:checked=regex /> {tr("pattern")}</label>
            <button class="btn btn-sm" type="submit" disabled=busy>{tr("Search")}</button>
        </form>
        <ErrorMessage what=problem />
        <div aria-live="polite">{lines}</div>
    }
}

fn shown(found: &LogMatches, position: RwSignal<LogPosition>) -> AnyView {
    let count = match found.matches.len() {
        0 => tr("No line matches.").to_owned(),
        1 => tr("1 line:").to_owned(),
        many if found.truncated => tr_with("First {count} matches; there are more:", &[("count", &many)]),
        many => tr_with("{count} lines:", &[("count", &many)]),
    };
    let lines: Vec<AnyView> = found.matches.iter().map(|one| line(one, position)).collect();
    view! {
        <p class="text-sm">{count}</p>
        <ul class="max-h-60 overflow-y-auto mb-2" data-testid="log-matches">{lines}</ul>
    }
    .into_any()
}

fn line(one: &LogMatch, position: RwSignal<LogPosition>) -> AnyView {
    let there = LogPosition {
        source: Some(one.source.clone()),
        offset: Some(one.offset),
    };
    let of = tr_with(
        "attempt {number}, {log}: ",
        &[("number", &one.source.attempt), ("log", &title(&one.source))],
    );
    view! {
        <li>
            <button class="link text-left text-xs break-all" on:click=move |_| position.set(there.clone())>
                <span class="opacity-70">{of}</span> <code>{plain(&one.line)}</code>
            </button>
        </li>
    }
    .into_any()
}
