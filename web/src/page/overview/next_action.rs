//! The first action that the worst diagnosis proposes, for a link to it.

use domain::api::session::Role;
use gloo_timers::future::TimeoutFuture;
use leptos::prelude::*;
use leptos::task::spawn_local;
use wasm_bindgen::JsValue;

use crate::json::{Unreadable, field, list, read_field};
use crate::live::Live;
use crate::session::UserSession;
use crate::ui::effect;

/// Interval between requests. A new worst diagnosis, and a new attempt or state of its run, are requested at once.
const AGAIN_MS: u32 = 30_000;

/// An action as its button shows it. The diagnosis's page explains it and carries it out.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NextAction {
    /// The id of the action.
    pub(super) id: String,
    /// The text of its button.
    pub(super) title: String,
}

/// Requests the first action of the worst diagnosis until the current owner is cleaned up. `None` if there is none, or if the user may not
/// carry it out.
pub(super) fn next_action() -> RwSignal<Option<NextAction>> {
    let live = expect_context::<Live>();
    let session = expect_context::<UserSession>();
    let (action, request_count) = (RwSignal::new(None), RwSignal::new(0_u32));
    let worst = Memo::new(move |_| live.diagnoses.rows().first().map(|row| row.get().id));
    let run = Memo::new(move |_| {
        let run = live.diagnoses.rows().first()?.get().run?;
        let row = live.runs.rows().into_iter().find(|row| row.key == run)?.get();
        Some((row.state, row.attempt))
    });
    // The action of another diagnosis is never shown.
    effect(move || {
        worst.track();
        action.set(None);
    });
    effect(move || {
        request_count.track();
        run.track();
        let can_request = live.connected.get() && session.may(Role::Operator);
        let Some(id) = worst.get().filter(|_| can_request) else {
            return;
        };
        spawn_local(async move {
            // After an error, the next request tries again.
            if let Ok(answer) = session.fetch(&format!("/api/diagnoses/{id}")).await
                // The user may have left the page, or another diagnosis may be the worst by now.
                && worst.try_get_untracked() == Some(Some(id))
            {
                action.set(first(&answer).ok());
            }
        });
    });
    spawn_local(async move {
        loop {
            TimeoutFuture::new(AGAIN_MS).await;
            // The user has left the page.
            if request_count
                .try_update(|count| *count = count.wrapping_add(1))
                .is_none()
            {
                return;
            }
        }
    });
    action
}

/// Reads the first action of a diagnosis; an error if it has none.
fn first(answer: &JsValue) -> Result<NextAction, Unreadable> {
    let action = list(field(answer, "actions")?)?.get(0);
    Ok(NextAction {
        id: read_field(&action, "id")?,
        title: read_field(&action, "title")?,
    })
}
