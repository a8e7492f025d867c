//! The page for an unknown address.

use leptos::prelude::*;

use crate::ui::Title;

/// Shows that the page does not exist, with a link to the overview.
#[component]
pub(crate) fn NotFound() -> impl IntoView {
    view! {
        <Title of="Page not found" />
        <h1 class="text-2xl font-bold mb-2">"Page not found"</h1>
        <p>"Go to the " <a href="/" class="link">"overview"</a>"."</p>
    }
}
