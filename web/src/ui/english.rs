//! Texts that the collector writes. They are in English, whatever the language of the page.

use leptos::prelude::*;

/// Shows such a text, marked so that a screen reader does not read it with a Chinese voice.
pub(crate) fn english(words: Signal<String>) -> AnyView {
    view! { <span lang="en">{words}</span> }.into_any()
}
