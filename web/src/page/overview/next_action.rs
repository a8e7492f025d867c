//! The first action that the worst diagnosis proposes, for a link to it.

use domain::api::session::Role;
use leptos::prelude::*;
use leptos::task::spawn_local;
use wasm_bindgen::JsValue;

use crate::json::{Unreadable, field, list, read_field};
use crate::live::Live;
use crate::session::UserSession;
use crate::ui::{count_every, diagnosis_href, effect};

/// Interval between requests. A new worst diagnosis, and a new attempt or state of its run, are requested at once. The interval is for what
/// the lists do not show, such as a node that has become free. The page of the diagnosis always requests the current actions.
const AGAIN_MS: u32 = 300_000;

/// An action as its button shows it. The diagnosis's page explains it and carries it out. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct NextAction {
    /// The page of the diagnosis that proposes it; empty if there is no action, or if the user may not carry it out.
    pub(super) href: RwSignal<String>,
    /// The id of the action.
    pub(super) id: RwSignal<String>,
    /// The text of its button.
    pub(super) title: RwSignal<String>,
}

impl NextAction {
    /// Requests the first action of the worst diagnosis until the current owner is cleaned up.
    pub(super) fn of_worst() -> Self {
        let live = expect_context::<Live>();
        let session = expect_context::<UserSession>();
        let request_count = RwSignal::new(0_u32);
        let next = Self {
            href: RwSignal::new(String::new()),
            id: RwSignal::new(String::new()),
            title: RwSignal::new(String::new()),
        };
        // The page of the diagnosis, and on a second line what its actions depend on.
        let worst = Memo::new(move |_| {
            let worst = live.diagnoses.rows().first()?.get();
            let run = worst.run.as_ref();
            let run = run.and_then(|run| live.runs.rows().into_iter().find(|row| row.key == *run));
            let state = run.map_or_else(String::new, |row| {
                let run = row.get();
                format!("{} {}", run.state.as_str(), run.attempt)
            });
            Some(format!("{}\n{state}", diagnosis_href(&worst)))
        });
        effect(move || {
            request_count.track();
            let can_request = live.connected.get() && session.may(Role::Operator);
            let Some(asked) = worst.get().filter(|_| can_request) else {
                return;
            };
            spawn_local(async move {
                let href = asked.lines().next().unwrap_or_default();
                // After an error, the next request tries again.
                if let Ok(answer) = session.fetch(&format!("/api{href}")).await
                    // The user may have left the page, or another diagnosis may be the worst by now.
                    && worst.try_get_untracked().flatten().as_ref() == Some(&asked)
                {
                    next.show(href, &answer);
                }
            });
        });
        count_every(AGAIN_MS, request_count, || false);
        next
    }

    /// Shows the first action of a diagnosis, if it has one.
    fn show(self, href: &str, answer: &JsValue) {
        let [id, title] = first(answer).unwrap_or_default();
        self.href.set(if id.is_empty() { "" } else { href }.to_owned());
        self.id.set(id);
        self.title.set(title);
    }
}

/// Reads id and title of the first action of a diagnosis; an error if it has none.
fn first(answer: &JsValue) -> Result<[String; 2], Unreadable> {
    let action = list(field(answer, "actions")?)?.get(0);
    Ok([read_field(&action, "id")?, read_field(&action, "title")?])
}
