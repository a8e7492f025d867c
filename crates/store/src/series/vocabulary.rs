//! The vocabulary of all labels: each name once, each value of a name once, and the series that have it.
//!
//! ```text
//! Name   text   values  "0" → pair 4, "1" → pair 9, …  sorted     series  all that have the label
//! Pair   name   text    the series with exactly this value
//! ```
//! The labels of a series are then a few pair ids of four bytes each.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use domain::series::Label;
use roaring::RoaringBitmap;

use super::postings::{Postings, bitmap_bytes};

type Text = Arc<str>;

/// A label: a name with a value. The id is used again when no series has the label any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PairId(u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct NameId(u32);

#[derive(Debug, Default)]
pub(crate) struct Vocabulary {
    by_name: HashMap<Text, NameId>,
    names: Vec<Name>,
    free_names: Vec<NameId>,
    pairs: Vec<Pair>,
    free_pairs: Vec<PairId>,
}

/// One label name.
#[derive(Debug)]
pub(crate) struct Name {
    text: Text,
    values: BTreeMap<Text, PairId>,
    series: RoaringBitmap,
}

#[derive(Debug)]
struct Pair {
    name: NameId,
    value: Text,
    series: Postings,
}

// === impl Vocabulary: filling ===

impl Vocabulary {
    /// Records that a series has a label.
    pub(crate) fn add(&mut self, name: &str, value: &str, series: u32) -> PairId {
        let name = self.name_id(name);
        if let Some(pair) = self.names[name.0 as usize].values.get(value).copied() {
            self.add_to(pair, series);
            return pair;
        }
        let text: Text = value.into();
        let pair = Pair {
            name,
            value: Arc::clone(&text),
            series: Postings::One(series),
        };
        let id = place(&mut self.pairs, self.free_pairs.pop().map(|id| id.0), pair);
        let name = &mut self.names[name.0 as usize];
        name.values.insert(text, PairId(id));
        name.series.insert(series);
        PairId(id)
    }

    /// Records that a series has a label that is already in the vocabulary.
    pub(crate) fn add_to(&mut self, pair: PairId, series: u32) {
        let pair = &mut self.pairs[pair.0 as usize];
        pair.series.insert(series);
        self.names[pair.name.0 as usize].series.insert(series);
    }

    fn name_id(&mut self, name: &str) -> NameId {
        if let Some(id) = self.by_name.get(name) {
            return *id;
        }
        let text: Text = name.into();
        let new = Name {
            text: Arc::clone(&text),
            values: BTreeMap::new(),
            series: RoaringBitmap::new(),
        };
        let id = NameId(place(&mut self.names, self.free_names.pop().map(|id| id.0), new));
        self.by_name.insert(text, id);
        id
    }

    /// Records that a series no longer has a label. Values and names without series are removed.
    pub(crate) fn remove(&mut self, pair: PairId, series: u32) {
        let Pair {
            name: name_id,
            value,
            series: postings,
        } = &mut self.pairs[pair.0 as usize];
        let name = &mut self.names[name_id.0 as usize];
        name.series.remove(series);
        if !postings.remove(series) {
            return;
        }
        name.values.remove(&**value);
        self.free_pairs.push(pair);
        if name.values.is_empty() {
            self.by_name.remove(&name.text);
            self.free_names.push(*name_id);
        }
    }
}

/// Puts an item into a free place or at the end.
fn place<T>(all: &mut Vec<T>, free: Option<u32>, thing: T) -> u32 {
    if let Some(at) = free {
        all[at as usize] = thing;
        return at;
    }
    all.push(thing);
    u32::try_from(all.len() - 1)
        .expect("there are fewer labels than label values of series, whose number is a u32")
}

// === impl Vocabulary: reading ===

impl Vocabulary {
    pub(crate) fn label(&self, pair: PairId) -> Label {
        let (name, value) = self.texts(pair);
        Label {
            name: Arc::clone(name),
            value: Arc::clone(value),
        }
    }

    pub(crate) fn texts(&self, pair: PairId) -> (&Text, &Text) {
        let pair = &self.pairs[pair.0 as usize];
        (&self.names[pair.name.0 as usize].text, &pair.value)
    }

    pub(crate) fn postings(&self, pair: PairId) -> &Postings {
        &self.pairs[pair.0 as usize].series
    }

    pub(crate) fn name(&self, name: &str) -> Option<&Name> {
        let id = self.by_name.get(name)?;
        Some(&self.names[id.0 as usize])
    }

    /// Returns roughly the memory of all names, values and postings in bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        // An `Arc<str>` has two counters and the text. A sorted map fills its nodes to about two thirds.
        let text = |text: &Text| text.len() + 2 * size_of::<usize>();
        let entry = size_of::<(Text, PairId)>() * 3 / 2;
        let of_pair = |pair: &Pair| text(&pair.value) + entry + pair.series.heap_bytes();
        let of_name = |name: &Name| text(&name.text) + bitmap_bytes(&name.series);
        self.pairs.capacity() * size_of::<Pair>()
            + self.pairs.iter().map(of_pair).sum::<usize>()
            + self.names.iter().map(of_name).sum::<usize>()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &Text> {
        self.by_name.keys()
    }
}

impl Name {
    /// Returns the series that have the label.
    pub(crate) fn series(&self) -> &RoaringBitmap {
        &self.series
    }

    pub(crate) fn values_len(&self) -> u64 {
        self.values.len() as u64
    }

    pub(crate) fn pair(&self, value: &str) -> Option<PairId> {
        self.values.get(value).copied()
    }

    /// Returns the values with a prefix, sorted.
    pub(crate) fn values_from<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a Text, PairId)> {
        self.values
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(move |(value, _)| value.starts_with(prefix))
            .map(|(value, pair)| (value, *pair))
    }
}
