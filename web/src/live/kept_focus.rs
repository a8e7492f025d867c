//! Keeps the focus while the rows of a list are moved.
//!
//! When two rows arrive at once before others, Leptos takes the others out of the page and puts them back. The browser then takes the focus
//! away from a link or a field in these rows, and the next Tab starts elsewhere.

use leptos::prelude::*;
use wasm_bindgen::JsCast;

/// Gives the focus back after the change of the page that the caller begins, if the change takes it from an element that stays.
pub(super) fn keep_focus() {
    let Some(before) = focused() else {
        return;
    };
    // Runs when the page is changed, and before the browser handles the next key.
    queue_microtask(move || {
        if focused().is_none() && before.is_connected() {
            let options = web_sys::FocusOptions::new();
            options.set_prevent_scroll(true);
            // Fails only for a removed element.
            let _gone = before.focus_with_options(&options);
        }
    });
}

/// Returns the element with the focus. The browser names the body if there is none.
fn focused() -> Option<web_sys::HtmlElement> {
    let active = document().active_element()?;
    let element = active.dyn_into::<web_sys::HtmlElement>().ok()?;
    (element.tag_name() != "BODY").then_some(element)
}
