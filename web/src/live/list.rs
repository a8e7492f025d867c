//! A list that always arrives whole and whose rows keep their identity.
//!
//! Each row is a signal, found by its key. A push that changes one row redraws only that row. So an opened `<details>` stays open, and a
//! screen reader and the focus keep their position.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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
        let order = |rows: &[Row<T>]| rows.iter().map(|row| row.key.clone()).collect::<Vec<_>>();
        let old_order = before.as_deref().map(order);
        let rows = merged(before.unwrap_or_default(), fresh);
        if old_order != Some(order(&rows)) {
            self.0.set(Some(rows));
        }
    }

    /// Removes everything, because another user may log in.
    pub(crate) fn forget(self) {
        self.0.set(None);
    }
}

fn merged<T: Keyed + PartialEq + Send + Sync>(before: Vec<Row<T>>, fresh: Vec<T>) -> Vec<Row<T>> {
    // Positions instead of rows, inserted one by one: a map of rows, or a sorted list, would be compiled for each type.
    let mut places = BTreeMap::new();
    for (place, row) in before.iter().enumerate() {
        places.insert(row.key.clone(), place);
    }
    let mut rows: Vec<Row<T>> = Vec::with_capacity(fresh.len());
    let mut taken = BTreeSet::new();
    for item in fresh {
        let key = item.key();
        if !taken.insert(key.clone()) {
            // A duplicate: it is shown once, because two rows with one key would break the page.
            continue;
        }
        let value = match places.get(&key).map(|place| before[*place].value.clone()) {
            Some(value) => {
                if value.with_untracked(|old| *old != item) {
                    value.set(item);
                }
                value
            }
            None => ArcRwSignal::new(item),
        };
        rows.push(Row { key, value });
    }
    rows
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
    use super::*;

    #[derive(PartialEq)]
    struct Item(&'static str, u32);

    impl Keyed for Item {
        fn key(&self) -> String {
            self.0.to_owned()
        }
    }

    #[test]
    fn rows_keep_their_signals_by_key() {
        let first = merged(vec![], vec![Item("a", 1), Item("b", 1)]);
        let a = first[0].clone();
        let second = merged(first, vec![Item("c", 1), Item("a", 2), Item("a", 3)]);
        let keys: Vec<_> = second.iter().map(|row| row.key.as_str()).collect();
        assert_eq!(keys, ["c", "a"]);
        assert_eq!(a.peek(|item| item.1), 2, "the old row shows the new value");
    }
}
