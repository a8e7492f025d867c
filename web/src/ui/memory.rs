//! Preferences that this browser stores.

/// Returns the value stored under this name.
pub(crate) fn recall(name: &str) -> Option<String> {
    storage()?.get_item(name).ok()?
}

/// Stores a preference for the next visit.
pub(crate) fn keep(name: &str, value: &str) {
    if let Some(storage) = storage() {
        // The user may have disabled storage: the preference is lost.
        let _refused = storage.set_item(name, value);
    }
}

fn storage() -> Option<web_sys::Storage> {
    web_sys::window()?.local_storage().ok()?
}
