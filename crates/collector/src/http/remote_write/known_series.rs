//! The series that a sender has sent, by the bytes of their labels. This makes samples of known series cheap.
//!
//! ```text
//! bytes   …│ labels of 7 │ labels of 8 │ labels of 9 │…        in the order of their first appearance
//! known      7 ─after─▶ 8 ─after─▶ 9                           each stores which two series followed it last
//! ```
//! Senders repeat their series in the same order but cut their requests at other places each time. So the successor is predicted, not the
//! position. A series that matches the prediction costs one comparison of bytes that are next to the last ones in memory; only other series
//! are hashed. A hash is never trusted: the bytes are compared.

use std::collections::HashMap;
use std::hash::BuildHasher;

use foldhash::quality::RandomState;
use store::series::SeriesId;

use crate::identity_hash::IdentityHash;

/// The index that means: no series.
const NONE: u32 = u32::MAX;
/// The memory of a series in addition to its bytes: [`Entry`], and an entry of the hash table with its share of the free entries.
const OVERHEAD_BYTES: usize = size_of::<Entry>() + 32;

/// The known series of one sender.
#[derive(Debug)]
pub(super) struct KnownSeries {
    bytes: Vec<u8>,
    known: Vec<Entry>,
    by_hash: HashMap<u64, u32, IdentityHash>,
    hasher: RandomState,
    bytes_max: usize,
    /// True if a series did not fit.
    full: bool,
    /// The previous series of this request.
    last: u32,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    start: u32,
    length: u32,
    id: SeriesId,
    /// The two series that followed this one last, the latest first. Two, because two senders may share a token and send the same series
    /// differently.
    after: [u32; 2],
}

/// The index of a known series. It is valid until the memory is cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SeriesIndex(u32);

impl KnownSeries {
    /// Creates a memory of at most `bytes_max` bytes, which must be below 4 GiB.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            bytes: Vec::new(),
            known: Vec::new(),
            by_hash: HashMap::default(),
            hasher: RandomState::default(),
            bytes_max,
            full: false,
            last: NONE,
        }
    }

    /// Begins a new request, whose first series has no predecessor. The last series of the previous request says nothing: that request may
    /// come from another sender, or from another queue of the same sender.
    pub(super) fn begin(&mut self) {
        self.last = NONE;
    }

    /// Returns the expected series if `series` begins with its labels, and the length of these labels.
    #[inline]
    pub(super) fn expected(&self, series: &[u8]) -> Option<(SeriesIndex, usize)> {
        let after = self.known.get(self.last as usize)?.after;
        after.into_iter().find_map(|at| {
            let known = self.known.get(at as usize)?;
            series
                .starts_with(self.labels_of(known))
                .then_some((SeriesIndex(at), known.length as usize))
        })
    }

    /// Returns the series with these labels.
    pub(super) fn find(&self, labels: &[u8]) -> Option<SeriesIndex> {
        let at = *self.by_hash.get(&self.hasher.hash_one(labels))?;
        (self.labels_of(&self.known[at as usize]) == labels).then_some(SeriesIndex(at))
    }

    /// Adds a new series. It is not added if it does not fit, or if another series has the same hash. Then it is looked up in the store
    /// each time.
    pub(super) fn add(&mut self, labels: &[u8], id: SeriesId) -> Option<SeriesIndex> {
        if self.size() + labels.len() + OVERHEAD_BYTES > self.bytes_max {
            self.full = true;
            return None;
        }
        let at = u32::try_from(self.known.len()).ok().filter(|at| *at != NONE)?;
        let (start, length) = (
            u32::try_from(self.bytes.len()).ok()?,
            u32::try_from(labels.len()).ok()?,
        );
        let std::collections::hash_map::Entry::Vacant(slot) =
            self.by_hash.entry(self.hasher.hash_one(labels))
        else {
            return None;
        };
        slot.insert(at);
        if self.bytes.capacity() - self.bytes.len() < labels.len() {
            // By a quarter instead of doubling: this may be a hundred megabytes.
            self.bytes.reserve_exact(labels.len() + self.bytes.len() / 4);
        }
        self.bytes.extend_from_slice(labels);
        self.known.push(Entry {
            start,
            length,
            id,
            after: [NONE; 2],
        });
        Some(SeriesIndex(at))
    }

    /// Records a series as the next one of the request, and returns its id.
    #[inline]
    pub(super) fn follow(&mut self, index: SeriesIndex) -> SeriesId {
        if let Some(last) = self.known.get_mut(self.last as usize)
            && last.after[0] != index.0
        {
            last.after = [index.0, last.after[0]];
        }
        self.last = index.0;
        self.known[index.0 as usize].id
    }

    /// Returns the approximate size in bytes.
    pub(super) fn size(&self) -> usize {
        self.bytes.len() + self.known.len() * OVERHEAD_BYTES
    }

    /// Returns true if a series did not fit.
    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    /// Removes all series and frees the memory.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.bytes_max);
    }

    #[inline]
    fn labels_of(&self, known: &Entry) -> &[u8] {
        &self.bytes[known.start as usize..][..known.length as usize]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    fn filled(names: &[&str]) -> KnownSeries {
        let mut memory = KnownSeries::new(1 << 20);
        for (n, name) in names.iter().enumerate() {
            let index = memory.add(name.as_bytes(), SeriesId(n as u32)).unwrap();
            memory.follow(index);
        }
        memory
    }

    /// Sends series, and returns for each whether it matched the prediction.
    fn send(memory: &mut KnownSeries, names: &[&str]) -> Vec<bool> {
        memory.begin();
        let mut one = |name: &&str| {
            let series = format!("{name}=samples");
            let expected = memory
                .expected(series.as_bytes())
                .filter(|(_, length)| *length == name.len());
            let index = expected
                .map(|(index, _)| index)
                .or_else(|| memory.find(name.as_bytes()))
                .unwrap();
            memory.follow(index);
            expected.is_some()
        };
        names.iter().map(&mut one).collect()
    }

    #[test]
    fn requests_may_be_cut_anywhere() {
        let mut memory = filled(&["a", "b", "c", "d"]);
        assert_eq!(send(&mut memory, &["a", "b", "c"]), [false, true, true]);
        assert_eq!(send(&mut memory, &["d", "a", "b"]), [false, false, true]);
        assert_eq!(send(&mut memory, &["c", "d", "a"]), [false, true, true]);
    }

    #[test]
    fn two_orders_do_not_spoil_each_other() {
        let mut memory = filled(&["a", "b", "c", "d"]);
        send(&mut memory, &["d", "c", "b", "a"]);
        for order in [["a", "b", "c", "d"], ["d", "c", "b", "a"]] {
            assert_eq!(send(&mut memory, &order), [false, true, true, true]);
        }
    }

    #[test]
    fn a_longer_series_is_distinguished_from_its_beginning() {
        let mut memory = filled(&["a", "b", "bb"]);
        // "b" is expected, and "bb" begins with it: the caller sees that the labels continue.
        memory.begin();
        memory.follow(SeriesIndex(0));
        assert_eq!(memory.expected(b"bb=1"), Some((SeriesIndex(1), 1)));
        assert_eq!(memory.find(b"bb"), Some(SeriesIndex(2)));
        assert_eq!(memory.find(b"bbb"), None);
    }

    #[test]
    fn memory_is_bounded_and_can_be_cleared() {
        let mut memory = KnownSeries::new(10 * (OVERHEAD_BYTES + 4));
        let added =
            (1_000..2_000_u32).filter(|n| memory.add(n.to_string().as_bytes(), SeriesId(*n)).is_some());
        assert_eq!(added.count(), 10);
        assert!(memory.is_full());
        assert!(memory.size() <= 10 * (OVERHEAD_BYTES + 4));
        assert_eq!(memory.find(b"1009"), Some(SeriesIndex(9)));
        assert_eq!(memory.add(b"1009", SeriesId(1)), None, "nothing is there twice");
        memory.clear();
        assert_eq!(
            (memory.size(), memory.is_full(), memory.find(b"1009")),
            (0, false, None)
        );
        assert!(memory.add(b"1009", SeriesId(7)).is_some());
    }
}
