//! Lists that follow what they are taken from.

use crate::live::{Keyed, List};
use crate::ui::whenever;

/// Rows that keep their identity while what they are taken from changes.
pub(super) fn followed<T: Keyed + PartialEq + Send + Sync + 'static>(
    items: impl Fn() -> Vec<T> + 'static,
) -> List<T> {
    let list = List::new();
    whenever(move || list.take(items()));
    list
}
