//! A button that copies text.

use leptos::prelude::*;
use wasm_bindgen::prelude::*;

use super::text;
use crate::language::tr;

#[wasm_bindgen]
extern "C" {
    /// Copies text to the clipboard. Returns false if the browser refuses.
    #[wasm_bindgen(js_name = lockstepCopy)]
    fn copy(text: &str) -> bool;
}

/// Copies the current address of the page with the host of the browser.
#[component]
pub(crate) fn CopyLink(
    /// The CSS classes of the button.
    class: &'static str,
) -> impl IntoView {
    let copied = RwSignal::new(None::<bool>);
    let act = move |_| copied.set(Some(copy(&window().location().href().unwrap_or_default())));
    let words = text(move || match copied.get() {
        None => tr("Copy link"),
        Some(true) => tr("Copied"),
        Some(false) => tr("Copy it from the address bar"),
    });
    view! { <button class=class on:click=act data-testid="copy-link">{words}</button> }
}
