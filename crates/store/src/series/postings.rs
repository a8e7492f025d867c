//! The series with one label value, ascending.
//!
//! ```text
//! One    a unique value: `uuid`, `pid`
//! Few    the thirty metrics of a GPU
//! Many   a metric, a node: two bytes or one bit per series
//! ```

use roaring::RoaringBitmap;

/// With more series than this, a bitmap is smaller.
const FEW_MAX: usize = 64;

#[derive(Debug)]
pub(crate) enum Postings {
    One(u32),
    Few(Vec<u32>),
    Many(RoaringBitmap),
}

impl Postings {
    pub(crate) fn insert(&mut self, id: u32) {
        match self {
            Self::One(one) if *one == id => {}
            Self::One(one) => *self = Self::Few(vec![(*one).min(id), (*one).max(id)]),
            Self::Few(few) => {
                if let Err(at) = few.binary_search(&id) {
                    few.insert(at, id);
                }
                if few.len() > FEW_MAX {
                    *self = Self::Many(few.iter().copied().collect());
                }
            }
            Self::Many(many) => {
                many.insert(id);
            }
        }
    }

    /// Returns roughly the memory in bytes beyond its own size.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Self::One(_) => 0,
            Self::Few(few) => few.capacity() * size_of::<u32>(),
            Self::Many(many) => bitmap_bytes(many),
        }
    }

    /// Removes a series. Returns true if none is left.
    pub(crate) fn remove(&mut self, id: u32) -> bool {
        match self {
            Self::One(one) => *one == id,
            Self::Few(few) => {
                few.retain(|other| *other != id);
                few.is_empty()
            }
            Self::Many(many) => {
                many.remove(id);
                many.is_empty()
            }
        }
    }
}

/// Returns roughly the memory of a bitmap in bytes.
pub(crate) fn bitmap_bytes(bitmap: &RoaringBitmap) -> usize {
    /// The overhead of a container beside its numbers.
    const PART_BYTES: u64 = 48;
    let parts = bitmap.statistics();
    let numbers =
        parts.n_bytes_array_containers + parts.n_bytes_run_containers + parts.n_bytes_bitset_containers;
    usize::try_from(u64::from(parts.n_containers) * PART_BYTES + numbers).unwrap_or(usize::MAX)
}

/// Returns the series of several values.
pub(crate) fn union<'a>(all: impl Iterator<Item = &'a Postings>) -> RoaringBitmap {
    let mut union = RoaringBitmap::new();
    let mut ids = Vec::new();
    for postings in all {
        match postings {
            Postings::One(id) => ids.push(*id),
            Postings::Few(few) => ids.extend_from_slice(few),
            Postings::Many(many) => union |= many,
        }
    }
    // Inserting a hundred thousand ids one by one into a bitmap would move its containers repeatedly.
    ids.sort_unstable();
    union |= ids.into_iter().collect::<RoaringBitmap>();
    union
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_returns_its_values() {
        for count in [1_u32, 2, 64, 65, 5_000] {
            let ids: Vec<u32> = (0..count).map(|n| n * 7 % 5_003).collect();
            let mut postings = Postings::One(ids[0]);
            ids.iter().for_each(|id| postings.insert(*id));
            let expected: RoaringBitmap = ids.iter().copied().collect();
            assert_eq!(union([&postings].into_iter()), expected, "{count}");
            let (last, others) = ids.split_last().expect("at least one");
            assert!(others.iter().all(|id| !postings.remove(*id)), "{count}");
            assert!(postings.remove(*last), "{count}");
        }
    }
}
