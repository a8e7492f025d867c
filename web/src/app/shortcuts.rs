//! Handles keyboard shortcuts and lists them.

use std::cell::RefCell;
use std::rc::Rc;

use leptos::ev;
use leptos::prelude::*;

use super::keys::{Command, Keys, PAGES, Press};
use super::palette::Palette;
use crate::language::{marked, tr};
use crate::live::Live;
use crate::route::Route;
use crate::session::UserSession;
use crate::ui::{Dialog, Modal, focus, is_typed_text, single_keys_are_on, turn_single_keys};

/// Selector of the page's own filter.
const FILTER: &str = "main input[type=search]";
/// The single keys of the list, and what they do. Pages handle those after `p` themselves.
const SINGLE: [(&str, &str); 6] = [
    ("?", marked("Show this list")),
    ("/", marked("Filter this page")),
    ("p", marked("Pause or continue")),
    ("t", marked("Choose the period of a run")),
    ("[ ]", marked("Earlier or later period of a run")),
    ("j k", marked("Next or previous run")),
];

/// Handles keys until the current owner is cleaned up. Contains the dialog that lists the keys.
#[component]
pub(super) fn Shortcuts(palette: Palette) -> impl IntoView {
    let (live, route, session) = (
        expect_context::<Live>(),
        expect_context::<Route>(),
        expect_context::<UserSession>(),
    );
    let enabled = RwSignal::new(single_keys_are_on());
    let help = Dialog::new();
    let keys = Rc::new(RefCell::new(Keys::default()));
    let pressed = window_event_listener(ev::keydown, move |event| {
        let press = Press {
            key: &event.key(),
            control: event.ctrl_key() || event.meta_key(),
            alt: event.alt_key(),
            typing: is_typed_text(&event),
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
        turn_single_keys(on);
        enabled.set(on);
    };
    view! {
        <Modal dialog=help title=tr("Keys") leave=tr("Close")>
            <table class="rows mt-2" data-testid="keys">
                <tbody>
                    <tr><td><kbd>"Ctrl K"</kbd>", "<kbd>"⌘ K"</kbd></td><td>{tr("Find a page, run, node or rule")}</td></tr>
                    {PAGES.map(|(key, _, name)| view! { <tr><td><kbd>"g"</kbd> " " <kbd>{key}</kbd></td><td>{tr(name)}</td></tr> }).collect_view()}
                    {SINGLE.map(|(key, name)| view! { <tr><td><kbd>{key}</kbd></td><td>{tr(name)}</td></tr> }).collect_view()}
                </tbody>
            </table>
            <label class="flex gap-2 items-center mt-2">
                <input type="checkbox" prop:checked=enabled on:change=switch />
                {tr("Single-key shortcuts. Ctrl K always works.")}
            </label>
        </Modal>
    }
}
