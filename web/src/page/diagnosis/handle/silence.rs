//! Keeping webhooks from telling about a diagnosis for a while.

use domain::api::silences::CreateSilence;
use leptos::prelude::*;

use super::super::loaded::Loaded;
use super::BUTTON;
use crate::ui::{Dialog, Question, Trouble, Wish, choice};

const HOUR_S: u32 = 3_600;
/// What is offered: seconds and words, the default first. A silence without an end is forgotten.
const LENGTHS: [(u32, &str); 4] = [
    (HOUR_S, "1 hour"),
    (8 * HOUR_S, "8 hours"),
    (24 * HOUR_S, "1 day"),
    (7 * 24 * HOUR_S, "1 week"),
];

/// The button and its dialog.
#[component]
pub(super) fn SilenceButton(loaded: Loaded) -> impl IntoView {
    let (dialog, wish) = (Dialog::new(), Wish::new());
    let comment = RwSignal::new(String::new());
    let length = RwSignal::new(String::new());
    let labels = loaded.words(|view| view.diagnosis.alert.labels.to_string());
    let send = move |_| {
        let body = CreateSilence {
            for_s: length.get_untracked().parse().ok(),
            comment: comment.get_untracked().trim().to_owned(),
            ..CreateSilence::default()
        };
        wish.send(loaded.path("/silence"), &body, move |_| {
            dialog.close();
            loaded.again();
        });
    };
    let open = move |_| {
        comment.set(String::new());
        length.set(LENGTHS[0].0.to_string());
        wish.problem.set(None);
        dialog.open();
    };
    let lengths = move || {
        let one = |(seconds, words): (u32, &'static str)| {
            choice("silence", seconds.to_string(), length, true, words.into_any())
        };
        Vec::from(LENGTHS.map(one)).into_any()
    };
    view! {
        <button class=BUTTON on:click=open data-testid="silence">"Silence…"</button>
        <Question dialog title="Silence this diagnosis?" leave="Cancel">
            <p class="text-sm">"Webhooks are not told about alerts with all of these labels. The diagnosis stays on this page and in the lists."</p>
            <p class="text-xs font-mono break-all py-1">{labels}</p>
            <div>{lengths()}</div>
            <label class="fieldset"><span class="label">"Why"</span>
                <input class="input w-full" name="comment" bind:value=comment />
            </label>
            <Trouble what=wish.problem />
            <div class="text-right">
                <button class="btn btn-primary" disabled=move || wish.busy.get() || comment.with(|comment| comment.trim().is_empty()) on:click=send data-testid="confirm-silence">"Silence"</button>
            </div>
        </Question>
    }
}
