//! What a user sees when the dashboard itself fails: a panic ends the program, so the page offers to reload it.
//!
//! The banner is part of `index.html`, because after a panic nothing can be built. `start.js` shows it too if the program cannot be loaded.

use leptos::prelude::document;

/// The banner's id in `index.html`.
const BANNER: &str = "crashed";

/// Installs a panic hook that logs to the console and shows the banner.
pub(crate) fn show_panics() {
    std::panic::set_hook(Box::new(|panic| {
        leptos::logging::error!("{panic}");
        if let Some(banner) = document().get_element_by_id(BANNER) {
            // Fails only if the document is gone.
            let _gone = banner.remove_attribute("hidden");
        }
    }));
}

/// Removes an element of `index.html`.
pub(crate) fn remove(id: &str) {
    if let Some(element) = document().get_element_by_id(id) {
        element.remove();
    }
}
