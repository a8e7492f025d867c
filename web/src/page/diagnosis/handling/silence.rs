//! Silences the notifications of a diagnosis for a limited time, and those of other alerts with the same labels.

use domain::api::silences::CreateSilence;
use domain::series::Labels;
use leptos::prelude::*;

use super::super::diagnosis_state::DiagnosisState;
use super::BUTTON;
use super::label_choice::{LabelChoice, boxes};
use crate::language::{marked, tr};
use crate::ui::{Dialog, ErrorMessage, Modal, PendingRequest, choice};

const HOUR_S: u32 = 3_600;
/// The lengths: seconds and label, the default first. There is none without an end, because it would be forgotten.
const LENGTHS: [(u32, &str); 4] = [
    (HOUR_S, marked("1 hour")),
    (8 * HOUR_S, marked("8 hours")),
    (24 * HOUR_S, marked("1 day")),
    (7 * 24 * HOUR_S, marked("1 week")),
];

/// The button and its dialog.
#[component]
pub(super) fn SilenceButton(state: DiagnosisState) -> impl IntoView {
    let (dialog, request) = (Dialog::new(), PendingRequest::new());
    let comment = RwSignal::new(String::new());
    let length = RwSignal::new(String::new());
    // The labels of a diagnosis never change.
    let labels = state.view.with_untracked(|view| {
        view.as_ref()
            .map_or_else(Labels::empty, |view| view.diagnosis.alert.labels.clone())
    });
    let labels = LabelChoice::all_of(labels);
    let send = move |_| {
        let body = CreateSilence {
            matchers: untrack(|| labels.matchers()),
            for_s: length.get_untracked().parse().ok(),
            comment: comment.get_untracked().trim().to_owned(),
            ..CreateSilence::default()
        };
        request.send(state.path("/silence"), &body, move |_| {
            dialog.close();
            state.again();
        });
    };
    let open = move |_| {
        comment.set(String::new());
        length.set(LENGTHS[0].0.to_string());
        labels.reset();
        request.problem.set(None);
        dialog.open();
    };
    let lengths = move || {
        let one = |(seconds, words): (u32, &'static str)| {
            choice("silence", seconds.to_string(), length, true, tr(words).into_any())
        };
        Vec::from(LENGTHS.map(one)).into_any()
    };
    // Without matchers, the collector would require all labels.
    let is_incomplete =
        move || comment.with(|comment| comment.trim().is_empty()) || labels.matchers().is_empty();
    view! {
        <button class=BUTTON on:click=open data-testid="silence">{tr("Silence…")}</button>
        <Modal dialog title=tr("Silence this diagnosis?") leave=tr("Cancel")>
            <p class="text-sm">{tr("No notifications are sent for alerts with all of these labels. The diagnosis stays on this page and in the lists.")}</p>
            {boxes(labels)}
            <div>{lengths()}</div>
            <label class="fieldset"><span class="label">{tr("Why")}</span>
                <input class="input w-full" name="comment" bind:value=comment />
            </label>
            <ErrorMessage what=request.problem />
            <p class="text-xs opacity-80">{tr("The page of all diagnoses lists the silences. There you can end one early.")}</p>
            <div class="text-right">
                <button class="btn btn-primary" disabled=move || request.busy.get() || is_incomplete() on:click=send data-testid="confirm-silence">{tr("Silence")}</button>
            </div>
        </Modal>
    }
}
