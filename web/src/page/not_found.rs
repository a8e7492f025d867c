//! The page for an unknown address.

use leptos::prelude::*;

use crate::language::{tr, tr_parts};
use crate::ui::Title;

/// Shows that the page does not exist, with a link to the overview.
#[component]
pub(crate) fn NotFound() -> impl IntoView {
    let [before, after] = tr_parts("Go to the {overview}.");
    view! {
        <Title of=tr("Page not found") />
        <h1 class="text-2xl font-bold mb-2">{tr("Page not found")}</h1>
        <p>{before} <a href="/" class="link">{tr("overview")}</a> {after}</p>
    }
}
