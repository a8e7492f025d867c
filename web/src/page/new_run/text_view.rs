//! The specification as text, and the choice between the two views.

use leptos::prelude::*;
use leptos::task::spawn_local;

use super::editor::Editor;
use crate::language::tr;
use crate::ui::{When, text};

/// The buttons that choose the view.
#[component]
pub(super) fn Views(editor: Editor) -> impl IntoView {
    let pressed = move |of_text: bool| text(move || (editor.is_text.get() == of_text).to_string());
    let choose = move |to_text: bool| {
        if editor.is_text.get_untracked() != to_text {
            spawn_local(async move {
                if to_text {
                    editor.show_text().await;
                } else {
                    // The text stays if it cannot be read.
                    let _shown = editor.show_form().await;
                }
            });
        }
    };
    view! {
        <div class="flex gap-2" role="group" aria-label=tr("View")>
            <button type="button" class="btn btn-sm" aria-pressed=pressed(false) on:click=move |_| choose(false) data-testid="view-form">{tr("Form")}</button>
            <button type="button" class="btn btn-sm" aria-pressed=pressed(true) on:click=move |_| choose(true) data-testid="view-toml">"TOML"</button>
        </div>
    }
}

/// The text.
#[component]
pub(super) fn TextView(editor: Editor) -> impl IntoView {
    let is_wrong = text(move || editor.problems.with(|problems| !problems.is_empty()).to_string());
    view! {
        <div class="fieldset">
            <label class="label flex-wrap gap-x-2 whitespace-normal" for="toml">{tr("Specification")} <span>{tr("as for lockstep run submit FILE; values of secrets are given in the form")}</span></label>
            <textarea class="textarea w-full font-mono" rows="24" id="toml" name="toml" spellcheck="false" autocomplete="off"
                aria-describedby="problems" aria-invalid=is_wrong bind:value=editor.toml data-testid="toml"></textarea>
        </div>
    }
}

/// The text of the form as it was last checked. Only wide screens show it, beside the form.
#[component]
pub(super) fn TextPreview(editor: Editor) -> impl IntoView {
    let check = editor.check;
    let toml = Memo::new(move |_| {
        // After a failed check, the last answer is about an earlier draft.
        let is_old = editor.is_text.get() || check.failure.with(Option::is_some);
        check
            .answer
            .with(|answer| answer.toml.clone().filter(|_| !is_old))
    });
    view! {
        <When on=move || toml.with(Option::is_some)>
            <div class="hidden xl:block" data-testid="toml-preview">
                <h2 id="toml-preview" class="text-lg font-bold">"TOML"</h2>
                <pre class="bg-base-200 p-2 text-xs max-h-60 overflow-auto" tabindex="0" role="region" aria-labelledby="toml-preview">{text(move || toml.get().unwrap_or_default())}</pre>
            </div>
        </When>
    }
}
