//! A question that has to be answered before one goes on.

use leptos::html::Dialog as Element;
use leptos::prelude::*;

/// A dialog that is opened by its owner. Cheap to copy.
#[derive(Clone, Copy)]
pub(crate) struct Dialog {
    place: NodeRef<Element>,
    /// How often it was opened; 0 while it never was, so that nothing in it is made or asked for before.
    opened: RwSignal<u32>,
}

impl Dialog {
    /// Closed.
    pub(crate) fn new() -> Self {
        Self {
            place: NodeRef::new(),
            opened: RwSignal::new(0),
        }
    }

    /// Shows it, its content made anew.
    pub(crate) fn open(self) {
        self.opened.update(|times| *times += 1);
        if let Some(dialog) = self.place.get_untracked() {
            // Fails only when it is open already.
            let _already_open = dialog.show_modal();
        }
    }

    /// Hides it.
    pub(crate) fn close(self) {
        if let Some(dialog) = self.place.get_untracked() {
            dialog.close();
        }
    }
}

/// The dialog's frame: heading, content, a button that answers nothing. What is in it is made each time that it is opened.
#[component]
pub(crate) fn Question(
    /// The dialog.
    dialog: Dialog,
    /// The heading; also names the dialog for a screen reader.
    title: &'static str,
    /// The words of the button that does nothing.
    leave: &'static str,
    /// The content, and the buttons that do something.
    children: ChildrenFn,
) -> impl IntoView {
    let inside = super::changing(move || match dialog.opened.get() {
        0 => super::nothing(),
        _ => children(),
    });
    view! {
        <dialog class="modal" node_ref=dialog.place aria-label=title>
            <div class="modal-box max-w-2xl">
                <h2 class="text-lg font-bold">{title}</h2>
                {inside}
                <form method="dialog" class="mt-2 text-right"><button class="btn btn-ghost btn-sm">{leave}</button></form>
            </div>
        </dialog>
    }
}

/// One of several answers. `value` is what `chosen` becomes; one that cannot be chosen says why in its label.
pub(crate) fn choice(
    name: &'static str,
    value: String,
    chosen: RwSignal<String>,
    possible: bool,
    label: AnyView,
) -> AnyView {
    let (mine, own) = (value.clone(), value.clone());
    let checked = Signal::derive(move || chosen.with(|chosen| *chosen == mine));
    let choose = move |_| chosen.set(own.clone());
    view! {
        <label class="flex gap-2 items-start py-1">
            <input type="radio" class="mt-1 shrink-0" name=name value=value prop:checked=checked disabled=!possible on:change=choose />
            <span class="min-w-0 break-words">{label}</span>
        </label>
    }
    .into_any()
}
