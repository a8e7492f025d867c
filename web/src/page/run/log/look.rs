//! How a log is written on the page.

use leptos::prelude::*;

use crate::ui::text;

/// How a log is written on the page.
#[derive(Clone, Copy)]
pub(super) struct Look {
    /// Whether long lines are broken.
    pub(super) wrapped: RwSignal<bool>,
}

impl Look {
    /// The classes of the text's frame.
    pub(super) fn class(self) -> Signal<String> {
        text(move || {
            if self.wrapped.get() {
                "bg-base-200 rounded p-2 text-xs h-72 overflow-auto whitespace-pre-wrap"
            } else {
                "bg-base-200 rounded p-2 text-xs h-72 overflow-auto"
            }
        })
    }
}
