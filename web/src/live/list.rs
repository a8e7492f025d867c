//! A list that arrives whole, again and again, whose rows keep their identity.
//!
//! Each row is a signal of its own, found again by its key. A push that changes one row redraws that row; nothing is built anew,
//! so an opened `<details>` stays open and a screen reader stays where it is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leptos::prelude::*;

/// What tells an item from its siblings, for as long as it lives.
pub(crate) trait Keyed {
    /// The key, unique in its list.
    fn key(&self) -> String;
}

/// A row: its key, and its value, which may change.
pub(crate) struct Row<T: 'static> {
    /// For `<For key=…>`.
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
    /// The value as a signal of the current owner.
    pub(crate) fn signal(&self) -> RwSignal<T> {
        RwSignal::from(self.value.clone())
    }

    /// The value as it is; tracked.
    pub(crate) fn get(&self) -> T
    where
        T: Clone,
    {
        self.value.get()
    }

    /// Looks at the value without following its changes.
    pub(crate) fn peek<U>(&self, look: impl FnOnce(&T) -> U) -> U {
        self.value.with_untracked(look)
    }
}

/// The rows, in their order; `None` until the first arrive.
pub(crate) struct List<T: 'static>(RwSignal<Option<Vec<Row<T>>>>);

impl<T> Clone for List<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for List<T> {}

impl<T: Keyed + PartialEq + Send + Sync + 'static> List<T> {
    /// Nothing has arrived yet.
    pub(crate) fn new() -> Self {
        Self(RwSignal::new(None))
    }

    /// The rows, none where they are not known; follows coming, going and order, not the values.
    pub(crate) fn rows(self) -> Vec<Row<T>> {
        self.0.get().unwrap_or_default()
    }

    /// Whether anything has arrived; tracked.
    pub(crate) fn is_known(self) -> bool {
        self.0.with(Option::is_some)
    }

    /// Whether it is known that there is nothing; tracked.
    pub(crate) fn is_empty(self) -> bool {
        self.0.with(|rows| rows.as_ref().is_some_and(Vec::is_empty))
    }

    /// How many rows' values satisfy `wanted`; follows values too.
    pub(crate) fn count(self, wanted: impl Fn(&T) -> bool) -> usize {
        let rows = self.rows();
        rows.iter().filter(|row| row.value.with(&wanted)).count()
    }

    /// Takes the list as it is now.
    pub(crate) fn take(self, fresh: Vec<T>) {
        let before = self.0.get_untracked();
        let order = |rows: &[Row<T>]| rows.iter().map(|row| row.key.clone()).collect::<Vec<_>>();
        let old_order = before.as_deref().map(order);
        let rows = merged(before.unwrap_or_default(), fresh);
        if old_order != Some(order(&rows)) {
            self.0.set(Some(rows));
        }
    }

    /// Forgets everything: somebody else may log in.
    pub(crate) fn forget(self) {
        self.0.set(None);
    }
}

fn merged<T: Keyed + PartialEq + Send + Sync>(before: Vec<Row<T>>, fresh: Vec<T>) -> Vec<Row<T>> {
    // Places instead of rows, and put in one by one: a map of rows, or one that sorts first, would be compiled for each type.
    let mut places = BTreeMap::new();
    for (place, row) in before.iter().enumerate() {
        places.insert(row.key.clone(), place);
    }
    let mut rows: Vec<Row<T>> = Vec::with_capacity(fresh.len());
    let mut taken = BTreeSet::new();
    for item in fresh {
        let key = item.key();
        if !taken.insert(key.clone()) {
            // Twice the same: showing it once is right, and two rows of one key would confuse the page.
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

/// Shows rows, a view each; a view lives as long as its row's key.
pub(crate) fn each<T: Send + Sync + 'static>(
    rows: impl Fn() -> Vec<Row<T>> + Send + Sync + 'static,
    view: impl Fn(Row<T>) -> AnyView + Send + Sync + 'static,
) -> AnyView {
    let view = Arc::new(view);
    let made = move |row: Row<T>| {
        let view = Arc::clone(&view);
        Made {
            key: row.key.clone(),
            make: Box::new(move || view(row)),
        }
    };
    listed(Box::new(move || rows().into_iter().map(&made).collect()))
}

/// A row whose type is forgotten, so that Leptos' way with lists is compiled once.
struct Made {
    key: String,
    make: Box<dyn FnOnce() -> AnyView + Send>,
}

fn listed(rows: Box<dyn Fn() -> Vec<Made> + Send + Sync>) -> AnyView {
    let each = move || rows();
    view! { <For each key=|row: &Made| row.key.clone() children=|row: Made| (row.make)() /> }.into_any()
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
