//! Unknown attempts: nodes hold them, but the collector's state, restored from a backup, does not contain them.

use domain::api::runs::{StopUnknown, UnknownAttemptView};
use domain::api::session::Role;
use leptos::prelude::*;

use super::{Dialog, ErrorMessage, Modal, PendingRequest, When, dynamic_view};
use crate::language::{tr, tr_with};
use crate::session::UserSession;

/// One notice per attempt, with a button to stop it.
#[component]
pub(crate) fn UnknownAttempts(
    /// The attempts.
    #[prop(into)]
    of: Signal<Vec<UnknownAttemptView>>,
) -> AnyView {
    let held = Memo::new(move |_| of.get());
    dynamic_view(move || {
        let notices: Vec<AnyView> = held.get().into_iter().map(notice).collect();
        notices.into_any()
    })
}

fn notice(held: UnknownAttemptView) -> AnyView {
    let session = expect_context::<UserSession>();
    let (dialog, request) = (Dialog::new(), PendingRequest::new());
    let UnknownAttemptView {
        node,
        run,
        attempt,
        stopping,
        ..
    } = held;
    let words = tr_with(
        "Node {node} holds attempt {attempt} of run {run}, which is missing in the collector's state: it began after the restored backup.",
        &[("node", &node), ("attempt", &attempt), ("run", &run)],
    );
    let state = if stopping {
        tr("It is stopping.")
    } else {
        tr("The node gets no other run until it ends or is stopped.")
    };
    let can_stop = move || session.may(Role::Operator) && !stopping;
    let stop = StoredValue::new(move || {
        let run = run.clone();
        request.send(
            "/api/unknown-attempts/stop".to_owned(),
            &StopUnknown { run, grace_ms: None },
            move |_| dialog.close(),
        );
    });
    view! {
        <div class="alert alert-warning text-sm w-full" role="status" data-testid="unknown-attempt">
            <span class="min-w-0 break-words">{words} " " {state}</span>
            <When on=can_stop><button class="btn btn-sm" on:click=move |_| dialog.open()>{tr("Stop")}</button></When>
            <Modal dialog title=tr("Stop this attempt?") leave=tr("Cancel")>
                <p class="py-2">{tr("Its ranks get SIGTERM on every node that holds it, and SIGKILL 30 seconds later.")}</p>
                <ErrorMessage what=request.problem />
                <div class="text-right">
                    <button class="btn btn-error" disabled=request.busy on:click=move |_| stop.with_value(|stop| stop())>{tr("Stop it")}</button>
                </div>
            </Modal>
        </div>
    }
    .into_any()
}
