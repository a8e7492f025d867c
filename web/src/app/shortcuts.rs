//! Handles keyboard shortcuts and lists them.

use std::cell::RefCell;
use std::rc::Rc;

use leptos::ev::{self, KeyboardEvent};
use leptos::prelude::*;
use wasm_bindgen::JsCast;

use super::keys::{Command, Keys, PAGES, Press};
use super::palette::Palette;
use crate::language::tr;
use crate::live::Live;
use crate::route::Route;
use crate::session::UserSession;
use crate::ui::{Dialog, Modal, focus, keep, recall};

/// The key in the browser's storage for whether single keys are commands.
const KEY: &str = "lockstep-keys";
const OFF: &str = "off";
/// Selector of the elements in which single keys are text.
const FIELDS: &str = "input, textarea, select, [contenteditable], dialog[open]";
/// Selector of the page's own filter.
const FILTER: &str = "main input[type=search]";

/// Handles keys until the current owner is cleaned up. Contains the dialog that lists the keys.
#[component]
pub(super) fn Shortcuts(palette: Palette) -> impl IntoView {
    let (live, route, session) = (
        expect_context::<Live>(),
        expect_context::<Route>(),
        expect_context::<UserSession>(),
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
            Command::Palette => palette.open(session),
            Command::Help => help.open(),
            Command::Filter => {
                focus(FILTER);
            }
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
        <Modal dialog=help title=tr("Keys") leave=tr("Close")>
            <table class="rows mt-2" data-testid="keys">
                <tbody>
                    <tr><td><kbd>"Ctrl K"</kbd>", "<kbd>"⌘ K"</kbd></td><td>{tr("Find a page, run, node or rule")}</td></tr>
                    {PAGES.map(|(key, _, name)| view! { <tr><td><kbd>"g"</kbd> " " <kbd>{key}</kbd></td><td>{tr(name)}</td></tr> }).collect_view()}
                    <tr><td><kbd>"/"</kbd></td><td>{tr("Filter this page")}</td></tr>
                    <tr><td><kbd>"p"</kbd></td><td>{tr("Pause or continue")}</td></tr>
                    <tr><td><kbd>"?"</kbd></td><td>{tr("Show this list")}</td></tr>
                </tbody>
            </table>
            <label class="flex gap-2 items-center mt-2">
                <input type="checkbox" prop:checked=enabled on:change=switch />
                {tr("Single-key shortcuts. Ctrl K always works.")}
            </label>
        </Modal>
    }
}

/// Returns true if the key goes to a field or a dialog.
fn is_text(event: &KeyboardEvent) -> bool {
    let target = event
        .target()
        .and_then(|target| target.dyn_into::<web_sys::Element>().ok());
    target.is_some_and(|element| element.closest(FIELDS).is_ok_and(|field| field.is_some()))
}
