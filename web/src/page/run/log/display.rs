//! How the page displays a log.

use leptos::prelude::*;

use crate::ui::text;

/// How the page displays a log.
#[derive(Clone, Copy)]
pub(super) struct LogDisplay {
    /// Whether long lines are wrapped.
    pub(super) wrapped: RwSignal<bool>,
}

impl LogDisplay {
    /// Returns the CSS classes of the text's frame.
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
