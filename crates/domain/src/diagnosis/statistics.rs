//! Medians and deviations within a role. Each rank is compared with its peers, never with itself.

/// Up to this many values, each value is left out of its own comparison exactly. With more values, one value hardly changes the median.
const EXACT_MAX: usize = 16;

/// Returns the median; NaN if there are no values.
pub(super) fn median(values: &mut [f64]) -> f64 {
    let n = values.len();
    if n == 0 {
        return f64::NAN;
    }
    let (below, middle, _) = values.select_nth_unstable_by(n / 2, f64::total_cmp);
    if n % 2 == 1 {
        return *middle;
    }
    let lower = below.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (lower + *middle) / 2.0
}

/// Returns the median distance from a value; NaN if there are no values.
pub(super) fn deviation(values: &mut [f64], from: f64) -> f64 {
    values.iter_mut().for_each(|value| *value = (*value - from).abs());
    median(values)
}

/// Returns for each value the median of the others, and the median distance of the others from that median.
pub(super) fn peers(values: &[f64]) -> Vec<(f64, f64)> {
    let usual = |mut others: Vec<f64>| {
        let middle = median(&mut others);
        (middle, deviation(&mut others, middle))
    };
    if values.len() > EXACT_MAX {
        return vec![usual(values.to_vec()); values.len()];
    }
    let others = |left_out: usize| {
        let kept = values.iter().enumerate().filter(|(at, _)| *at != left_out);
        kept.map(|(_, value)| *value).collect()
    };
    (0..values.len()).map(|at| usual(others(at))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_few_and_of_even_many() {
        assert!(median(&mut []).is_nan());
        assert_eq!(median(&mut [3.0]), 3.0);
        assert_eq!(median(&mut [4.0, 1.0]), 2.5);
        assert_eq!(median(&mut [9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [9.0, 1.0, 2.0, 4.0]), 3.0);
    }

    #[test]
    fn each_value_is_compared_with_its_peers_only() {
        assert_eq!(peers(&[0.0, 10.0]), [(10.0, 0.0), (0.0, 0.0)]);
        let of_four = peers(&[0.0, 200.0, 204.0, 196.0]);
        assert_eq!(of_four[0], (200.0, 4.0));
        assert_eq!(of_four[1].0, 196.0);
        let many: Vec<f64> = (0..101).map(f64::from).collect();
        assert_eq!(peers(&many)[3], (50.0, 25.0));
    }
}
