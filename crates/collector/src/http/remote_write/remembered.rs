//! The series a sender has sent, by the bytes that name them: what makes a sample cheap.
//!
//! ```text
//! bytes   …│ labels of 7 │ labels of 8 │ labels of 9 │…        in the order they first came
//! known      7 ─after─▶ 8 ─after─▶ 9                           each one says which two followed it last
//! ```
//! Senders repeat their series in the same order and cut their requests elsewhere each time, so what is predicted is the
//! successor, not the position. A series that comes as predicted costs one comparison of bytes that lie next to the last one's;
//! only others are hashed. A hash is never believed: the bytes are compared.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};

use foldhash::quality::RandomState;
use store::series::SeriesId;

/// No series.
const NONE: u32 = u32::MAX;
/// What a series takes beside its bytes: [`Known`], and an entry of the table with its share of the free ones.
const OVERHEAD_BYTES: usize = size_of::<Known>() + 32;

/// What is remembered of one sender.
#[derive(Debug)]
pub(super) struct Remembered {
    bytes: Vec<u8>,
    known: Vec<Known>,
    by_hash: HashMap<u64, u32, BuildHasherDefault<AsItIs>>,
    hasher: RandomState,
    bytes_max: usize,
    /// Whether something did not find room.
    full: bool,
    /// The series before the next one, in this request.
    last: u32,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    start: u32,
    length: u32,
    id: SeriesId,
    /// The two that followed it last, the latest first. Two, because two senders may share a token and send the same series differently.
    after: [u32; 2],
}

/// A place in the memory; good until the memory is cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place(u32);

impl Remembered {
    /// Remembers at most so many bytes, which must be below 4 GiB.
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

    /// A new request: its first series follows none. (What the request before ended with says nothing: it may be another
    /// sender's, or of another queue of this one.)
    pub(super) fn begin(&mut self) {
        self.last = NONE;
    }

    /// The series expected now, when `series` begins with its labels, and how long those are.
    #[inline]
    pub(super) fn expected(&self, series: &[u8]) -> Option<(Place, usize)> {
        let after = self.known.get(self.last as usize)?.after;
        after.into_iter().find_map(|at| {
            let known = self.known.get(at as usize)?;
            series
                .starts_with(self.labels_of(known))
                .then_some((Place(at), known.length as usize))
        })
    }

    /// The series of these labels.
    pub(super) fn find(&self, labels: &[u8]) -> Option<Place> {
        let at = *self.by_hash.get(&self.hasher.hash_one(labels))?;
        (self.labels_of(&self.known[at as usize]) == labels).then_some(Place(at))
    }

    /// Remembers a series that was not there. Without room, or when another one has the same hash, it is not: it will be looked
    /// up in the store each time.
    pub(super) fn add(&mut self, labels: &[u8], id: SeriesId) -> Option<Place> {
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
            // By a quarter, not by doubling: this may be a hundred megabytes.
            self.bytes.reserve_exact(labels.len() + self.bytes.len() / 4);
        }
        self.bytes.extend_from_slice(labels);
        self.known.push(Known {
            start,
            length,
            id,
            after: [NONE; 2],
        });
        Some(Place(at))
    }

    /// Takes a series as the next one of the request; returns its id.
    #[inline]
    pub(super) fn follow(&mut self, place: Place) -> SeriesId {
        if let Some(last) = self.known.get_mut(self.last as usize)
            && last.after[0] != place.0
        {
            last.after = [place.0, last.after[0]];
        }
        self.last = place.0;
        self.known[place.0 as usize].id
    }

    /// The bytes it takes, about.
    pub(super) fn size(&self) -> usize {
        self.bytes.len() + self.known.len() * OVERHEAD_BYTES
    }

    /// Whether there was a series that did not find room.
    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    /// Forgets all, and gives the memory back.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.bytes_max);
    }

    #[inline]
    fn labels_of(&self, known: &Known) -> &[u8] {
        &self.bytes[known.start as usize..][..known.length as usize]
    }
}

/// Passes on a hash that is one already.
#[derive(Debug, Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("the keys are u64");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    fn filled(names: &[&str]) -> Remembered {
        let mut memory = Remembered::new(1 << 20);
        for (n, name) in names.iter().enumerate() {
            let place = memory.add(name.as_bytes(), SeriesId(n as u32)).unwrap();
            memory.follow(place);
        }
        memory
    }

    /// Sends series and says which came as expected.
    fn send(memory: &mut Remembered, names: &[&str]) -> Vec<bool> {
        memory.begin();
        let mut one = |name: &&str| {
            let series = format!("{name}=samples");
            let expected = memory
                .expected(series.as_bytes())
                .filter(|(_, length)| *length == name.len());
            let place = expected
                .map(|(place, _)| place)
                .or_else(|| memory.find(name.as_bytes()))
                .unwrap();
            memory.follow(place);
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
    fn a_longer_series_is_told_from_its_beginning() {
        let mut memory = filled(&["a", "b", "bb"]);
        // "b" is expected and "bb" begins with it: whoever asks sees that the labels go on.
        memory.begin();
        memory.follow(Place(0));
        assert_eq!(memory.expected(b"bb=1"), Some((Place(1), 1)));
        assert_eq!(memory.find(b"bb"), Some(Place(2)));
        assert_eq!(memory.find(b"bbb"), None);
    }

    #[test]
    fn memory_is_bounded_and_can_be_cleared() {
        let mut memory = Remembered::new(10 * (OVERHEAD_BYTES + 4));
        let added =
            (1_000..2_000_u32).filter(|n| memory.add(n.to_string().as_bytes(), SeriesId(*n)).is_some());
        assert_eq!(added.count(), 10);
        assert!(memory.is_full());
        assert!(memory.size() <= 10 * (OVERHEAD_BYTES + 4));
        assert_eq!(memory.find(b"1009"), Some(Place(9)));
        assert_eq!(memory.add(b"1009", SeriesId(1)), None, "nothing is there twice");
        memory.clear();
        assert_eq!(
            (memory.size(), memory.is_full(), memory.find(b"1009")),
            (0, false, None)
        );
        assert!(memory.add(b"1009", SeriesId(7)).is_some());
    }
}
