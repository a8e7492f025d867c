//! The difference of each GPU to its peers.

use crate::ui::highest_first;

/// Minimum size of a group: with two values, neither is the normal one.
const PEERS_MIN: usize = 3;

/// Returns the difference of each value to the median of its group. NaN if there is no value or the group is too small.
pub(super) fn differences(values: &[f64], groups: &[u32]) -> Vec<f64> {
    let count = groups.iter().max().map_or(0, |last| *last as usize + 1);
    let mut members: Vec<Vec<f64>> = vec![vec![]; count];
    for (value, group) in values.iter().zip(groups) {
        if !value.is_nan() {
            members[*group as usize].push(*value);
        }
    }
    let medians: Vec<f64> = members.iter().map(|values| median(values)).collect();
    let pairs = values.iter().zip(groups);
    pairs
        .map(|(value, group)| value - medians[*group as usize])
        .collect()
}

fn median(values: &[f64]) -> f64 {
    if values.len() < PEERS_MIN {
        return f64::NAN;
    }
    let order = highest_first(values);
    let middle = values.len() / 2;
    let upper = values[order[middle]];
    if values.len().is_multiple_of(2) {
        f64::midpoint(values[order[middle - 1]], upper)
    } else {
        upper
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_compared_with_its_own_group() {
        let values = [0.9, 0.8, 0.4, 0.1, 0.1, 0.1, 0.1];
        let differences = differences(&values, &[0, 0, 0, 1, 1, 1, 1]);
        let points: Vec<i64> = differences
            .iter()
            .map(|one| (one * 100.0).round() as i64)
            .collect();
        assert_eq!(points, [10, 0, -40, 0, 0, 0, 0]);
    }

    #[test]
    fn an_even_group_has_its_median_between_two() {
        let points = differences(&[1.0, 2.0, 4.0, 9.0], &[0, 0, 0, 0]);
        assert_eq!(points, [-2.0, -1.0, 1.0, 6.0]);
    }

    #[test]
    fn two_have_no_usual_value_and_what_is_missing_stays_missing() {
        assert!(differences(&[0.1, 0.9], &[0, 0]).iter().all(|one| one.is_nan()));
        let some = differences(&[0.1, f64::NAN, 0.3, 0.2], &[0, 0, 0, 0]);
        assert!(some[1].is_nan());
        assert!(some[3].abs() < 1e-9);
    }
}
