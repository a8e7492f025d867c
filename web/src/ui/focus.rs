//! Moves the focus.

use leptos::prelude::*;
use wasm_bindgen::JsCast;

/// Moves the focus to the first element that matches the selector, if there is one.
pub(crate) fn focus(selector: &str) {
    let element = document().query_selector(selector).ok().flatten();
    let element = element.and_then(|element| element.dyn_into::<web_sys::HtmlElement>().ok());
    if let Some(element) = element {
        // Fails only for a removed element.
        let _gone = element.focus();
    }
}
