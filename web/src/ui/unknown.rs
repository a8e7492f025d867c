//! Attempts that nodes hold and that the collector does not know, because a backup was restored.

use domain::api::runs::{StopUnknown, UnknownAttemptView};
use domain::api::session::Role;
use leptos::prelude::*;

use super::{Dialog, Question, Trouble, When, Wish, changing};
use crate::session::Who;

/// One notice for each, with a way to stop it.
#[component]
pub(crate) fn UnknownAttempts(
    /// The attempts.
    #[prop(into)]
    of: Signal<Vec<UnknownAttemptView>>,
) -> AnyView {
    let held = Memo::new(move |_| of.get());
    changing(move || {
        let notices: Vec<AnyView> = held.get().into_iter().map(notice).collect();
        notices.into_any()
    })
}

fn notice(held: UnknownAttemptView) -> AnyView {
    let who = expect_context::<Who>();
    let (dialog, wish) = (Dialog::new(), Wish::new());
    let UnknownAttemptView {
        node,
        run,
        attempt,
        stopping,
        ..
    } = held;
    let words = format!("Node {node} holds attempt {attempt} of run {run}");
    let state = if stopping {
        "It is stopping."
    } else {
        "It is left alone, and the node gets no other run until it ends or is stopped."
    };
    let can_stop = move || who.may(Role::Operator) && !stopping;
    let stop = StoredValue::new(move || {
        let run = run.clone();
        wish.send(
            "/api/unknown-attempts/stop".to_owned(),
            &StopUnknown { run, grace_ms: None },
            move |_| dialog.close(),
        );
    });
    view! {
        <div class="alert alert-warning text-sm w-full" role="status" data-testid="unknown-attempt">
            <span class="min-w-0 break-words">{words} ", which this collector does not know: it began after the backup that was restored. " {state}</span>
            <When on=can_stop><button class="btn btn-sm" on:click=move |_| dialog.open()>"Stop"</button></When>
            <Question dialog title="Stop this attempt?" leave="Let it run">
                <p class="py-2">"Its ranks get SIGTERM on every node that holds it, and SIGKILL 30 seconds later."</p>
                <Trouble what=wish.problem />
                <div class="text-right">
                    <button class="btn btn-error" disabled=wish.busy on:click=move |_| stop.with_value(|stop| stop())>"Stop it"</button>
                </div>
            </Question>
        </div>
    }
    .into_any()
}
