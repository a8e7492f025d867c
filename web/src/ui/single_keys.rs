//! Single keys that are commands, such as `p`. People can turn them off, and they are text while a field has the focus.

use leptos::ev::{self, KeyboardEvent};
use leptos::prelude::*;
use wasm_bindgen::JsCast;

use super::{keep, recall};

/// The key in the browser's storage for whether single keys are commands.
const KEY: &str = "lockstep-keys";
const OFF: &str = "off";
/// Selector of the elements in which single keys are text.
const FIELDS: &str = "input, textarea, select, [contenteditable], dialog[open]";

/// Returns true if single keys are commands in this browser.
pub(crate) fn single_keys_are_on() -> bool {
    recall(KEY).as_deref() != Some(OFF)
}

/// Stores for this browser whether single keys are commands.
pub(crate) fn turn_single_keys(on: bool) {
    keep(KEY, if on { "on" } else { OFF });
}

/// Returns true if the key goes to a field or a dialog.
pub(crate) fn is_typed_text(event: &KeyboardEvent) -> bool {
    let target = event
        .target()
        .and_then(|target| target.dyn_into::<web_sys::Element>().ok());
    target.is_some_and(|element| element.closest(FIELDS).is_ok_and(|field| field.is_some()))
}

/// Handles single keys of a page until the current owner is cleaned up. `handle` returns false if the key is not a command of the page.
pub(crate) fn on_page_key(handle: impl Fn(&str) -> bool + 'static) {
    let pressed = window_event_listener(ev::keydown, move |event| {
        let is_combination = event.ctrl_key() || event.meta_key() || event.alt_key();
        if is_combination || is_typed_text(&event) || !single_keys_are_on() {
            return;
        }
        if handle(&event.key()) {
            // A select box that has just got the focus would take the letter as the start of an option.
            event.prevent_default();
        }
    });
    on_cleanup(move || pressed.remove());
}
