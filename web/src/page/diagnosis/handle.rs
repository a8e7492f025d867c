//! What a person can do about the diagnosis itself: take it on, write something down, silence it.

mod note;
mod silence;

use domain::api::session::Role;
use domain::api::silences::AcknowledgeDiagnosis;
use domain::incident::Handling;
use leptos::prelude::*;

use super::loaded::Loaded;
use crate::session::Who;
use crate::ui::{CopyLink, Trouble, When, Wish, clock, text};
use note::NoteButton;
use silence::SilenceButton;

/// Buttons that a finger hits.
const BUTTON: &str = "btn min-h-12";

/// The buttons, and where the handling stands.
#[component]
pub(super) fn Handle(loaded: Loaded) -> impl IntoView {
    let who = expect_context::<Who>();
    let is_taken = Memo::new(move |_| {
        loaded.view.with(|view| {
            view.as_ref()
                .is_some_and(|view| view.diagnosis.handling.acknowledged.is_some())
        })
    });
    let wish = Wish::new();
    let acknowledge = move |_| {
        let body = AcknowledgeDiagnosis {
            note: String::new(),
            release: is_taken.get_untracked(),
        };
        wish.send(loaded.path("/acknowledge"), &body, move |_| loaded.again());
    };
    let words = text(move || {
        if is_taken.get() {
            "Give it back"
        } else {
            "Acknowledge"
        }
    });
    let class = text(move || {
        if is_taken.get() {
            BUTTON.to_owned()
        } else {
            format!("{BUTTON} btn-primary")
        }
    });
    view! {
        <section class="grid gap-2" aria-label="Handling" data-testid="handling">
            <div class="flex flex-wrap gap-2">
                <When on=move || who.may(Role::Operator)>
                    <button class=class disabled=wish.busy on:click=acknowledge data-testid="acknowledge">{words}</button>
                    <SilenceButton loaded />
                    <NoteButton loaded />
                </When>
                <CopyLink class=BUTTON />
            </div>
            <Trouble what=wish.problem />
            <p class="text-sm empty:hidden" role="status" data-testid="handling-words">{loaded.words(|view| stands(&view.diagnosis.handling))}</p>
        </section>
    }
}

/// Where the handling stands, in words; empty where no one did anything.
fn stands(handling: &Handling) -> String {
    let mut words: Vec<String> = Vec::new();
    if let Some(mark) = &handling.acknowledged {
        words.push(format!("Acknowledged by {} at {}.", mark.who, clock(mark.at_ms)));
    }
    if let Some(mark) = &handling.not_a_problem {
        words.push(format!("{} said that it is not a problem.", mark.who));
    }
    if let Some(until_ms) = handling.silenced_until_ms {
        words.push(format!(
            "Silenced until {}: webhooks are not told.",
            clock(until_ms)
        ));
    }
    words.join(" ")
}
