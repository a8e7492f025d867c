//! Changes of a list of the [stream](crate::api::stream): how the collector finds them, and how a client applies them.
//!
//! ```text
//! before   a b c d
//! changes  removed: b    items: e at 0, c' at 2
//! after    e a c' d
//! ```
//! A client takes the removed items and those in `items` out of its list, then inserts each of `items` at its index, in their order. The
//! remaining items keep their order, so that no message has to repeat it.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::alerts::Diagnosis;
use crate::api::nodes::{NodeState, NodeView};
use crate::api::runs::RunSummary;

/// An item of a list of the stream.
pub trait ListItem: PartialEq {
    /// Returns the key, unique in its list.
    fn key(&self) -> String;

    /// Returns true if a client that has this item does not need the newer one.
    fn is_same(&self, newer: &Self) -> bool {
        self == newer
    }
}

/// What has changed in a list since the last message about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ListChanges<T> {
    /// Keys of the items that are no longer in the list.
    pub removed: Vec<String>,
    /// New, changed and moved items, ordered by their indexes.
    pub items: Vec<PlacedItem<T>>,
}

/// An item and its place in the list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlacedItem<T> {
    /// Index of the item in the changed list.
    pub at: usize,
    /// The whole item.
    pub item: T,
}

impl<T: ListItem + Clone> ListChanges<T> {
    /// Returns the changes that lead from one list to another. In each list, no two items have the same key.
    #[must_use]
    pub fn between(before: &[T], after: &[T]) -> Self {
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        for (at, item) in before.iter().enumerate() {
            places.insert(item.key(), at);
        }
        let mut items = Vec::new();
        // The index in `before` of the last item that stays. Items stay only in their old order; others are sent with their new index. The
        // lists are sorted by what their items contain, so an item moves rarely without a change that must be sent anyway.
        let mut last_stayed = None;
        for (at, item) in after.iter().enumerate() {
            let was_at = places.remove(&item.key());
            let stays = was_at.filter(|was_at| Some(*was_at) > last_stayed && before[*was_at].is_same(item));
            if stays.is_some() {
                last_stayed = stays;
            } else {
                let item = item.clone();
                items.push(PlacedItem { at, item });
            }
        }
        let removed = places.into_keys().collect();
        Self { removed, items }
    }
}

impl<T> ListChanges<T> {
    /// Returns true if nothing has changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.items.is_empty()
    }
}

/// Where an item of a changed list comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The item stays as it is. Contains its index in the list before.
    Kept(usize),
    /// The next of the sent items. Contains the index of the item that it replaces in the list before; `None` if the item is new.
    Sent(Option<usize>),
}

/// Returns the sources of all items of a list after changes, in their order.
///
/// `before` are the keys of the list, `removed` those of the removed items, and `sent` the indexes and keys of the sent items. Returns
/// `None` if the changes do not fit the list: a removed key is unknown, a key occurs twice, or an index is too large or not greater than
/// the one before.
#[must_use]
pub fn order_after(before: &[&str], removed: &[String], sent: &[(usize, String)]) -> Option<Vec<Source>> {
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, key) in before.iter().enumerate() {
        places.insert(*key, at);
    }
    let mut stays = vec![true; before.len()];
    let mut named = BTreeSet::new();
    for key in removed {
        stays[*places.get(key.as_str())?] = false;
        if !named.insert(key.as_str()) {
            return None;
        }
    }
    let mut replaced = Vec::with_capacity(sent.len());
    for (_, key) in sent {
        if !named.insert(key.as_str()) {
            return None;
        }
        let at = places.get(key.as_str()).copied();
        if let Some(at) = at {
            stays[at] = false;
        }
        replaced.push(at);
    }
    let mut kept = (0..before.len()).filter(|at| stays[*at]);
    let mut order = Vec::with_capacity(before.len());
    for ((at, _), replaces) in sent.iter().zip(replaced) {
        while order.len() < *at {
            order.push(Source::Kept(kept.next()?));
        }
        if order.len() > *at {
            return None;
        }
        order.push(Source::Sent(replaces));
    }
    order.extend(kept.map(Source::Kept));
    Some(order)
}

impl ListItem for RunSummary {
    fn key(&self) -> String {
        self.id.clone()
    }
}

impl ListItem for Diagnosis {
    fn key(&self) -> String {
        self.id.clone()
    }
}

impl ListItem for NodeView {
    fn key(&self) -> String {
        self.name.clone()
    }

    /// A node that is up has a new `seen_ms` each second. This alone is not a change: pages show when a node was last seen only if it is
    /// down.
    fn is_same(&self, newer: &Self) -> bool {
        let Self {
            name,
            state,
            seen_ms,
            agent_version,
            clock_offset_ms,
            inventory,
            runs,
            unknown_attempts,
        } = newer;
        self.state == *state
            && (self.seen_ms == *seen_ms || *state == NodeState::Up)
            && self.name == *name
            && self.agent_version == *agent_version
            && self.clock_offset_ms == *clock_offset_ms
            && self.runs == *runs
            && self.unknown_attempts == *unknown_attempts
            && self.inventory == *inventory
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::topology::Inventory;

    #[derive(Debug, Clone, PartialEq)]
    struct Item(String, u8);

    impl ListItem for Item {
        fn key(&self) -> String {
            self.0.clone()
        }

        fn is_same(&self, newer: &Self) -> bool {
            self == newer
        }
    }

    /// Returns one item per word, such as `a1`: its key and its value.
    fn items(words: &str) -> Vec<Item> {
        let item = |word: &str| {
            let (key, value) = word.split_at(1);
            Item(key.to_owned(), value.parse().expect("a digit"))
        };
        words.split_whitespace().map(item).collect()
    }

    /// Applies changes as a client does.
    fn applied(before: &[Item], changes: &ListChanges<Item>) -> Option<Vec<Item>> {
        let keys: Vec<&str> = before.iter().map(|item| item.0.as_str()).collect();
        let sent = changes.items.iter().map(|placed| (placed.at, placed.item.key()));
        let order = order_after(&keys, &changes.removed, &sent.collect::<Vec<_>>())?;
        let mut sent = changes.items.iter();
        let item = |source| match source {
            Source::Kept(at) => before[at].clone(),
            Source::Sent(replaces) => {
                let item = sent.next().expect("as many as were sent").item.clone();
                assert_eq!(replaces, before.iter().position(|old| old.0 == item.0));
                item
            }
        };
        Some(order.into_iter().map(item).collect())
    }

    #[test]
    fn only_new_changed_and_moved_items_are_sent() {
        for (before, after, removed, sent) in [
            ("a1 b1 c1", "a1 b1 c1", "", ""),
            ("", "a1 b1", "", "a1 b1"),
            ("a1 b1", "", "a b", ""),
            ("a1 c1 d1", "a1 b1 c1 d1", "", "b1"),
            ("a1 b1 c1 d1", "e1 a1 c2 d1", "b", "e1 c2"),
            ("a1 b1 c1", "c2 a1 b1", "", "c2"),
            ("a1 b1 c1", "b1 c1 a2", "", "a2"),
        ] {
            let changes = ListChanges::between(&items(before), &items(after));
            let removed_expected: Vec<&str> = removed.split_whitespace().collect();
            let sent_items: Vec<Item> = changes.items.iter().map(|placed| placed.item.clone()).collect();
            assert_eq!(changes.removed, removed_expected, "{before} to {after}");
            assert_eq!(sent_items, items(sent), "{before} to {after}");
            assert_eq!(changes.is_empty(), before == after, "{before} to {after}");
            assert_eq!(applied(&items(before), &changes), Some(items(after)));
        }
    }

    #[test]
    fn changes_that_do_not_fit_the_list_are_refused() {
        type Case<'a> = (&'a [&'a str], &'a [(usize, &'a str)]);
        let before = ["a", "b", "c"];
        let cases: [Case<'_>; 10] = [
            (&["x"], &[]),
            (&["a", "a"], &[]),
            (&["a"], &[(0, "a")]),
            (&[], &[(0, "b"), (1, "b")]),
            (&[], &[(0, "x"), (1, "x")]),
            (&[], &[(0, "x"), (0, "y")]),
            (&[], &[(1, "x"), (0, "y")]),
            (&[], &[(4, "x")]),
            (&["a", "b", "c"], &[(1, "x")]),
            (&[], &[(usize::MAX, "x")]),
        ];
        for (removed, sent) in cases {
            let removed: Vec<String> = removed.iter().map(|key| (*key).to_owned()).collect();
            let sent: Vec<_> = sent.iter().map(|(at, key)| (*at, (*key).to_owned())).collect();
            assert_eq!(
                order_after(&before, &removed, &sent),
                None,
                "{removed:?} {sent:?}"
            );
        }
        let fits = order_after(&before, &[], &[(3, "x".to_owned())]);
        assert_eq!(fits.map(|order| order.len()), Some(4));
    }

    #[test]
    fn the_time_of_the_last_message_of_a_connected_node_is_not_a_change() {
        let up = NodeView {
            name: "n1".into(),
            state: NodeState::Up,
            seen_ms: 1_000,
            agent_version: "1".into(),
            clock_offset_ms: 0,
            inventory: Inventory::default(),
            runs: vec![],
            unknown_attempts: vec![],
        };
        let later = NodeView {
            seen_ms: 2_000,
            ..up.clone()
        };
        assert!(up.is_same(&later));
        let down = NodeView {
            state: NodeState::Down,
            ..later.clone()
        };
        assert!(!later.is_same(&down));
        let down_later = NodeView {
            seen_ms: 3_000,
            ..down.clone()
        };
        assert!(!down.is_same(&down_later), "pages show it");
        let busy = NodeView {
            runs: vec!["a".into()],
            ..up.clone()
        };
        assert!(!up.is_same(&busy));
    }

    /// A list in any order, without two items of one key.
    fn any_list() -> impl Strategy<Value = Vec<Item>> {
        proptest::collection::btree_map(0_u8..12, 0_u8..3, 0..10)
            .prop_map(|values| {
                let item = |(key, value): (u8, u8)| Item(format!("k{key}"), value);
                values.into_iter().map(item).collect::<Vec<_>>()
            })
            .prop_shuffle()
    }

    proptest! {
        #[test]
        fn a_client_that_applies_all_changes_has_the_list(lists in proptest::collection::vec(any_list(), 2..8)) {
            let mut client = lists[0].clone();
            for pair in lists.windows(2) {
                let changes = ListChanges::between(&pair[0], &pair[1]);
                client = applied(&client, &changes).expect("they fit the list that they were made for");
                prop_assert_eq!(&client, &pair[1]);
            }
        }

        #[test]
        fn no_changes_make_a_panic_or_a_key_twice(
            list in any_list(),
            removed in proptest::collection::vec(0_u8..14, 0..3),
            sent in proptest::collection::vec((0_usize..14, 0_u8..14), 0..5),
        ) {
            let placed = |(at, key): (usize, u8)| PlacedItem { at, item: Item(format!("k{key}"), 9) };
            let changes = ListChanges {
                removed: removed.into_iter().map(|key| format!("k{key}")).collect(),
                items: sent.into_iter().map(placed).collect(),
            };
            if let Some(after) = applied(&list, &changes) {
                let keys: BTreeSet<String> = after.iter().map(ListItem::key).collect();
                prop_assert_eq!(keys.len(), after.len());
                for placed in &changes.items {
                    prop_assert_eq!(&after[placed.at], &placed.item);
                }
            }
        }
    }
}
