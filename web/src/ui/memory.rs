//! Preferences that this browser remembers.

/// What was kept under this name.
pub(crate) fn recall(name: &str) -> Option<String> {
    storage()?.get_item(name).ok()?
}

/// Keeps a preference for the next visit.
pub(crate) fn keep(name: &str, value: &str) {
    if let Some(storage) = storage() {
        // A browser that is told to keep nothing forgets it.
        let _refused = storage.set_item(name, value);
    }
}

fn storage() -> Option<web_sys::Storage> {
    web_sys::window()?.local_storage().ok()?
}
