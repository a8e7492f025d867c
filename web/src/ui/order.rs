//! One sort function for the whole program.
//!
//! Each type that is sorted with the library's methods adds five kilobytes to the program. This module sorts positions instead.

use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Returns the positions of `count` items in the order of `compare`; equal items keep their order.
pub(crate) fn order(count: usize, compare: &dyn Fn(usize, usize) -> Ordering) -> Vec<usize> {
    let mut places: Vec<usize> = (0..count).collect();
    places.sort_by(|a, b| compare(*a, *b));
    places
}

/// Returns the items in the order of `compare`; equal items keep their order.
pub(crate) fn sorted<T>(things: Vec<T>, compare: impl Fn(&T, &T) -> Ordering) -> Vec<T> {
    let places = order(things.len(), &|a, b| compare(&things[a], &things[b]));
    let mut things: Vec<Option<T>> = things.into_iter().map(Some).collect();
    places
        .into_iter()
        .filter_map(|place| things[place].take())
        .collect()
}

/// Returns a map of the pairs. `collect` would sort them with the library's methods.
pub(crate) fn map_of<K: Ord, V>(pairs: impl IntoIterator<Item = (K, V)>) -> BTreeMap<K, V> {
    let mut map = BTreeMap::new();
    for (key, value) in pairs {
        map.insert(key, value);
    }
    map
}

/// Returns the positions of the scores, highest first. Equal scores keep their order; NaN is last.
pub(crate) fn highest_first(scores: &[f64]) -> Vec<usize> {
    let key = |place: usize| match scores[place] {
        score if score.is_nan() => f64::NEG_INFINITY,
        score => score,
    };
    order(scores.len(), &|a, b| key(b).total_cmp(&key(a)))
}

/// Returns the value below which this share of the values lies, by rank. NaN if there are no values. NaN values are ignored.
pub(crate) fn quantile(values: &[f64], share: f64) -> f64 {
    let measured: Vec<f64> = values.iter().copied().filter(|value| !value.is_nan()).collect();
    let Some(last) = measured.len().checked_sub(1) else {
        return f64::NAN;
    };
    let places = order(measured.len(), &|a, b| measured[a].total_cmp(&measured[b]));
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place in a list of some thousand values"
    )]
    let at = (last as f64 * share).round() as usize;
    measured[places[at.min(last)]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_things_keep_their_order() {
        let things = vec![(2, 'a'), (1, 'b'), (2, 'c'), (1, 'd')];
        let letters: String = sorted(things, |a, b| a.0.cmp(&b.0))
            .into_iter()
            .map(|thing| thing.1)
            .collect();
        assert_eq!(letters, "bdac");
    }

    #[test]
    fn what_is_no_number_comes_last() {
        assert_eq!(highest_first(&[1.0, f64::NAN, 3.0, 1.0, -2.0]), [2, 0, 3, 4, 1]);
    }

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let values = [3.0, f64::NAN, 1.0, 2.0];
        for (share, expected) in [(0.0, 1.0), (0.5, 2.0), (1.0, 3.0)] {
            assert_eq!(quantile(&values, share).to_bits(), f64::to_bits(expected));
        }
        assert!(quantile(&[], 0.5).is_nan());
    }
}
