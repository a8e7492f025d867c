//! Moves the focus.

use gloo_timers::future::TimeoutFuture;
use leptos::prelude::*;
use leptos::task::spawn_local;
use wasm_bindgen::JsCast;

/// How long [`focus_when_shown`] waits: `TRIES` times `PAUSE_MS`.
const TRIES: u32 = 300;
const PAUSE_MS: u32 = 100;

/// Moves the focus to the first element that matches the selector. Returns false if there is none.
pub(crate) fn focus(selector: &str) -> bool {
    let element = document().query_selector(selector).ok().flatten();
    let element = element.and_then(|element| element.dyn_into::<web_sys::HtmlElement>().ok());
    // Fails only for a removed element.
    element.is_some_and(|element| element.focus().is_ok())
}

/// Moves the focus from the page to an element that the page shows when it has loaded. Gives up if the user moves the focus.
pub(crate) fn focus_when_shown(selector: String) {
    spawn_local(async move {
        for _ in 0..TRIES {
            TimeoutFuture::new(PAUSE_MS).await;
            let on_page = document().query_selector("#page:focus");
            if !matches!(on_page, Ok(Some(_))) || focus(&selector) {
                return;
            }
        }
    });
}
