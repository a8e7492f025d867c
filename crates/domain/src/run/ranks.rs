//! A compact text for many ranks: `0-7,9`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ident::Rank;

/// A set of ranks, stored as ranges, so that what thousands of ranks have in common fits in one line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct RankSet {
    /// Ranges as (first, last), both inclusive; in order, with a gap between any two.
    ranges: Vec<(u32, u32)>,
}

impl RankSet {
    /// Adds a rank.
    pub fn insert(&mut self, Rank(rank): Rank) {
        match self.ranges.last_mut() {
            Some((_, last)) if *last + 1 == rank => {
                *last = rank;
                return;
            }
            Some((_, last)) if *last + 1 > rank => {}
            _ => {
                self.ranges.push((rank, rank));
                return;
            }
        }
        if self.contains(Rank(rank)) {
            return;
        }
        let at = self.ranges.partition_point(|(_, last)| *last < rank);
        self.ranges.insert(at, (rank, rank));
        self.join(at + 1);
        self.join(at);
    }

    /// Removes a rank.
    pub fn remove(&mut self, Rank(rank): Rank) {
        let Some(at) = self.ranges.iter().position(|range| holds(*range, rank)) else {
            return;
        };
        let (first, last) = self.ranges.remove(at);
        if rank < last {
            self.ranges.insert(at, (rank + 1, last));
        }
        if first < rank {
            self.ranges.insert(at, (first, rank - 1));
        }
    }

    /// Returns true if the set contains the rank.
    #[must_use]
    pub fn contains(&self, Rank(rank): Rank) -> bool {
        self.ranges.iter().any(|range| holds(*range, rank))
    }

    /// Returns true if the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the rank if there is exactly one.
    #[must_use]
    pub fn only(&self) -> Option<Rank> {
        match self.ranges.as_slice() {
            [(first, last)] if first == last => Some(Rank(*first)),
            _ => None,
        }
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn len(&self) -> usize {
        let ranks = self
            .ranges
            .iter()
            .map(|(first, last)| (last - first) as usize + 1);
        ranks.sum()
    }

    /// Returns the ranks in order.
    pub fn iter(&self) -> impl Iterator<Item = Rank> + '_ {
        self.ranges
            .iter()
            .flat_map(|(first, last)| (*first..=*last).map(Rank))
    }

    /// Returns the ranks as part of a sentence: `rank 3`, `ranks 0–7, 9`.
    #[must_use]
    pub fn words(&self) -> String {
        let parts: Vec<String> = self
            .ranges
            .iter()
            .map(|(first, last)| match last - first {
                0 => first.to_string(),
                1 => format!("{first}, {last}"),
                _ => format!("{first}–{last}"),
            })
            .collect();
        let noun = if self.only().is_some() { "rank" } else { "ranks" };
        format!("{noun} {}", parts.join(", "))
    }

    /// Joins a range with the one before it if there is no gap between them.
    fn join(&mut self, at: usize) {
        let Some(before) = at.checked_sub(1) else { return };
        if let (Some(&(first, last)), Some(&(next, end))) = (self.ranges.get(before), self.ranges.get(at))
            && last + 1 == next
        {
            self.ranges[before] = (first, end);
            self.ranges.remove(at);
        }
    }
}

fn holds((first, last): (u32, u32), rank: u32) -> bool {
    (first..=last).contains(&rank)
}

impl FromIterator<Rank> for RankSet {
    fn from_iter<T: IntoIterator<Item = Rank>>(ranks: T) -> Self {
        let mut set = Self::default();
        ranks.into_iter().for_each(|rank| set.insert(rank));
        set
    }
}

impl fmt::Display for RankSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (first, last)) in self.ranges.iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

impl From<RankSet> for String {
    fn from(set: RankSet) -> Self {
        set.to_string()
    }
}

impl TryFrom<String> for RankSet {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = |_| format!("{text:?} is not a list of ranks; write it like 0-7,9");
        let mut set = Self::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u32, u32) = (first.parse().map_err(wrong)?, last.parse().map_err(wrong)?);
            let behind = set.ranges.last().is_none_or(|(_, before)| *before < first);
            if last < first || !behind || last == u32::MAX {
                return Err(format!(
                    "{text:?} is not a list of ranks in order; write it like 0-7,9"
                ));
            }
            set.ranges.push((first, last));
            set.join(set.ranges.len() - 1);
        }
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> RankSet {
        RankSet::try_from(text.to_owned()).expect("ranks")
    }

    #[test]
    fn consecutive_ranks_are_one_range() {
        let mut ranks = RankSet::default();
        for (rank, text) in [
            (4, "4"),
            (2, "2,4"),
            (3, "2-4"),
            (3, "2-4"),
            (0, "0,2-4"),
            (1, "0-4"),
            (9, "0-4,9"),
        ] {
            ranks.insert(Rank(rank));
            assert_eq!(ranks.to_string(), text);
            assert_eq!(set(text), ranks);
        }
        for (rank, text) in [
            (7, "0-4,9"),
            (2, "0-1,3-4,9"),
            (0, "1,3-4,9"),
            (9, "1,3-4"),
            (4, "1,3"),
            (3, "1"),
            (1, ""),
        ] {
            ranks.remove(Rank(rank));
            assert_eq!(ranks.to_string(), text);
            assert!(!ranks.contains(Rank(rank)));
        }
        assert!(ranks.is_empty());
        assert_eq!(
            [5, 6, 7].map(Rank).into_iter().collect::<RankSet>().to_string(),
            "5-7"
        );
    }

    #[test]
    fn a_sentence_names_one_or_many() {
        for (text, words) in [
            ("3", "rank 3"),
            ("0-1", "ranks 0, 1"),
            ("0-7,9", "ranks 0–7, 9"),
            ("1,3", "ranks 1, 3"),
        ] {
            assert_eq!(set(text).words(), words);
        }
    }

    #[test]
    fn what_is_no_set_of_ranks_is_refused() {
        for text in ["x", "1-", "3-2", "4,2", "0-4294967295", "1,1", "-1"] {
            assert!(RankSet::try_from(text.to_owned()).is_err(), "{text}");
        }
        assert_eq!(set("1,2-3").to_string(), "1-3");
    }
}
