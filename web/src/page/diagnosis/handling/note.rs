//! Adds a note to a diagnosis, or marks it as a false alarm.

use domain::api::silences::NoteOnDiagnosis;
use leptos::prelude::*;

use super::super::diagnosis_state::DiagnosisState;
use super::BUTTON;
use crate::language::tr;
use crate::ui::{Dialog, ErrorMessage, Modal, PendingRequest};

/// The button and its dialog.
#[component]
pub(super) fn NoteButton(state: DiagnosisState) -> impl IntoView {
    let (dialog, request) = (Dialog::new(), PendingRequest::new());
    let note = RwSignal::new(String::new());
    let not_a_problem = RwSignal::new(false);
    let send = move |_| {
        let body = NoteOnDiagnosis {
            note: note.get_untracked().trim().to_owned(),
            not_a_problem: not_a_problem.get_untracked(),
        };
        request.send(state.path("/note"), &body, move |_| {
            dialog.close();
            state.again();
        });
    };
    let open = move |_| {
        note.set(String::new());
        not_a_problem.set(false);
        request.problem.set(None);
        dialog.open();
    };
    let is_empty = move || note.with(|note| note.trim().is_empty()) && !not_a_problem.get();
    view! {
        <button class=BUTTON on:click=open data-testid="note">{tr("Note…")}</button>
        <Modal dialog title=tr("Write a note") leave=tr("Cancel")>
            <label class="fieldset"><span class="label">{tr("What others should know")}</span>
                <textarea class="textarea w-full" rows="3" name="note" bind:value=note></textarea>
            </label>
            <label class="flex gap-2 items-center py-2"><input type="checkbox" name="not-a-problem" bind:checked=not_a_problem /> {tr("Not a problem (false alarm)")}</label>
            <ErrorMessage what=request.problem />
            <div class="text-right">
                <button class="btn btn-primary" disabled=move || request.busy.get() || is_empty() on:click=send data-testid="confirm-note">{tr("Save")}</button>
            </div>
        </Modal>
    }
}
