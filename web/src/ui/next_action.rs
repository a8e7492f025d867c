//! A link to the first action that a diagnosis proposes.

use domain::api::alerts::Diagnosis;
use domain::api::session::Role;
use leptos::prelude::*;
use leptos::task::spawn_local;
use wasm_bindgen::JsValue;

use super::{When, count_every, diagnosis_href, effect, focus_when_shown, text};
use crate::json::{Unreadable, field, list, read_field};
use crate::live::{Live, Row};
use crate::session::UserSession;

/// Interval between requests. Another diagnosis, and a new attempt or state of its run, are requested at once. The interval is for what
/// the lists do not show, such as a node that has become free. The page of the diagnosis always requests the current actions.
const AGAIN_MS: u32 = 300_000;

/// Returns a link to the first action of a diagnosis; of the worst one if it is `None`. The page of the diagnosis explains the action and
/// carries it out. Shows nothing if there is no action, or if the user may not carry it out. The current owner owns the requests.
pub(crate) fn next_action(of: Option<Row<Diagnosis>>) -> AnyView {
    let live = expect_context::<Live>();
    let session = expect_context::<UserSession>();
    let request_count = RwSignal::new(0_u32);
    // The page of the diagnosis whose action is known; empty if it has none.
    let page = RwSignal::new(String::new());
    let id = RwSignal::new(String::new());
    let title = RwSignal::new(String::new());
    // The page of the diagnosis, and on a second line what its actions depend on.
    let wanted = Memo::new(move |_| {
        let row = of.clone().or_else(|| live.diagnoses.rows().into_iter().next())?;
        let diagnosis = row.get();
        let run = diagnosis.run.as_ref();
        let run = run.and_then(|run| live.runs.rows().into_iter().find(|row| row.key == *run));
        let state = run.map_or_else(String::new, |row| {
            let run = row.get();
            format!("{} {}", run.state.as_str(), run.attempt)
        });
        Some(format!("{}\n{state}", diagnosis_href(&diagnosis)))
    });
    effect(move || {
        request_count.track();
        let can_request = live.connected.get() && session.may(Role::Operator);
        let Some(asked) = wanted.get().filter(|_| can_request) else {
            return;
        };
        spawn_local(async move {
            let href = asked.lines().next().unwrap_or_default();
            // After an error, the next request tries again.
            if let Ok(answer) = session.fetch(&format!("/api{href}")).await
                // The user may have left the page, or another diagnosis may be the worst by now.
                && wanted.try_get_untracked().flatten().as_ref() == Some(&asked)
            {
                let [first_id, first_title] = first(&answer).unwrap_or_default();
                page.set(if first_id.is_empty() { "" } else { href }.to_owned());
                id.set(first_id);
                title.set(first_title);
            }
        });
    });
    count_every(AGAIN_MS, request_count, || false);
    // The action of another diagnosis is never shown.
    let is_current = move || {
        wanted.with(|wanted| {
            let wanted = wanted.as_ref().and_then(|wanted| wanted.lines().next());
            page.with(|page| wanted == Some(page.as_str()))
        })
    };
    let href = text(move || page.get());
    // The page of the diagnosis asks before it does anything.
    let go_to_action = move |_| focus_when_shown(format!("[data-action='{}']", id.get_untracked()));
    view! {
        <When on=is_current>
            <a class="off-wall btn btn-primary btn-sm h-auto min-h-(--row) max-w-full" href=href lang="en" on:click=go_to_action data-testid="next-action">{title} "…"</a>
        </When>
    }
    .into_any()
}

/// Reads id and title of the first action of a diagnosis; an error if it has none.
fn first(answer: &JsValue) -> Result<[String; 2], Unreadable> {
    let action = list(field(answer, "actions")?)?.get(0);
    Ok([read_field(&action, "id")?, read_field(&action, "title")?])
}
