//! Lists that are derived from other values.

use crate::live::{Keyed, List};
use crate::ui::effect;

/// Derives rows that keep their identity while the source changes.
pub(super) fn followed<T: Keyed + PartialEq + Send + Sync + 'static>(
    items: impl Fn() -> Vec<T> + 'static,
) -> List<T> {
    let list = List::new();
    effect(move || list.take(items()));
    list
}
