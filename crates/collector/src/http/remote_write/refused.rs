//! The refused series of a request: how many, why, and which label causes it.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;

use domain::series::Labels;

/// Number of series whose label values are counted to find the causing label. More would not change the result.
const LOOKED_AT_MAX: usize = 1_000;
/// Maximum number of characters of the example series.
const EXAMPLE_CHARS_MAX: usize = 300;

/// Why a series with valid labels is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The sender is at its limit of series.
    SenderLimit,
    /// The store is at its limit of series.
    StoreLimit,
}

/// Numbers of series and samples refused for one reason, and the first series.
#[derive(Debug, Default)]
pub(super) struct Kind {
    pub(super) series: u64,
    pub(super) samples: u64,
    pub(super) example: String,
}

/// All refused series of a request.
#[derive(Debug, Default)]
pub(super) struct Refused {
    pub(super) bad_labels: Kind,
    pub(super) over_sender_limit: Kind,
    pub(super) over_store_limit: Kind,
    /// Label name → hashes of its values.
    values: HashMap<String, HashSet<u64>>,
    looked_at: usize,
    hasher: std::hash::RandomState,
}

impl Refused {
    /// Adds a series whose labels are invalid.
    pub(super) fn labels(&mut self, problem: String, samples: u64) {
        self.bad_labels.add(|| problem, samples);
    }

    /// Adds a series beyond a limit.
    pub(super) fn limit(&mut self, refusal: Refusal, labels: &Labels, samples: u64) {
        let kind = match refusal {
            Refusal::SenderLimit => &mut self.over_sender_limit,
            Refusal::StoreLimit => &mut self.over_store_limit,
        };
        kind.add(|| labels.to_string(), samples);
        if self.looked_at < LOOKED_AT_MAX {
            self.looked_at += 1;
            for label in labels.iter() {
                let values = self.values.entry(label.name.to_string()).or_default();
                values.insert(self.hasher.hash_one(&*label.value));
            }
        }
    }

    /// Returns the label with the most values among the series beyond a limit, and the number of its values.
    pub(super) fn most_values(&self) -> Option<(&str, usize)> {
        let counts = self
            .values
            .iter()
            .map(|(name, values)| (name.as_str(), values.len()));
        counts.max_by_key(|(name, count)| (*count, std::cmp::Reverse(*name)))
    }
}

impl Kind {
    fn add(&mut self, example: impl FnOnce() -> String, samples: u64) {
        if self.series == 0 {
            self.example = example().chars().take(EXAMPLE_CHARS_MAX).collect();
        }
        self.series += 1;
        self.samples += samples;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn the_label_to_blame_is_the_one_with_the_most_values() {
        let mut refused = Refused::default();
        assert_eq!(refused.most_values(), None);
        for n in 0..LOOKED_AT_MAX * 2 {
            let (id, gpu) = (n.to_string(), (n % 8).to_string());
            let labels = Labels::new([("__name__", "x"), ("gpu", &gpu), ("request", &id)]).unwrap();
            refused.limit(Refusal::SenderLimit, &labels, 3);
        }
        assert_eq!(refused.most_values(), Some(("request", LOOKED_AT_MAX)));
        let kind = &refused.over_sender_limit;
        assert_eq!((kind.series, kind.samples), (2_000, 6_000));
        assert_eq!(kind.example, r#"x{gpu="0", request="0"}"#);
    }
}
