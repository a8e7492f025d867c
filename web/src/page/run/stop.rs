//! Stopping a run: a button that asks once.

use domain::api::runs::StopRun;
use leptos::html::Dialog;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::de::IgnoredAny;

use crate::session::Who;
use crate::ui::{When, text};

/// The button and its question.
#[component]
pub(super) fn StopButton(
    /// The run's id.
    id: String,
) -> impl IntoView {
    let who = expect_context::<Who>();
    let dialog = NodeRef::<Dialog>::new();
    let problem = RwSignal::new(None::<String>);
    let busy = RwSignal::new(false);
    let open = move |_| {
        if let Some(dialog) = dialog.get() {
            // Fails only when it is open already.
            let _already_open = dialog.show_modal();
        }
    };
    let stop = move |_| {
        let path = format!("/api/runs/{id}/stop");
        busy.set(true);
        spawn_local(async move {
            let result = who.post::<IgnoredAny>(&path, &StopRun::default()).await;
            // A run that stops takes this button away, perhaps before the answer is here.
            let _gone = problem.try_set(result.err().map(|error| error.message));
            let _gone = busy.try_set(false);
        });
        if let Some(dialog) = dialog.get() {
            dialog.close();
        }
    };
    view! {
        <button class="btn btn-error btn-sm" data-testid="stop" disabled=move || busy.get() on:click=open>"Stop"</button>
        <dialog class="modal" node_ref=dialog aria-labelledby="stop-question">
            <div class="modal-box">
                <h2 class="text-lg font-bold" id="stop-question">"Stop this run?"</h2>
                <p class="py-3">"Its ranks get SIGTERM, and SIGKILL 30 seconds later if they are still there. What was not saved is lost."</p>
                <div class="modal-action">
                    <form method="dialog"><button class="btn">"Let it run"</button></form>
                    <button class="btn btn-error" data-testid="confirm-stop" on:click=stop>"Stop it"</button>
                </div>
            </div>
        </dialog>
        <When on=move || problem.with(Option::is_some)><span class="wrong" role="alert">{text(move || problem.get().unwrap_or_default())}</span></When>
    }
}
