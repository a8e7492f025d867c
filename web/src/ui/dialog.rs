//! A modal dialog that the user must answer.

use leptos::html::Dialog as Element;
use leptos::prelude::*;

/// A dialog that its owner opens. Cheap to copy.
#[derive(Clone, Copy)]
pub(crate) struct Dialog {
    place: NodeRef<Element>,
    /// How often the dialog was opened; while 0, its content is not built or requested.
    opened: RwSignal<u32>,
}

impl Dialog {
    /// Creates a closed dialog.
    pub(crate) fn new() -> Self {
        Self {
            place: NodeRef::new(),
            opened: RwSignal::new(0),
        }
    }

    /// Opens the dialog and rebuilds its content. The focus is on the dialog itself, so that a second press of Enter confirms nothing.
    pub(crate) fn open(self) {
        self.opened.update(|times| *times += 1);
        if let Some(dialog) = self.place.get_untracked() {
            // Fails only if the dialog is already open.
            let _already_open = dialog.show_modal();
            // Fails only for a removed element.
            let _gone = dialog.focus();
        }
    }

    /// Closes the dialog.
    pub(crate) fn close(self) {
        if let Some(dialog) = self.place.get_untracked() {
            dialog.close();
        }
    }
}

/// The frame of a dialog: heading, content, and a button that cancels. The content is built each time the dialog opens.
#[component]
pub(crate) fn Modal(
    /// The dialog.
    dialog: Dialog,
    /// The heading, also the dialog's name for a screen reader.
    title: &'static str,
    /// The label of the button that cancels.
    leave: &'static str,
    /// The content, and the buttons that do something.
    children: ChildrenFn,
) -> impl IntoView {
    let inside = super::dynamic_view(move || match dialog.opened.get() {
        0 => super::empty_view(),
        _ => children(),
    });
    view! {
        <dialog class="modal outline-none" tabindex="-1" node_ref=dialog.place aria-label=title>
            <div class="modal-box max-w-2xl">
                <h2 class="text-lg font-bold">{title}</h2>
                {inside}
                <form method="dialog" class="mt-2 text-right"><button class="btn btn-ghost btn-sm">{leave}</button></form>
            </div>
        </dialog>
    }
}

/// One radio button. `chosen` becomes `value`; the label of a disabled one gives the reason.
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
