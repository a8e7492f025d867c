//! What a person sees when the program itself fails: a panic ends it for good, so the page offers to load it anew.
//!
//! The banner is part of `index.html` (`start.js` shows it too, when the program cannot even be loaded), because nothing that
//! is still to be built can be relied on by then.

use leptos::prelude::document;

/// The banner's id in `index.html`.
const BANNER: &str = "crashed";

/// From now on a panic is logged to the console and shows the banner.
pub(crate) fn show_panics() {
    std::panic::set_hook(Box::new(|panic| {
        leptos::logging::error!("{panic}");
        if let Some(banner) = document().get_element_by_id(BANNER) {
            // Fails only in a document that is gone.
            let _gone = banner.remove_attribute("hidden");
        }
    }));
}

/// Takes an element of `index.html` away.
pub(crate) fn remove(id: &str) {
    if let Some(element) = document().get_element_by_id(id) {
        element.remove();
    }
}
