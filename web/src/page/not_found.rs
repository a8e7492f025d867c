//! An address that is none of ours.

use leptos::prelude::*;
use leptos_router::components::A;

use crate::ui::Title;

/// Says so, and leads back.
#[component]
pub(crate) fn NotFound() -> impl IntoView {
    view! {
        <Title of="No such page" />
        <h1 class="text-2xl font-bold mb-2">"There is no such page"</h1>
        <p>"Everything begins at the " <A href="/" attr:class="link">"overview"</A>"."</p>
    }
}
