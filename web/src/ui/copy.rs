//! A button that copies a text.

use leptos::prelude::*;
use wasm_bindgen::prelude::*;

use super::text;

#[wasm_bindgen]
extern "C" {
    /// Puts a text where it can be pasted from; false where the browser does not let it.
    #[wasm_bindgen(js_name = lockstepCopy)]
    fn copy(text: &str) -> bool;
}

/// Copies the address of the page as it is, whatever host it was opened from.
#[component]
pub(crate) fn CopyLink(
    /// The button's classes.
    class: &'static str,
) -> impl IntoView {
    let copied = RwSignal::new(None::<bool>);
    let act = move |_| copied.set(Some(copy(&window().location().href().unwrap_or_default())));
    let words = text(move || match copied.get() {
        None => "Copy link",
        Some(true) => "Copied",
        Some(false) => "Copy it from the address bar",
    });
    view! { <button class=class on:click=act data-testid="copy-link">{words}</button> }
}
