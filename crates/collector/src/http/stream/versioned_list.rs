//! One list as all tabs get it: its newest items, and the latest changes as messages. Pure: time arrives as a value.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use axum::extract::ws::Utf8Bytes;
use domain::api::lists::{ListChanges, ListItem};
use domain::api::stream::Push;
use serde::Deserialize;
use tokio::time::Instant;

/// Minimum time between two readings of a list. The ticks of many tabs are spread over time; without it, while something changes all the
/// time, each of them would read the list.
const READ_EVERY: Duration = Duration::from_millis(100);
/// Maximum number of messages with changes that are kept for tabs that are behind. A tab that ticks as it should misses three.
const CHANGES_MAX: usize = 8;
/// Maximum size of these messages in bytes: two lists of 1,000 nodes that have all changed.
const CHANGES_BYTES_MAX: usize = 8 << 20;

/// How a tab gets the lists: the parameter `lists` of the stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ListForm {
    /// Whole after each change.
    #[default]
    Whole,
    /// Whole at first, then only what has changed.
    Changes,
}

/// The version of a list that a tab has; `None` before its first message.
pub(super) type Seen = Option<usize>;

/// A list, and what tabs are sent about it.
pub(super) struct VersionedList<T> {
    items: Vec<T>,
    /// Number of changes since the list was first read.
    version: usize,
    /// The latest changes as messages, one per version. The last one leads to `version`.
    changes: VecDeque<Utf8Bytes>,
    changes_bytes: usize,
    /// The whole list as a message; made when a tab needs it.
    whole: Option<Utf8Bytes>,
    last_reading: Option<Reading>,
    whole_push: fn(Vec<T>) -> Push,
    changes_push: fn(ListChanges<T>) -> Push,
}

/// A reading of a list.
struct Reading {
    at: Instant,
    /// How often the list had changed before it was read.
    count: u64,
}

impl<T: ListItem + Clone> VersionedList<T> {
    /// Creates a list that has not been read. The functions make its messages.
    pub(super) fn new(whole_push: fn(Vec<T>) -> Push, changes_push: fn(ListChanges<T>) -> Push) -> Self {
        Self {
            items: Vec::new(),
            version: 0,
            changes: VecDeque::new(),
            changes_bytes: 0,
            whole: None,
            last_reading: None,
            whole_push,
            changes_push,
        }
    }

    /// Returns true if the list must be read before a tab that has `seen` is served. `count`: how often the list has changed. For a new tab
    /// it is also read for what is not a change, such as the time of a node's last message.
    pub(super) fn must_be_read(&self, seen: Seen, count: u64, now: Instant) -> bool {
        let Some(last) = &self.last_reading else {
            return true;
        };
        (last.count < count || seen.is_none()) && now.duration_since(last.at) >= READ_EVERY
    }

    /// Takes the items that were read after the list had changed `count` times.
    pub(super) fn update(&mut self, items: Vec<T>, count: u64, now: Instant) {
        let before = std::mem::replace(&mut self.items, unique(items));
        self.whole = None;
        if self.last_reading.replace(Reading { at: now, count }).is_none() {
            return;
        }
        let changes = ListChanges::between(&before, &self.items);
        if changes.is_empty() {
            return;
        }
        let message = message(&(self.changes_push)(changes));
        self.version += 1;
        self.changes_bytes += message.len();
        self.changes.push_back(message);
        while self.changes.len() > CHANGES_MAX || self.changes_bytes > CHANGES_BYTES_MAX {
            let oldest = self.changes.pop_front();
            self.changes_bytes -= oldest.map_or(0, |message| message.len());
        }
    }

    /// Returns the messages that bring a tab from the version that it has seen to the newest one, and records that it has seen it.
    pub(super) fn news(&mut self, seen: &mut Seen, form: ListForm) -> Vec<Utf8Bytes> {
        if self.last_reading.is_none() || *seen == Some(self.version) {
            return Vec::new();
        }
        let missed = seen.replace(self.version).map(|seen| self.version - seen);
        let already_sent = match (form, missed) {
            (ListForm::Changes, Some(missed)) => self.changes.len().checked_sub(missed),
            _ => None,
        };
        match already_sent {
            Some(already_sent) => self.changes.iter().skip(already_sent).cloned().collect(),
            None => vec![self.whole()],
        }
    }

    fn whole(&mut self) -> Utf8Bytes {
        let make = || message(&(self.whole_push)(self.items.clone()));
        self.whole.get_or_insert_with(make).clone()
    }
}

/// Returns the items without those whose key came before. Clients find items by their keys.
fn unique<T: ListItem>(mut items: Vec<T>) -> Vec<T> {
    let mut keys = BTreeSet::new();
    items.retain(|item| keys.insert(item.key()));
    items
}

fn message(push: &Push) -> Utf8Bytes {
    let text = serde_json::to_string(push).expect("the keys of all maps in a list are text");
    text.into()
}

#[cfg(test)]
mod tests {
    use domain::api::lists::{PlacedItem, Source, order_after};
    use domain::api::nodes::{NodeState, NodeView};
    use domain::topology::Inventory;
    use proptest::prelude::*;

    use super::*;

    fn nodes() -> VersionedList<NodeView> {
        VersionedList::new(|nodes| Push::Nodes { nodes }, Push::NodesChanged)
    }

    fn node(name: &str, version: u8, seen_ms: i64) -> NodeView {
        NodeView {
            name: name.into(),
            state: NodeState::Up,
            seen_ms,
            agent_version: version.to_string(),
            clock_offset_ms: 0,
            inventory: Inventory::default(),
            runs: vec![],
            unknown_attempts: vec![],
        }
    }

    /// A tab that applies what it gets.
    #[derive(Default)]
    struct Tab {
        seen: Seen,
        nodes: Vec<NodeView>,
        whole_lists: usize,
    }

    impl Tab {
        fn tick(&mut self, list: &mut VersionedList<NodeView>, form: ListForm) {
            for message in list.news(&mut self.seen, form) {
                match serde_json::from_str::<Push>(&message).expect("a message of the API") {
                    Push::Nodes { nodes } => {
                        self.nodes = nodes;
                        self.whole_lists += 1;
                    }
                    Push::NodesChanged(changes) => self.apply(changes),
                    other => panic!("not about nodes: {other:?}"),
                }
            }
        }

        fn apply(&mut self, changes: ListChanges<NodeView>) {
            let keys: Vec<&str> = self.nodes.iter().map(|node| node.name.as_str()).collect();
            let sent = changes.items.iter().map(|placed| (placed.at, placed.item.key()));
            let order = order_after(&keys, &changes.removed, &sent.collect::<Vec<_>>());
            let mut items = changes.items.into_iter().map(|PlacedItem { item, .. }| item);
            let item = |source| match source {
                Source::Kept(at) => self.nodes[at].clone(),
                Source::Sent(_) => items.next().expect("as many as were sent"),
            };
            self.nodes = order
                .expect("they fit the list of the tab")
                .into_iter()
                .map(item)
                .collect();
        }

        fn names(&self) -> Vec<&str> {
            self.nodes.iter().map(|node| node.name.as_str()).collect()
        }
    }

    #[test]
    fn a_list_is_read_after_changes_and_for_new_tabs_but_not_for_each_tab() {
        let mut list = nodes();
        let begin = Instant::now();
        assert!(list.must_be_read(None, 0, begin), "never read");
        list.update(vec![], 3, begin);
        let soon = begin + READ_EVERY / 2;
        let later = begin + READ_EVERY;
        for (seen, count, now, expected) in [
            (Some(0), 3, later, false),
            (Some(0), 4, later, true),
            (Some(0), 4, soon, false),
            // Another tab has counted before it waited for this one to read.
            (Some(0), 2, later, false),
            (None, 3, later, true),
            (None, 3, soon, false),
        ] {
            let what = format!("{seen:?}, {count} changes, {:?} later", now - begin);
            assert_eq!(list.must_be_read(seen, count, now), expected, "{what}");
        }
    }

    #[test]
    fn a_tab_gets_the_whole_list_at_first_and_after_it_missed_too_much() {
        let (mut list, mut tab, mut whole) = (nodes(), Tab::default(), Tab::default());
        tab.tick(&mut list, ListForm::Changes);
        assert_eq!((tab.seen, tab.whole_lists), (None, 0), "not read yet");
        let now = Instant::now();
        for version in 0..=CHANGES_MAX + 2 {
            let version = u8::try_from(version).expect("a small number");
            list.update(vec![node("a", 0, 0), node("b", version, 0)], 0, now);
            if version <= 1 {
                tab.tick(&mut list, ListForm::Changes);
            }
            whole.tick(&mut list, ListForm::Whole);
        }
        assert_eq!(tab.whole_lists, 1, "then changes");
        tab.tick(&mut list, ListForm::Changes);
        assert_eq!(tab.whole_lists, 2, "it missed {} changes", CHANGES_MAX + 1);
        assert_eq!(tab.nodes, whole.nodes);
        assert_eq!(whole.whole_lists, CHANGES_MAX + 3, "one after each change");
    }

    #[test]
    fn large_changes_are_not_kept() {
        let (mut list, mut tab) = (nodes(), Tab::default());
        let now = Instant::now();
        list.update(vec![], 0, now);
        tab.tick(&mut list, ListForm::Changes);
        let large = NodeView {
            agent_version: "x".repeat(CHANGES_BYTES_MAX),
            ..node("a", 0, 0)
        };
        list.update(vec![large], 0, now);
        assert_eq!((list.changes.len(), list.changes_bytes), (0, 0));
        tab.tick(&mut list, ListForm::Changes);
        assert_eq!((tab.whole_lists, tab.names()), (2, vec!["a"]));
    }

    #[test]
    fn the_time_of_the_last_message_is_sent_only_to_new_tabs() {
        let (mut list, mut tab) = (nodes(), Tab::default());
        let now = Instant::now();
        list.update(vec![node("a", 0, 1_000)], 0, now);
        tab.tick(&mut list, ListForm::Whole);
        list.update(vec![node("a", 0, 2_000)], 0, now);
        assert!(list.news(&mut tab.seen, ListForm::Whole).is_empty());
        let mut new = Tab::default();
        new.tick(&mut list, ListForm::Changes);
        assert_eq!(new.nodes[0].seen_ms, 2_000);
    }

    #[test]
    fn an_item_whose_key_came_before_is_left_out() {
        let (mut list, mut tab) = (nodes(), Tab::default());
        list.update(
            vec![node("a", 0, 0), node("b", 0, 0), node("a", 1, 0)],
            0,
            Instant::now(),
        );
        tab.tick(&mut list, ListForm::Changes);
        assert_eq!(tab.names(), ["a", "b"]);
    }

    /// Nodes in any order, without two of one name.
    fn any_nodes() -> impl Strategy<Value = Vec<NodeView>> {
        proptest::collection::btree_map(0_u8..9, 0_u8..3, 0..8)
            .prop_map(|versions| {
                let one = |(name, version): (u8, u8)| node(&format!("n{name}"), version, 0);
                versions.into_iter().map(one).collect::<Vec<_>>()
            })
            .prop_shuffle()
    }

    proptest! {
        /// Each step is a reading of the list, and the tabs that tick after it.
        #[test]
        fn a_tab_has_the_list_whenever_it_ticks(
            steps in proptest::collection::vec((any_nodes(), proptest::collection::vec(0_usize..3, 0..3)), 1..40),
        ) {
            let mut list = nodes();
            let mut tabs = [Tab::default(), Tab::default(), Tab::default()];
            let now = Instant::now();
            for (nodes, ticking) in steps {
                list.update(nodes.clone(), 0, now);
                for tab in ticking {
                    tabs[tab].tick(&mut list, ListForm::Changes);
                    prop_assert_eq!(&tabs[tab].nodes, &nodes);
                }
            }
        }
    }
}
