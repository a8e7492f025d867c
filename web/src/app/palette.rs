//! The command palette: opens any page, run, node or rule from a few letters, and presses buttons of the current page.

mod entries;
mod fuzzy;

use leptos::ev::KeyboardEvent;
use leptos::html::Dialog;
use leptos::prelude::*;
use leptos::task::spawn_local;
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;

use crate::json::{Unreadable, list, read_field};
use crate::language::tr;
use crate::live::Live;
use crate::route::Route;
use crate::session::UserSession;
use crate::ui::{Density, dynamic_view, text};
use entries::{Entry, EntryAction, all, found};

#[wasm_bindgen]
extern "C" {
    /// The names of the buttons that can be pressed now. See start.js.
    #[wasm_bindgen(js_name = lockstepActions)]
    fn actions() -> js_sys::Array;
    /// Presses the button with this name, if it still exists.
    #[wasm_bindgen(js_name = lockstepAct)]
    fn act(name: &str);
}

/// A handle that opens and closes the palette. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct Palette {
    place: NodeRef<Dialog>,
    typed: RwSignal<String>,
    chosen: RwSignal<usize>,
    /// Names of the rules, requested when the palette first opens.
    rules: RwSignal<Option<Vec<String>>>,
    /// Names of the page's actions, as of when the palette opened.
    actions: RwSignal<Vec<String>>,
    density: RwSignal<Density>,
}

impl Palette {
    /// Creates a closed palette. `density`: the current height of rows, which an entry changes.
    pub(super) fn new(density: RwSignal<Density>) -> Self {
        Self {
            place: NodeRef::new(),
            typed: RwSignal::new(String::new()),
            chosen: RwSignal::new(0),
            rules: RwSignal::new(None),
            actions: RwSignal::new(vec![]),
            density,
        }
    }

    /// Opens the palette with an empty input.
    pub(super) fn open(self, session: UserSession) {
        self.typed.set(String::new());
        self.chosen.set(0);
        let buttons = actions();
        self.actions
            .set(buttons.iter().filter_map(|name| name.as_string()).collect());
        if let Some(dialog) = self.place.get_untracked() {
            // Fails only if the dialog is already open.
            let _already_open = dialog.show_modal();
        }
        if self.rules.with_untracked(Option::is_some) {
            return;
        }
        spawn_local(async move {
            if let Ok(rules) = session.fetch("/api/rules").await
                && let Ok(names) = names(rules)
            {
                // The user may have logged out.
                let _gone = self.rules.try_set(Some(names));
            }
        });
    }

    fn close(self) {
        if let Some(dialog) = self.place.get_untracked() {
            dialog.close();
        }
    }
}

/// Reads only the names of the rules, because this is part of the first load.
fn names(rules: JsValue) -> Result<Vec<String>, Unreadable> {
    let rules = list(rules)?;
    rules.iter().map(|rule| read_field(&rule, "name")).collect()
}

/// The dialog of the palette.
#[component]
pub(super) fn PaletteDialog(palette: Palette) -> impl IntoView {
    let live = expect_context::<Live>();
    let route = expect_context::<Route>();
    let matches = Memo::new(move |_| {
        let runs: Vec<String> = live.runs.rows().into_iter().map(|row| row.key).collect();
        let nodes: Vec<String> = live.nodes.rows().into_iter().map(|row| row.key).collect();
        let rules = palette.rules.get().unwrap_or_default();
        let actions = palette.actions.get();
        let other = palette.density.get().other();
        palette
            .typed
            .with(|typed| found(&all(&runs, &nodes, &rules, &actions, other), typed))
    });
    let go = move |entry: &Entry| {
        palette.close();
        match &entry.action {
            EntryAction::Open(href) => route.go(href),
            EntryAction::Act => act(&entry.name),
            EntryAction::Set(density) => {
                density.remember();
                palette.density.set(*density);
            }
        }
    };
    let pressed = move |event: KeyboardEvent| {
        let last = matches.with_untracked(Vec::len).saturating_sub(1);
        match event.key().as_str() {
            "ArrowDown" => palette.chosen.update(|chosen| *chosen = (*chosen + 1).min(last)),
            "ArrowUp" => palette.chosen.update(|chosen| *chosen = chosen.saturating_sub(1)),
            // Enter may also accept what an input method composes, such as Chinese characters.
            "Enter" if !event.is_composing() => {
                let chosen = palette.chosen.get_untracked();
                if let Some(entry) = matches.with_untracked(|all| all.get(chosen).cloned()) {
                    go(&entry);
                }
            }
            _ => return,
        }
        event.prevent_default();
    };
    let typed = move |event| {
        palette.typed.set(event_target_value(&event));
        palette.chosen.set(0);
    };
    let options = dynamic_view(move || {
        let chosen = palette.chosen.get();
        let option = |(n, entry): (usize, Entry)| {
            let class = if n == chosen {
                "flex gap-3 px-2 py-1 rounded cursor-pointer bg-base-300"
            } else {
                "flex gap-3 px-2 py-1 rounded cursor-pointer"
            };
            let (kind, name) = (entry.kind, entry.name.clone());
            view! {
                <li id=format!("palette-{n}") role="option" aria-selected=(n == chosen).to_string() class=class on:click=move |_| go(&entry)>
                    <span class="w-12 text-muted">{tr(kind)}</span>
                    <span class="min-w-0 break-all">{name}</span>
                </li>
            }
            .into_any()
        };
        matches
            .get()
            .into_iter()
            .enumerate()
            .map(option)
            .collect::<Vec<_>>()
            .into_any()
    });
    let active = text(move || match matches.with(Vec::is_empty) {
        true => String::new(),
        false => format!("palette-{}", palette.chosen.get()),
    });
    view! {
        <dialog class="modal modal-top" node_ref=palette.place aria-label=tr("Find") data-testid="palette">
            <div class="modal-box max-w-xl mx-auto mt-12 p-2">
                <input
                    class="input w-full"
                    type="text"
                    autofocus
                    autocomplete="off"
                    spellcheck="false"
                    placeholder=tr("Page, run, node or rule")
                    aria-label=tr("Find a page, run, node or rule")
                    role="combobox"
                    aria-expanded="true"
                    aria-controls="palette-options"
                    aria-activedescendant=active
                    prop:value=palette.typed
                    on:input=typed
                    on:keydown=pressed
                />
                <ul id="palette-options" role="listbox" aria-label=tr("Matches") class="mt-2 max-h-96 overflow-y-auto">{options}</ul>
                <p class="px-2 text-muted" hidden=move || !matches.with(Vec::is_empty)>{tr("No results.")}</p>
            </div>
            <form method="dialog" class="modal-backdrop"><button>{tr("Close")}</button></form>
        </dialog>
    }
}
