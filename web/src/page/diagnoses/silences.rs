//! The silences: those that are active or planned, and those that have ended. Operators can end one early.

use domain::api::session::Role;
use domain::api::silences::SilenceView;
use domain::incident::SilenceState;
use leptos::prelude::*;

use super::silence_text::{hidden_alerts, matchers, period, state_badge};
use crate::language::{tr, tr_with};
use crate::live::{Row, each};
use crate::page::polled::Polled;
use crate::session::UserSession;
use crate::ui::{Dialog, ErrorMessage, Heading, Modal, PendingRequest, When, dynamic_view, empty_view, text};

/// The dialog that ends a silence. It is beside the list, so it stays open when the list changes. Cheap to copy.
#[derive(Clone, Copy)]
struct Confirmation {
    dialog: Dialog,
    request: PendingRequest,
    /// The silence as it was when the dialog was opened.
    chosen: RwSignal<Option<SilenceView>>,
}

impl Confirmation {
    fn open(self, silence: SilenceView) {
        if !self.request.busy.get_untracked() {
            self.chosen.set(Some(silence));
            self.request.problem.set(None);
        }
        self.dialog.open();
    }
}

/// The section with all silences of the last 30 days.
#[component]
pub(super) fn Silences() -> impl IntoView {
    let silences = Polled::<SilenceView>::of("/api/silences");
    let confirmation = Confirmation {
        dialog: Dialog::new(),
        request: PendingRequest::new(),
        chosen: RwSignal::new(None),
    };
    let rows = move |ended: bool| {
        let mut rows = silences.list.rows();
        rows.retain(|row| (row.get().state == SilenceState::Expired) == ended);
        rows
    };
    let ended = text(move || tr_with("Ended silences ({count})", &[("count", &rows(true).len())]));
    view! {
        <section class="min-w-0" data-testid="silences">
            <Heading text=tr("Silences") hint=tr("No notifications are sent for alerts that match. Their diagnoses stay in the lists and are marked as silenced.") />
            <ErrorMessage what=silences.problem />
            <When on=move || silences.list.is_known() && rows(false).is_empty()><p class="opacity-70">{tr("No active silences.")}</p></When>
            <ul class="grid grid-cols-1 gap-2">{each(move || rows(false), move |row| silence(&row, confirmation))}</ul>
            <When on=move || !rows(true).is_empty()>
                <details class="mt-2" data-testid="ended-silences">
                    <summary class="cursor-pointer">{ended}</summary>
                    <ul class="grid grid-cols-1 gap-2 mt-2">{each(move || rows(true), move |row| silence(&row, confirmation))}</ul>
                </details>
            </When>
            <EndDialog confirmation silences />
        </section>
    }
}

/// Renders a silence. Its button stays when its text changes.
fn silence(row: &Row<SilenceView>, confirmation: Confirmation) -> AnyView {
    let session = expect_context::<UserSession>();
    let silence = row.signal();
    let may_end =
        move || session.may(Role::Operator) && silence.with(|silence| silence.state != SilenceState::Expired);
    let label = row.peek(|silence| tr_with("End now: {comment}", &[("comment", &silence.comment)]));
    let id = row.key.clone();
    view! {
        <li class="bg-base-200 rounded px-3 py-2 grid grid-cols-1 gap-x-4 gap-y-1 items-center sm:grid-cols-[minmax(0,1fr)_auto]" data-testid="silence-row" data-id=id>
            <div class="min-w-0 break-words">{dynamic_view(move || silence.with(line))}</div>
            <When on=may_end>
                <button class="btn min-h-12" aria-label=label.clone() on:click=move |_| confirmation.open(silence.get_untracked()) data-testid="end-silence">{tr("End now…")}</button>
            </When>
        </li>
    }
    .into_any()
}

fn line(silence: &SilenceView) -> AnyView {
    let (class, word) = state_badge(silence.state);
    view! {
        <p class="flex flex-wrap gap-x-3"><span class=class>{word}</span> <span class="min-w-0 font-semibold break-words">{silence.comment.clone()}</span></p>
        <p class="text-xs font-mono break-all">{matchers(silence)}</p>
        <p class="text-sm opacity-80">{period(silence)} " " <span data-testid="hidden-alerts">{hidden_alerts(silence)}</span></p>
    }
    .into_any()
}

#[component]
fn EndDialog(confirmation: Confirmation, silences: Polled<SilenceView>) -> impl IntoView {
    let Confirmation {
        dialog,
        request,
        chosen,
    } = confirmation;
    let end = move |_| {
        let Some(id) = chosen.with_untracked(|silence| silence.as_ref().map(|silence| silence.id.clone()))
        else {
            return;
        };
        request.delete(format!("/api/silences/{id}"), move || {
            dialog.close();
            silences.again();
        });
    };
    view! {
        <Modal dialog title=tr("End this silence now?") leave=tr("Cancel")>
            {dynamic_view(move || chosen.with(|silence| silence.as_ref().map_or_else(empty_view, consequences)))}
            <ErrorMessage what=request.problem />
            <div class="text-right">
                <button class="btn btn-primary min-h-12" disabled=request.busy on:click=end data-testid="confirm-end-silence">{tr("End now")}</button>
            </div>
        </Modal>
    }
}

/// Renders what the end of a silence will do.
fn consequences(silence: &SilenceView) -> AnyView {
    view! {
        <p class="font-semibold break-words">{silence.comment.clone()}</p>
        <p class="text-xs font-mono break-all py-1">{matchers(silence)}</p>
        <p class="py-1">{hidden_alerts(silence)} " " {tr("Webhooks are notified of alerts that match and still fire, unless another silence hides them. The list shows the silence as ended for 30 days.")}</p>
    }
    .into_any()
}
