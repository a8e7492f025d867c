//! A button that shows the page in the other language.

use leptos::prelude::*;

use crate::language::Language;

/// The button; it has the name of the other language in that language.
#[component]
pub(crate) fn LanguageChoice(
    /// The CSS classes of the button.
    class: &'static str,
) -> impl IntoView {
    let other = Language::current().other();
    view! { <button class=class type="button" lang=other.tag() on:click=move |_| other.choose() data-testid="language">{other.name()}</button> }
}
