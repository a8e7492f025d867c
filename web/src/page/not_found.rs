//! An address that is none of ours.

use leptos::prelude::*;

use crate::ui::Title;

/// Says so, and leads back.
#[component]
pub(crate) fn NotFound() -> impl IntoView {
    view! {
        <Title of="No such page" />
        <h1 class="text-2xl font-bold mb-2">"There is no such page"</h1>
        <p>"Everything begins at the " <a href="/" class="link">"overview"</a>"."</p>
    }
}
