//! Handling of a diagnosis: acknowledge it, add a note, silence it.

mod label_choice;
mod note;
mod silence;

use domain::api::session::Role;
use domain::api::silences::AcknowledgeDiagnosis;
use domain::incident::Handling;
use leptos::prelude::*;

use super::diagnosis_state::DiagnosisState;
use crate::language::{tr, tr_with};
use crate::session::UserSession;
use crate::ui::{CopyLink, ErrorMessage, PendingRequest, When, clock, text};
use note::NoteButton;
use silence::SilenceButton;

/// CSS classes of buttons that are large enough for a finger.
const BUTTON: &str = "btn min-h-12";

/// The buttons and the current handling.
#[component]
pub(super) fn HandlingButtons(state: DiagnosisState) -> impl IntoView {
    let session = expect_context::<UserSession>();
    let is_acknowledged = Memo::new(move |_| {
        state.view.with(|view| {
            view.as_ref()
                .is_some_and(|view| view.diagnosis.handling.acknowledged.is_some())
        })
    });
    let request = PendingRequest::new();
    let acknowledge = move |_| {
        let body = AcknowledgeDiagnosis {
            note: String::new(),
            release: is_acknowledged.get_untracked(),
        };
        request.send(state.path("/acknowledge"), &body, move |_| state.again());
    };
    let words = text(move || {
        if is_acknowledged.get() {
            tr("Unacknowledge")
        } else {
            tr("Acknowledge")
        }
    });
    // An action against the cause is the one button that stands out, and a diagnosis that has ended needs no owner.
    let has_actions = Memo::new(move |_| !state.actions.rows().is_empty());
    let has_ended = Memo::new(move |_| {
        state.view.with(|view| {
            view.as_ref()
                .is_some_and(|view| view.diagnosis.alert.resolved_ms.is_some())
        })
    });
    let class = text(move || {
        if is_acknowledged.get() || has_actions.get() || has_ended.get() {
            BUTTON.to_owned()
        } else {
            format!("{BUTTON} btn-primary")
        }
    });
    view! {
        <section class="grid gap-2 min-w-0" aria-label=tr("Handling") data-testid="handling">
            <div class="flex flex-wrap gap-2">
                <When on=move || session.may(Role::Operator)>
                    <button class=class disabled=request.busy on:click=acknowledge data-testid="acknowledge">{words}</button>
                    <SilenceButton state />
                    <NoteButton state />
                </When>
                <CopyLink class=BUTTON />
            </div>
            <ErrorMessage what=request.problem />
            <p class="text-sm empty:hidden" role="status" data-testid="handling-words">{state.words(|view| handling_text(&view.diagnosis.handling))}</p>
        </section>
    }
}

/// Returns the current handling as text; empty if there is none.
fn handling_text(handling: &Handling) -> String {
    let mut words: Vec<String> = Vec::new();
    if let Some(mark) = &handling.acknowledged {
        words.push(tr_with(
            "Acknowledged by {who} at {time}.",
            &[("who", &mark.who), ("time", &clock(mark.at_ms))],
        ));
    }
    if let Some(mark) = &handling.not_a_problem {
        words.push(tr_with(
            "{who} marked it as not a problem.",
            &[("who", &mark.who)],
        ));
    }
    if let Some(until_ms) = handling.silenced_until_ms {
        words.push(tr_with(
            "Silenced until {time}: no notifications.",
            &[("time", &clock(until_ms))],
        ));
    }
    words.join(" ")
}
