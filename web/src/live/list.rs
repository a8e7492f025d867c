//! A list whose rows keep their identity. It arrives whole or as changes.
//!
//! Each row is a signal, found by its key. A push that changes one row redraws only that row. So an opened `<details>` stays open, and a
//! screen reader and the focus keep their position.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain::api::lists::{ListChanges, Source, order_after};
use leptos::prelude::*;

use super::kept_focus::keep_focus;

/// An item with a stable, unique key.
pub(crate) trait Keyed {
    /// Returns the key, unique in its list.
    fn key(&self) -> String;
}

/// A row: its key, and its value, which may change.
pub(crate) struct Row<T: 'static> {
    /// The key for `<For key=…>`.
    pub(crate) key: String,
    value: ArcRwSignal<T>,
}

impl<T> Clone for Row<T> {
    fn clone(&self) -> Self {
        Self {
            key: self.key.clone(),
            value: self.value.clone(),
        }
    }
}

impl<T: Send + Sync> Row<T> {
    /// Returns the value as a signal of the current owner.
    pub(crate) fn signal(&self) -> RwSignal<T> {
        RwSignal::from(self.value.clone())
    }

    /// Returns the value; tracked.
    pub(crate) fn get(&self) -> T
    where
        T: Clone,
    {
        self.value.get()
    }

    /// Reads the value without tracking it.
    pub(crate) fn peek<U>(&self, look: impl FnOnce(&T) -> U) -> U {
        self.value.with_untracked(look)
    }
}

/// The rows in order; `None` until the first list arrives.
pub(crate) struct List<T: 'static>(RwSignal<Option<Vec<Row<T>>>>);

impl<T> Clone for List<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for List<T> {}

impl<T: Keyed + PartialEq + Send + Sync + 'static> List<T> {
    /// Creates a list without rows.
    pub(crate) fn new() -> Self {
        Self(RwSignal::new(None))
    }

    /// Returns the rows; none before the first list arrives. Tracks added and removed rows and the order, not the values.
    pub(crate) fn rows(self) -> Vec<Row<T>> {
        self.0.get().unwrap_or_default()
    }

    /// Returns true if a list has arrived; tracked.
    pub(crate) fn is_known(self) -> bool {
        self.0.with(Option::is_some)
    }

    /// Returns true if a list has arrived and is empty; tracked.
    pub(crate) fn is_empty(self) -> bool {
        self.0.with(|rows| rows.as_ref().is_some_and(Vec::is_empty))
    }

    /// Returns the number of rows whose values satisfy `wanted`; also tracks the values.
    pub(crate) fn count(self, wanted: impl Fn(&T) -> bool) -> usize {
        let rows = self.rows();
        rows.iter().filter(|row| row.value.with(&wanted)).count()
    }

    /// Replaces the list.
    pub(crate) fn take(self, fresh: Vec<T>) {
        let before = self.0.get_untracked();
        let rows = merged(before.as_deref().unwrap_or_default(), fresh);
        self.show(before.as_deref(), rows);
    }

    /// Applies changes. Returns false if they do not fit the list, which then stays as it is.
    pub(crate) fn follow(self, changes: ListChanges<T>) -> bool {
        let Some(before) = self.0.get_untracked() else {
            return false;
        };
        let Some(rows) = followed(&before, changes) else {
            return false;
        };
        self.show(Some(&before), rows);
        true
    }

    /// Shows these rows, unless the keys and their order stay the same.
    fn show(self, before: Option<&[Row<T>]>, rows: Vec<Row<T>>) {
        let keys = rows.iter().map(|row| &row.key);
        let is_same = before.is_some_and(|before| before.iter().map(|row| &row.key).eq(keys));
        if !is_same {
            self.0.set(Some(rows));
        }
    }

    /// Removes everything, because another user may log in.
    pub(crate) fn forget(self) {
        self.0.set(None);
    }
}

fn merged<T: Keyed + PartialEq + Send + Sync>(before: &[Row<T>], fresh: Vec<T>) -> Vec<Row<T>> {
    // Positions instead of rows, inserted one by one: a map of rows, or a sorted list, would be compiled for each type.
    let mut places = BTreeMap::new();
    for (place, row) in before.iter().enumerate() {
        places.insert(row.key.as_str(), place);
    }
    let mut rows: Vec<Row<T>> = Vec::with_capacity(fresh.len());
    let mut taken = BTreeSet::new();
    for item in fresh {
        let key = item.key();
        if !taken.insert(key.clone()) {
            // A duplicate: it is shown once, because two rows with one key would break the page.
            continue;
        }
        let place = places.get(key.as_str());
        rows.push(row(place.map(|place| &before[*place]), key, item));
    }
    rows
}

/// Returns the rows after changes, or `None` if the changes do not fit the rows.
fn followed<T: Keyed + PartialEq + Send + Sync>(
    before: &[Row<T>],
    changes: ListChanges<T>,
) -> Option<Vec<Row<T>>> {
    let keys: Vec<&str> = before.iter().map(|row| row.key.as_str()).collect();
    let sent = changes.items.iter().map(|placed| (placed.at, placed.item.key()));
    let sent: Vec<(usize, String)> = sent.collect();
    let order = order_after(&keys, &changes.removed, &sent)?;
    let mut sent = sent.into_iter().zip(changes.items);
    let mut rows: Vec<Row<T>> = Vec::with_capacity(order.len());
    for source in order {
        rows.push(match source {
            Source::Kept(place) => before[place].clone(),
            Source::Sent(replaces) => {
                let ((_, key), placed) = sent.next()?;
                row(replaces.map(|place| &before[place]), key, placed.item)
            }
        });
    }
    Some(rows)
}

/// Returns the row of an item. It has the signal of the row before, which fires only if the item differs.
fn row<T: PartialEq + Send + Sync>(before: Option<&Row<T>>, key: String, item: T) -> Row<T> {
    let Some(before) = before else {
        let value = ArcRwSignal::new(item);
        return Row { key, value };
    };
    if before.value.with_untracked(|old| *old != item) {
        before.value.set(item);
    }
    before.clone()
}

/// Shows one view per row. A view lives as long as its row's key.
pub(crate) fn each<T: Send + Sync + 'static>(
    rows: impl Fn() -> Vec<Row<T>> + Send + Sync + 'static,
    view: impl Fn(Row<T>) -> AnyView + Send + Sync + 'static,
) -> AnyView {
    let view = Arc::new(view);
    let erased = move |row: Row<T>| {
        let view = Arc::clone(&view);
        ErasedRow {
            key: row.key.clone(),
            make: Box::new(move || view(row)),
        }
    };
    listed(Box::new(move || rows().into_iter().map(&erased).collect()))
}

/// A row without its type, so that Leptos' code for lists is compiled once.
struct ErasedRow {
    key: String,
    make: Box<dyn FnOnce() -> AnyView + Send>,
}

fn listed(rows: Box<dyn Fn() -> Vec<ErasedRow> + Send + Sync>) -> AnyView {
    let each = move || {
        keep_focus();
        rows()
    };
    view! { <For each key=|row: &ErasedRow| row.key.clone() children=|row: ErasedRow| (row.make)() /> }
        .into_any()
}

#[cfg(test)]
mod tests {
    use domain::api::lists::PlacedItem;

    use super::*;

    #[derive(PartialEq)]
    struct Item(&'static str, u32);

    impl Keyed for Item {
        fn key(&self) -> String {
            self.0.to_owned()
        }
    }

    /// Keys and values of rows.
    fn shown(rows: &[Row<Item>]) -> Vec<(&str, u32)> {
        let shown = |row: &Row<Item>| row.peek(|item| item.1);
        rows.iter().map(|row| (row.key.as_str(), shown(row))).collect()
    }

    fn changes(removed: &[&str], items: Vec<(usize, Item)>) -> ListChanges<Item> {
        let placed = |(at, item)| PlacedItem { at, item };
        ListChanges {
            removed: removed.iter().map(|key| (*key).to_owned()).collect(),
            items: items.into_iter().map(placed).collect(),
        }
    }

    #[test]
    fn rows_keep_their_signals_by_key() {
        let first = merged(&[], vec![Item("a", 1), Item("b", 1)]);
        let a = first[0].clone();
        let second = merged(&first, vec![Item("c", 1), Item("a", 2), Item("a", 3)]);
        assert_eq!(shown(&second), [("c", 1), ("a", 2)]);
        assert_eq!(a.peek(|item| item.1), 2, "the old row shows the new value");
    }

    #[test]
    fn changes_keep_the_signals_of_rows() {
        let before = merged(&[], vec![Item("a", 1), Item("b", 1), Item("c", 1), Item("d", 1)]);
        let items = vec![(0, Item("e", 1)), (2, Item("c", 2)), (3, Item("d", 1))];
        let after = followed(&before, changes(&["b"], items)).expect("they fit");
        assert_eq!(shown(&after), [("e", 1), ("a", 1), ("c", 2), ("d", 1)]);
        // The rows that a page already shows.
        assert_eq!(shown(&before), [("a", 1), ("b", 1), ("c", 2), ("d", 1)]);
        let again = followed(&after, changes(&[], vec![(0, Item("a", 3))])).expect("they fit");
        assert_eq!(
            shown(&again),
            [("a", 3), ("e", 1), ("c", 2), ("d", 1)],
            "it moved"
        );
        assert_eq!(before[0].peek(|item| item.1), 3, "and kept its signal");
    }

    #[test]
    fn changes_that_do_not_fit_change_nothing() {
        let before = merged(&[], vec![Item("a", 1), Item("b", 1)]);
        for bad in [
            changes(&["x"], vec![(0, Item("a", 9))]),
            changes(&["a", "a"], vec![]),
            changes(&[], vec![(0, Item("a", 9)), (1, Item("a", 8))]),
            changes(&[], vec![(0, Item("a", 9)), (7, Item("x", 1))]),
            changes(&[], vec![(1, Item("a", 9)), (0, Item("b", 9))]),
        ] {
            assert!(followed(&before, bad).is_none());
            assert_eq!(shown(&before), [("a", 1), ("b", 1)]);
        }
    }
}
