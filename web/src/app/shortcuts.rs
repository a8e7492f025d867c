//! Listens to keys, and shows what they do.

use std::cell::RefCell;
use std::rc::Rc;

use leptos::ev::{self, KeyboardEvent};
use leptos::prelude::*;
use wasm_bindgen::JsCast;

use super::keys::{Command, Keys, PAGES, Press};
use super::palette::Palette;
use crate::live::Live;
use crate::route::Route;
use crate::session::Who;
use crate::ui::{Dialog, Question, keep, recall};

/// The name under which the browser keeps whether single keys are commands.
const KEY: &str = "lockstep-keys";
const OFF: &str = "off";
/// Where single keys are text.
const FIELDS: &str = "input, textarea, select, [contenteditable], dialog[open]";
/// A page's own filter.
const FILTER: &str = "main input[type=search]";

/// Follows the keys until the current owner is cleaned up, and holds the dialog that lists them.
#[component]
pub(super) fn Shortcuts(palette: Palette) -> impl IntoView {
    let (live, route, who) = (
        expect_context::<Live>(),
        expect_context::<Route>(),
        expect_context::<Who>(),
    );
    let enabled = RwSignal::new(recall(KEY).as_deref() != Some(OFF));
    let help = Dialog::new();
    let keys = Rc::new(RefCell::new(Keys::default()));
    let pressed = window_event_listener(ev::keydown, move |event| {
        let press = Press {
            key: &event.key(),
            control: event.ctrl_key() || event.meta_key(),
            alt: event.alt_key(),
            typing: is_text(&event),
        };
        let command = keys
            .borrow_mut()
            .press(press, live.now_ms.get_untracked(), enabled.get_untracked());
        let Some(command) = command else { return };
        event.prevent_default();
        match command {
            Command::Palette => palette.open(who),
            Command::Help => help.open(),
            Command::Filter => focus_filter(),
            Command::Pause => live.toggle_pause(),
            Command::Go(path) => route.go(path),
        }
    });
    on_cleanup(move || pressed.remove());
    let switch = move |event| {
        let on = event_target_checked(&event);
        keep(KEY, if on { "on" } else { OFF });
        enabled.set(on);
    };
    view! {
        <Question dialog=help title="Keys" leave="Close">
            <table class="rows mt-2" data-testid="keys">
                <tbody>
                    <tr><td><kbd>"Ctrl K"</kbd>", "<kbd>"⌘ K"</kbd></td><td>"Find a page, run, node or rule"</td></tr>
                    {PAGES.map(|(key, _, name)| view! { <tr><td><kbd>"g"</kbd> " " <kbd>{key}</kbd></td><td>{name}</td></tr> }).collect_view()}
                    <tr><td><kbd>"/"</kbd></td><td>"Filter this page"</td></tr>
                    <tr><td><kbd>"p"</kbd></td><td>"Pause, and continue"</td></tr>
                    <tr><td><kbd>"?"</kbd></td><td>"This list"</td></tr>
                </tbody>
            </table>
            <label class="flex gap-2 items-center mt-2">
                <input type="checkbox" class="checkbox checkbox-sm" prop:checked=enabled on:change=switch />
                "Single keys are commands. Ctrl K always is."
            </label>
        </Question>
    }
}

/// Whether the key goes into a field or a dialog.
fn is_text(event: &KeyboardEvent) -> bool {
    let target = event
        .target()
        .and_then(|target| target.dyn_into::<web_sys::Element>().ok());
    target.is_some_and(|element| element.closest(FIELDS).is_ok_and(|field| field.is_some()))
}

fn focus_filter() {
    let field = document().query_selector(FILTER).ok().flatten();
    let field = field.and_then(|field| field.dyn_into::<web_sys::HtmlElement>().ok());
    if let Some(field) = field {
        // Fails only for an element that is gone.
        let _gone = field.focus();
    }
}
