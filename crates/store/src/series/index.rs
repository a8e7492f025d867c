//! Which series there are: by their labels, by label value, by id.
//!
//! All in memory, filled from the table at start. New series are known at once and made durable by the committer before the
//! first batch that speaks of them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use domain::series::matcher::CompiledMatcher;
use domain::series::{Labels, MatchOp, Matcher};

use super::head::{Group, GroupId};
use super::{SeriesId, SeriesLimit};

/// Series a group: 8 GPUs fit many times over, and no chunk grows past some hundred kilobytes.
const GROUP_ROWS_MAX: u32 = 64;

type Text = Arc<str>;

/// A series and where its samples are.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: SeriesId,
    pub(crate) labels: Labels,
    pub(crate) group: Arc<Group>,
    pub(crate) row: u32,
    /// The number of retention passes there had been when it was last resolved or appended to.
    pub(crate) used_pass: AtomicU64,
}

/// Groups and series that are not in the database yet.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    pub(crate) groups: Vec<Arc<Group>>,
    pub(crate) series: Vec<(SeriesId, GroupId, Labels)>,
}

/// All series.
#[derive(Debug)]
pub(crate) struct Index {
    series_max: usize,
    entries: Vec<Option<Entry>>,
    by_labels: HashMap<Labels, SeriesId>,
    /// Label name → value → the series that have it, ascending.
    postings: HashMap<Text, BTreeMap<Text, Vec<SeriesId>>>,
    groups: BTreeMap<GroupId, Arc<Group>>,
    /// The group that takes the next series of a node and metric, and how many it has.
    open: HashMap<(Text, Text), (Arc<Group>, u32)>,
    next_group: i64,
    pending_from: usize,
    pending_groups: Vec<Arc<Group>>,
    pass: u64,
    /// Changes with each pass and whenever series are forgotten.
    epoch: u64,
}

impl Index {
    pub(crate) fn new(series_max: usize) -> Self {
        Self {
            series_max,
            // Ids begin at 1.
            entries: vec![None],
            by_labels: HashMap::new(),
            postings: HashMap::new(),
            groups: BTreeMap::new(),
            open: HashMap::new(),
            next_group: 1,
            pending_from: 1,
            pending_groups: Vec::new(),
            pass: 0,
            epoch: 0,
        }
    }

    // --- naming ---

    pub(crate) fn id(&self, labels: &Labels) -> Option<SeriesId> {
        self.by_labels.get(labels).copied()
    }

    pub(crate) fn entry(&self, id: SeriesId) -> Option<&Entry> {
        self.entries.get(id.0 as usize)?.as_ref()
    }

    /// Notes that somebody still speaks of a series; returns whether it is known.
    pub(crate) fn note_use(&self, id: SeriesId) -> bool {
        let Some(entry) = self.entry(id) else { return false };
        // Written once a pass only: this is asked for every series of every append.
        if entry.used_pass.load(Ordering::Relaxed) != self.pass {
            entry.used_pass.store(self.pass, Ordering::Relaxed);
        }
        true
    }

    /// The id of a series, a new one when it was not known.
    pub(crate) fn resolve(&mut self, labels: &Labels) -> Result<SeriesId, SeriesLimit> {
        if let Some(id) = self.id(labels) {
            self.note_use(id);
            return Ok(id);
        }
        let next = u32::try_from(self.entries.len()).ok();
        let (true, Some(next)) = (self.by_labels.len() < self.series_max, next) else {
            return Err(SeriesLimit {
                series_max: self.series_max,
            });
        };
        let group = self.open_group(labels);
        let row = group.lock().add_row(SeriesId(next));
        let used_pass = AtomicU64::new(self.pass);
        self.insert(Entry {
            id: SeriesId(next),
            labels: labels.clone(),
            group,
            row,
            used_pass,
        });
        Ok(SeriesId(next))
    }

    fn open_group(&mut self, labels: &Labels) -> Arc<Group> {
        let node: Text = labels
            .get("node")
            .or_else(|| labels.get("instance"))
            .unwrap_or("")
            .into();
        let metric: Text = labels.metric_name().unwrap_or("").into();
        let key = (Arc::clone(&node), Arc::clone(&metric));
        if let Some((group, _)) = self.open.get(&key).filter(|(_, rows)| *rows < GROUP_ROWS_MAX) {
            return Arc::clone(group);
        }
        let group = Arc::new(Group::new(GroupId(self.next_group), node, metric));
        self.add_group(Arc::clone(&group));
        self.pending_groups.push(Arc::clone(&group));
        group
    }

    /// Adds a group with no series.
    pub(crate) fn add_group(&mut self, group: Arc<Group>) {
        self.next_group = self.next_group.max(group.id.0 + 1);
        self.open.insert(
            (Arc::clone(&group.node), Arc::clone(&group.metric)),
            (Arc::clone(&group), 0),
        );
        self.groups.insert(group.id, group);
    }

    pub(crate) fn group(&self, id: GroupId) -> Option<&Arc<Group>> {
        self.groups.get(&id)
    }

    pub(crate) fn groups(&self) -> Vec<Arc<Group>> {
        self.groups.values().cloned().collect()
    }

    /// Adds a series that has its id and row; those read from the table come in the order of their ids.
    pub(crate) fn insert(&mut self, entry: Entry) {
        let at = entry.id.0 as usize;
        if self.entries.len() <= at {
            self.entries.resize_with(at + 1, || None);
        }
        for label in entry.labels.iter() {
            let values = self.postings.entry(Arc::clone(&label.name)).or_default();
            values.entry(Arc::clone(&label.value)).or_default().push(entry.id);
        }
        let key = (Arc::clone(&entry.group.node), Arc::clone(&entry.group.metric));
        if let Some((group, rows)) = self.open.get_mut(&key)
            && group.id == entry.group.id
        {
            *rows += 1;
        }
        self.by_labels.insert(entry.labels.clone(), entry.id);
        self.entries[at] = Some(entry);
    }

    pub(crate) fn len(&self) -> usize {
        self.by_labels.len()
    }

    // --- durability ---

    /// What is not in the database yet, and the mark to give to [`Index::made_durable`].
    pub(crate) fn pending(&self) -> (Pending, usize) {
        let pending = self.entries[self.pending_from..].iter().flatten();
        let series = pending
            .map(|entry| (entry.id, entry.group.id, entry.labels.clone()))
            .collect();
        (
            Pending {
                groups: self.pending_groups.clone(),
                series,
            },
            self.entries.len(),
        )
    }

    pub(crate) fn has_pending(&self) -> bool {
        self.pending_from < self.entries.len()
    }

    /// Everything so far was read from the database.
    pub(crate) fn all_durable(&mut self) {
        self.pending_from = self.entries.len();
    }

    /// Everything below the mark, and the first so many groups, are in the database.
    pub(crate) fn made_durable(&mut self, mark: usize, groups: usize) {
        self.pending_from = mark;
        self.pending_groups.drain(..groups);
    }

    // --- forgetting ---

    /// Begins a retention pass and returns its number.
    pub(crate) fn begin_pass(&mut self) -> u64 {
        self.pass += 1;
        self.epoch += 1;
        self.pass
    }

    /// What was looked up in another epoch may have been forgotten since.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Forgets series; ids are not given again while this process lives.
    pub(crate) fn remove(&mut self, ids: &[SeriesId]) {
        self.epoch += 1;
        for id in ids {
            let Some(entry) = self.entries[id.0 as usize].take() else {
                continue;
            };
            self.by_labels.remove(&entry.labels);
            for label in entry.labels.iter() {
                self.unpost(&label.name, &label.value, *id);
            }
        }
    }

    fn unpost(&mut self, name: &str, value: &str, id: SeriesId) {
        let Some(values) = self.postings.get_mut(name) else {
            return;
        };
        if let Some(ids) = values.get_mut(value) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                values.remove(value);
            }
        }
        if values.is_empty() {
            self.postings.remove(name);
        }
    }

    /// Forgets the groups that have no series left, and returns them.
    pub(crate) fn take_empty_groups(&mut self) -> Vec<GroupId> {
        let used: HashSet<GroupId> = self.entries().map(|entry| entry.group.id).collect();
        let empty: Vec<GroupId> = self
            .groups
            .keys()
            .filter(|id| !used.contains(id))
            .copied()
            .collect();
        for id in &empty {
            self.groups.remove(id);
        }
        self.open.retain(|_, (group, _)| used.contains(&group.id));
        empty
    }

    /// The series that are in the database.
    pub(crate) fn durable_entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries[..self.pending_from].iter().flatten()
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().flatten()
    }

    // --- searching ---

    /// The series for which all matchers hold, ascending by id.
    pub(crate) fn search(&self, matchers: &[CompiledMatcher]) -> Vec<&Entry> {
        let equal = |matcher: &&CompiledMatcher| is_equal(matcher.matcher());
        let postings: Option<Vec<&[SeriesId]>> = matchers
            .iter()
            .filter(equal)
            .map(|matcher| self.posting(matcher.matcher()))
            .collect();
        let Some(mut postings) = postings else {
            return Vec::new();
        };
        let rest: Vec<_> = matchers
            .iter()
            .filter(|matcher| !is_equal(matcher.matcher()))
            .collect();
        let keep = |entry: &&Entry| {
            rest.iter()
                .all(|m| m.matches(entry.labels.get(m.name()).unwrap_or("")))
        };
        postings.sort_by_key(|ids| ids.len());
        let Some((shortest, others)) = postings.split_first() else {
            let candidates = self.candidates(&rest);
            return candidates
                .iter()
                .filter_map(|id| self.entry(*id))
                .filter(keep)
                .collect();
        };
        let in_all = |id: &&SeriesId| others.iter().all(|ids| ids.binary_search(id).is_ok());
        shortest
            .iter()
            .filter(in_all)
            .filter_map(|id| self.entry(*id))
            .filter(keep)
            .collect()
    }

    fn posting(&self, matcher: &Matcher) -> Option<&[SeriesId]> {
        Some(
            self.postings
                .get(matcher.name.as_str())?
                .get(matcher.value.as_str())?,
        )
    }

    /// Without an equality: the series of the values that one matcher accepts, or all when each also accepts no value.
    fn candidates(&self, matchers: &[&CompiledMatcher]) -> Vec<SeriesId> {
        let Some(matcher) = matchers.iter().find(|matcher| !matcher.matches("")) else {
            return self.entries().map(|entry| entry.id).collect();
        };
        let values = self.postings.get(matcher.name()).into_iter().flatten();
        let mut ids: Vec<_> = values
            .filter(|(value, _)| matcher.matches(value))
            .flat_map(|(_, ids)| ids)
            .copied()
            .collect();
        ids.sort_unstable();
        ids
    }

    /// All label names, or all values of one label, sorted.
    pub(crate) fn label_names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.postings.keys().map(ToString::to_string).collect();
        names.sort_unstable();
        names
    }

    pub(crate) fn label_values(&self, name: &str) -> Vec<String> {
        self.postings
            .get(name)
            .into_iter()
            .flat_map(BTreeMap::keys)
            .map(ToString::to_string)
            .collect()
    }
}

/// `a="b"`, but not `a=""`, which holds for series without the label.
fn is_equal(matcher: &Matcher) -> bool {
    matcher.op == MatchOp::Equal && !matcher.value.is_empty()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn index() -> Index {
        let mut index = Index::new(100);
        for (metric, node, gpu) in [
            ("up", "a", ""),
            ("up", "b", ""),
            ("power", "a", "0"),
            ("power", "a", "1"),
            ("power", "b", "0"),
        ] {
            index
                .resolve(&Labels::new([("__name__", metric), ("node", node), ("gpu", gpu)]).unwrap())
                .unwrap();
        }
        index
    }

    fn check(index: &Index, matchers: &[(&str, MatchOp, &str)], expected: &[u32]) {
        let compiled = matchers.iter().map(|(name, op, value)| {
            CompiledMatcher::new(&Matcher {
                name: (*name).into(),
                op: *op,
                value: (*value).into(),
            })
            .unwrap()
        });
        let found: Vec<u32> = index
            .search(&compiled.collect::<Vec<_>>())
            .iter()
            .map(|entry| entry.id.0)
            .collect();
        assert_eq!(found, expected, "{matchers:?}");
    }

    #[test]
    fn matchers_find_what_they_say() {
        use MatchOp::{Equal, NotEqual, NotRegex, Regex};
        let index = index();
        check(&index, &[("__name__", Equal, "power")], &[3, 4, 5]);
        check(
            &index,
            &[("__name__", Equal, "power"), ("node", Equal, "a")],
            &[3, 4],
        );
        check(&index, &[("__name__", Equal, "nothing")], &[]);
        check(&index, &[("node", Regex, "a|c")], &[1, 3, 4]);
        check(&index, &[("node", NotRegex, "a|c")], &[2, 5]);
        check(&index, &[("gpu", Equal, "")], &[1, 2]);
        check(&index, &[("gpu", NotEqual, "")], &[3, 4, 5]);
        check(&index, &[("gpu", NotEqual, "0")], &[1, 2, 4]);
        check(&index, &[("gpu", Regex, ".*"), ("node", Equal, "b")], &[2, 5]);
        check(&index, &[], &[1, 2, 3, 4, 5]);
    }

    #[test]
    fn removed_series_are_found_no_more_and_come_back_under_a_new_id() {
        let mut index = index();
        let labels = index.entry(SeriesId(3)).unwrap().labels.clone();
        index.remove(&[SeriesId(3)]);
        check(&index, &[("__name__", MatchOp::Equal, "power")], &[4, 5]);
        assert_eq!(index.resolve(&labels).unwrap(), SeriesId(6));
        assert_eq!(index.label_values("gpu"), ["0", "1"]);
    }

    #[test]
    fn the_limit_is_said_with_its_number() {
        let mut index = Index::new(1);
        let labels = |name: &str| Labels::new([("__name__", name)]).unwrap();
        index.resolve(&labels("a")).unwrap();
        assert!(
            index.resolve(&labels("a")).is_ok(),
            "a known series is not a new one"
        );
        assert!(index.resolve(&labels("b")).unwrap_err().to_string().contains('1'));
    }

    #[test]
    fn groups_are_bounded() {
        let mut index = Index::new(1_000);
        for n in 0..130 {
            index
                .resolve(&Labels::new([("__name__", "x".to_owned()), ("rank", n.to_string())]).unwrap())
                .unwrap();
        }
        assert_eq!(index.groups().len(), 3);
    }
}
