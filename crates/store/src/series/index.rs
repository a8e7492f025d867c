//! The index of all series: by labels, by label value, and by id.
//!
//! ```text
//! id → Record  16 bytes: group and row (where its samples are), where its labels begin
//! cells        the labels of all series, one series after another, four bytes per label (vocabulary.rs)
//! by_labels    a hash of the labels → id
//! ```
//! The index is in memory and is filled from the table at start. A new series is visible at once. The committer makes it
//! durable before the first batch that contains it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use domain::series::Labels;
use domain::series::matcher::CompiledMatcher;
use hashbrown::{DefaultHashBuilder, HashTable};
use roaring::RoaringBitmap;

use super::group_id::GroupId;
use super::head::Group;
use super::postings::bitmap_bytes;
use super::vocabulary::{PairId, Vocabulary};
use super::{SeriesId, SeriesLimit};

/// The maximum number of series in a group. The GPUs of a node (8) fit many times, and no chunk exceeds a few hundred
/// kilobytes.
const GROUP_ROWS_MAX: u32 = 64;

type Text = Arc<str>;

/// A series and the position of its samples.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) id: SeriesId,
    pub(crate) group: &'a Arc<Group>,
    pub(crate) row: u32,
    record: &'a Record,
    index: &'a Index,
}

/// The index.
#[derive(Debug)]
pub(crate) struct Index {
    series_max: usize,
    /// By id; ids start at 1.
    records: Vec<Record>,
    cells: Vec<PairId>,
    /// The number of cells that belong to removed series.
    dead_cells: usize,
    by_labels: HashTable<Slot>,
    hasher: DefaultHashBuilder,
    known: RoaringBitmap,
    words: Vocabulary,
    groups: BTreeMap<GroupId, Arc<Group>>,
    /// The group that gets the next new series of a node and metric.
    open: HashMap<(Text, Text), Arc<Group>>,
    /// The names of nodes and metrics; many groups share one name.
    group_texts: HashSet<Text>,
    next_group: i64,
    pending_from: usize,
    pending_groups: Vec<Arc<Group>>,
    /// Changes at each retention pass and whenever series are removed.
    epoch: u64,
}

#[derive(Debug)]
struct Record {
    /// `None` if the series was removed.
    group: Option<Arc<Group>>,
    cells_at: u32,
    row: u16,
    cells: u8,
    /// The number of retention passes since the series was last resolved or appended to.
    idle_passes: AtomicU8,
}

/// An entry of the table by labels.
#[derive(Debug, Clone, Copy)]
struct Slot {
    /// Stored so that the table can grow without reading labels.
    hash: u32,
    id: u32,
}

impl Record {
    /// Returns the placeholder for an id without a series.
    fn none() -> Self {
        Self {
            group: None,
            cells_at: 0,
            row: 0,
            cells: 0,
            idle_passes: AtomicU8::new(0),
        }
    }
}

impl<'a> Entry<'a> {
    pub(crate) fn labels(&self) -> Labels {
        Labels::from_sorted(
            self.index
                .cells_of(self.record)
                .iter()
                .map(|pair| self.index.words.label(*pair)),
        )
    }

    pub(crate) fn value(&self, name: &str) -> Option<&'a Text> {
        self.index.value(self.id.0, name)
    }

    /// Returns the number of retention passes since the series was last resolved or appended to.
    pub(crate) fn idle_passes(&self) -> u8 {
        self.record.idle_passes.load(Ordering::Relaxed)
    }
}

// === impl Index: naming ===

impl Index {
    pub(crate) fn new(series_max: usize) -> Self {
        Self {
            series_max,
            records: vec![Record::none()],
            cells: Vec::new(),
            dead_cells: 0,
            by_labels: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            known: RoaringBitmap::new(),
            words: Vocabulary::default(),
            groups: BTreeMap::new(),
            open: HashMap::new(),
            group_texts: HashSet::new(),
            next_group: 1,
            pending_from: 1,
            pending_groups: Vec::new(),
            epoch: 0,
        }
    }

    pub(crate) fn id(&self, labels: &Labels) -> Option<SeriesId> {
        let hash = self.hash(texts(labels));
        let slot = self.by_labels.find(spread(hash), |slot| {
            slot.hash == hash && self.is_named(slot.id, labels)
        })?;
        Some(SeriesId(slot.id))
    }

    fn is_named(&self, id: u32, labels: &Labels) -> bool {
        let cells = self.cells_of(&self.records[id as usize]);
        let same = |(pair, label): (&PairId, &domain::series::Label)| {
            let (name, value) = self.words.texts(*pair);
            *name == label.name && *value == label.value
        };
        cells.len() == labels.len() && cells.iter().zip(labels.iter()).all(same)
    }

    fn hash<'a>(&self, labels: impl Iterator<Item = (&'a str, &'a str)>) -> u32 {
        let mut hasher = self.hasher.build_hasher();
        labels.for_each(|label| label.hash(&mut hasher));
        hasher.finish() as u32
    }

    pub(crate) fn entry(&self, id: SeriesId) -> Option<Entry<'_>> {
        let record = self.records.get(id.0 as usize)?;
        Some(Entry {
            id,
            group: record.group.as_ref()?,
            row: u32::from(record.row),
            record,
            index: self,
        })
    }

    /// Records that a series is still in use. Returns true if it exists.
    pub(crate) fn note_use(&self, id: SeriesId) -> bool {
        let Some(entry) = self.entry(id) else { return false };
        // Written only once per pass, because this runs for every series of every append.
        if entry.idle_passes() != 0 {
            entry.record.idle_passes.store(0, Ordering::Relaxed);
        }
        true
    }

    /// Returns the id of a series. New labels get a new id.
    pub(crate) fn resolve(&mut self, labels: &Labels) -> Result<SeriesId, SeriesLimit> {
        if let Some(id) = self.id(labels) {
            self.note_use(id);
            return Ok(id);
        }
        let next = u32::try_from(self.records.len()).ok();
        let (true, Some(next)) = (self.len() < self.series_max, next) else {
            return Err(SeriesLimit {
                series_max: self.series_max,
            });
        };
        let group = self.open_group(labels);
        let row = group.lock().add_row(SeriesId(next));
        let cells_at = self.cells.len();
        for (name, value) in texts(labels) {
            let pair = self.words.add(name, value, next);
            self.cells.push(pair);
        }
        let hash = self.hash(texts(labels));
        self.insert(SeriesId(next), (group, row), cells_at, hash);
        Ok(SeriesId(next))
    }

    fn open_group(&mut self, labels: &Labels) -> Arc<Group> {
        let node = labels
            .get("node")
            .or_else(|| labels.get("instance"))
            .unwrap_or("");
        let metric = labels.metric_name().unwrap_or("");
        let key = (self.group_text(node), self.group_text(metric));
        if let Some(group) = self.open.get(&key) {
            return Arc::clone(group);
        }
        let group = Arc::new(Group::new(GroupId(self.next_group), key.0, key.1));
        self.add_group(Arc::clone(&group));
        self.pending_groups.push(Arc::clone(&group));
        group
    }

    /// Returns the shared allocation of a node's or metric's name.
    pub(crate) fn group_text(&mut self, text: &str) -> Text {
        if let Some(known) = self.group_texts.get(text) {
            return Arc::clone(known);
        }
        let new: Text = text.into();
        self.group_texts.insert(Arc::clone(&new));
        new
    }

    /// Adds a group without series.
    pub(crate) fn add_group(&mut self, group: Arc<Group>) {
        self.next_group = self.next_group.max(group.id.0 + 1);
        self.open.insert(
            (Arc::clone(&group.node), Arc::clone(&group.metric)),
            Arc::clone(&group),
        );
        self.groups.insert(group.id, group);
    }

    pub(crate) fn group(&self, id: GroupId) -> Option<&Arc<Group>> {
        self.groups.get(&id)
    }

    pub(crate) fn groups(&self) -> Vec<Arc<Group>> {
        self.groups.values().cloned().collect()
    }

    /// Reserves memory for this many more series.
    pub(crate) fn reserve(&mut self, series: usize) {
        self.records.reserve_exact(series);
        self.by_labels.reserve(series, |slot| spread(slot.hash));
    }

    /// Adds a series with a given id and row; its labels are sorted. Neighbours in the table have most labels in common, so
    /// each label is first compared with the label at the same position of the previous series.
    pub(crate) fn restore(&mut self, id: SeriesId, place: (Arc<Group>, u32), labels: &[(&str, &str)]) {
        let before = self.cells.len() - self.last_cells();
        let cells_at = self.cells.len();
        for (at, (name, value)) in labels.iter().enumerate() {
            let likely = self.cells[before..cells_at].get(at).copied();
            let same = likely.filter(|pair| {
                let (known_name, known_value) = self.words.texts(*pair);
                **known_name == **name && **known_value == **value
            });
            let pair = match same {
                Some(pair) => {
                    self.words.add_to(pair, id.0);
                    pair
                }
                None => self.words.add(name, value, id.0),
            };
            self.cells.push(pair);
        }
        let hash = self.hash(labels.iter().copied());
        self.insert(id, place, cells_at, hash);
    }

    fn last_cells(&self) -> usize {
        self.records.last().map_or(0, |record| usize::from(record.cells))
    }

    fn insert(&mut self, id: SeriesId, (group, row): (Arc<Group>, u32), cells_at: usize, hash: u32) {
        if row + 1 >= GROUP_ROWS_MAX {
            self.close_group(&group);
        }
        let at = id.0 as usize;
        if self.records.len() <= at {
            self.records.resize_with(at + 1, Record::none);
        }
        self.records[at] = Record {
            group: Some(group),
            cells_at: u32::try_from(cells_at).expect("a million series have fewer than 2^32 labels"),
            row: u16::try_from(row).expect("a group has at most 64 rows"),
            cells: u8::try_from(self.cells.len() - cells_at).expect("a series has at most 64 labels"),
            idle_passes: AtomicU8::new(0),
        };
        self.known.insert(id.0);
        let slot = Slot { hash, id: id.0 };
        self.by_labels
            .insert_unique(spread(hash), slot, |slot| spread(slot.hash));
    }

    /// Marks a group as full: it gets no more series.
    fn close_group(&mut self, group: &Arc<Group>) {
        let key = (Arc::clone(&group.node), Arc::clone(&group.metric));
        if self.open.get(&key).is_some_and(|open| open.id == group.id) {
            self.open.remove(&key);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_labels.len()
    }

    /// Returns roughly the memory of the index in bytes, without the groups: they belong to the head.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.records.capacity() * size_of::<Record>()
            + self.cells.capacity() * size_of::<PairId>()
            + self.by_labels.allocation_size()
            + bitmap_bytes(&self.known)
            + self.words.heap_bytes()
    }

    fn cells_of(&self, record: &Record) -> &[PairId] {
        let at = record.cells_at as usize;
        &self.cells[at..at + usize::from(record.cells)]
    }
}

fn texts(labels: &Labels) -> impl Iterator<Item = (&str, &str)> {
    labels.iter().map(|label| (&*label.name, &*label.value))
}

/// Spreads the hash over all bits: the hash table also uses the upper bits.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

// === impl Index: durability ===

impl Index {
    /// Returns what is not in the database yet: groups, and the records of series.
    pub(crate) fn pending(&self) -> (Vec<Arc<Group>>, Range<usize>) {
        (self.pending_groups.clone(), self.pending_from..self.records.len())
    }

    /// Returns series with their labels. They take ten times the memory in this form, so request them in small ranges.
    pub(crate) fn named(&self, records: Range<usize>) -> Vec<(SeriesId, GroupId, Labels)> {
        self.entries_in(records)
            .map(|entry| (entry.id, entry.group.id, entry.labels()))
            .collect()
    }

    pub(crate) fn has_pending(&self) -> bool {
        self.pending_from < self.records.len()
    }

    /// Marks everything so far as read from the database.
    pub(crate) fn all_durable(&mut self) {
        self.pending_from = self.records.len();
    }

    /// Marks all records below `record`, and the first `groups` pending groups, as stored in the database.
    pub(crate) fn made_durable(&mut self, record: usize, groups: usize) {
        self.pending_from = record;
        self.pending_groups.drain(..groups);
    }
}

// === impl Index: forgetting ===

impl Index {
    /// Begins a retention pass: every series counts as unused until it is used again.
    pub(crate) fn begin_pass(&mut self) {
        self.epoch += 1;
        for record in &mut self.records {
            let idle = record.idle_passes.get_mut();
            *idle = idle.saturating_add(1);
        }
    }

    /// Returns the epoch. Results of lookups from another epoch may have been removed since.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Removes series. Their ids are not used again while this process runs.
    pub(crate) fn remove(&mut self, ids: &[SeriesId]) {
        self.epoch += 1;
        for id in ids.iter().map(|id| id.0) {
            let Some(record) = self.records.get_mut(id as usize) else {
                continue;
            };
            if record.group.take().is_none() {
                continue;
            }
            let at = record.cells_at as usize;
            let cells = at..at + usize::from(record.cells);
            let pairs = &self.cells[cells.clone()];
            let names = pairs.iter().map(|pair| self.words.texts(*pair));
            let hash = self.hash(names.map(|(name, value)| (&**name, &**value)));
            if let Ok(slot) = self.by_labels.find_entry(spread(hash), |slot| slot.id == id) {
                slot.remove();
            }
            self.dead_cells += cells.len();
            for cell in cells {
                self.words.remove(self.cells[cell], id);
            }
            self.known.remove(id);
        }
        if self.dead_cells > self.cells.len() / 2 {
            self.drop_dead_cells();
        }
    }

    fn drop_dead_cells(&mut self) {
        let mut cells = Vec::with_capacity(self.cells.len() - self.dead_cells);
        for record in self.records.iter_mut().filter(|record| record.group.is_some()) {
            let at = record.cells_at as usize;
            record.cells_at = u32::try_from(cells.len()).expect("there are fewer than before");
            cells.extend_from_slice(&self.cells[at..at + usize::from(record.cells)]);
        }
        (self.cells, self.dead_cells) = (cells, 0);
    }

    /// Removes the groups without series, and returns their ids.
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
        self.open.retain(|_, group| used.contains(&group.id));
        empty
    }

    /// Returns the series that are in the database.
    pub(crate) fn durable_entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.entries_in(0..self.pending_from)
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.entries_in(0..self.records.len())
    }

    fn entries_in(&self, ids: std::ops::Range<usize>) -> impl Iterator<Item = Entry<'_>> {
        ids.filter_map(|id| self.entry(SeriesId(u32::try_from(id).ok()?)))
    }
}

// === impl Index: searching ===

impl Index {
    /// Returns the series that match all matchers, ascending by id.
    pub(crate) fn search(&self, matchers: &[CompiledMatcher]) -> Vec<Entry<'_>> {
        self.entries_of(&self.find(matchers))
    }

    /// Returns those of these series that still exist.
    pub(crate) fn entries_of(&self, found: &RoaringBitmap) -> Vec<Entry<'_>> {
        found.iter().filter_map(|id| self.entry(SeriesId(id))).collect()
    }

    /// Returns the ids of all series.
    pub(crate) fn known(&self) -> &RoaringBitmap {
        &self.known
    }

    pub(crate) fn words(&self) -> &Vocabulary {
        &self.words
    }

    /// Returns the value of a label of a series.
    pub(crate) fn value(&self, id: u32, name: &str) -> Option<&Text> {
        let cells = self.cells_of(self.records.get(id as usize)?);
        let mut labels = cells.iter().map(|pair| self.words.texts(*pair));
        labels.find(|(text, _)| ***text == *name).map(|(_, value)| value)
    }

    /// Returns all label names, sorted.
    pub(crate) fn label_names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.words.names().map(ToString::to_string).collect();
        names.sort_unstable();
        names
    }

    pub(crate) fn label_values(&self, name: &str) -> Vec<String> {
        let values = self
            .words
            .name(name)
            .into_iter()
            .flat_map(|name| name.values_from(""));
        values.map(|(value, _)| value.to_string()).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use domain::series::Matcher;

    use super::*;

    fn labels(metric: &str, n: usize) -> Labels {
        Labels::new([("__name__", metric.to_owned()), ("n", n.to_string())]).unwrap()
    }

    fn found(index: &Index, metric: &str) -> Vec<u32> {
        let matcher = CompiledMatcher::new(&Matcher::equal("__name__", metric)).unwrap();
        index.search(&[matcher]).iter().map(|entry| entry.id.0).collect()
    }

    #[test]
    fn removed_series_are_not_found_and_get_a_new_id_when_they_return() {
        let mut index = Index::new(100);
        let ids: Vec<_> = (0..3)
            .map(|n| index.resolve(&labels("power", n)).unwrap())
            .collect();
        index.remove(&ids[..1]);
        assert_eq!(index.id(&labels("power", 0)), None);
        assert_eq!(found(&index, "power"), [2, 3]);
        assert_eq!(index.resolve(&labels("power", 0)).unwrap(), SeriesId(4));
        assert_eq!(index.entry(SeriesId(4)).unwrap().labels(), labels("power", 0));
        assert_eq!(index.label_values("n"), ["0", "1", "2"]);
        index.remove(&[2, 3, 4, 4].map(SeriesId));
        assert_eq!((index.len(), index.label_names()), (0, Vec::new()));
    }

    #[test]
    fn places_of_removed_labels_are_used_again() {
        let mut index = Index::new(1_000);
        for round in 0..20 {
            let ids: Vec<_> = (0..50)
                .map(|n| index.resolve(&labels(&format!("m{round}"), n)).unwrap())
                .collect();
            let kept = index.resolve(&labels("kept", round)).unwrap();
            index.remove(&ids);
            assert_eq!(index.entry(kept).unwrap().labels(), labels("kept", round));
        }
        assert_eq!(index.id(&labels("kept", 3)), Some(SeriesId(204)));
        assert!(index.cells.len() <= 2 * (20 + 50) * 2, "{}", index.cells.len());
        assert_eq!(found(&index, "kept").len(), 20);
    }

    #[test]
    fn series_that_are_not_used_become_idle() {
        let mut index = Index::new(10);
        let id = index.resolve(&labels("power", 0)).unwrap();
        (0..3).for_each(|_| index.begin_pass());
        assert_eq!(index.entry(id).unwrap().idle_passes(), 3);
        assert!(index.note_use(id) && !index.note_use(SeriesId(9)));
        assert_eq!(index.entry(id).unwrap().idle_passes(), 0);
    }

    #[test]
    fn the_error_names_the_limit() {
        let mut index = Index::new(1);
        index.resolve(&labels("a", 0)).unwrap();
        assert!(
            index.resolve(&labels("a", 0)).is_ok(),
            "a known series is not a new one"
        );
        let refused = index.resolve(&labels("b", 0)).unwrap_err();
        assert!(refused.to_string().contains('1'));
    }

    #[test]
    fn groups_are_bounded() {
        let mut index = Index::new(1_000);
        for n in 0..130 {
            index.resolve(&labels("x", n)).unwrap();
        }
        assert_eq!(index.groups().len(), 3);
    }
}
