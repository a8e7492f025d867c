//! Reproducible noise.

use std::f64::consts::TAU;

use domain::noise::unit;

pub(crate) use domain::noise::mix;

/// Returns a value from -1 to 1 that depends only on its keys.
pub(crate) fn noise(keys: [u64; 3]) -> f64 {
    2.0 * unit_of(keys) - 1.0
}

/// Returns a value from 0 to 1, without 1, that depends only on its keys.
pub(crate) fn unit_of(keys: [u64; 3]) -> f64 {
    unit(hash(keys))
}

/// Returns a value of the standard normal distribution (Box and Muller 1958).
pub(crate) fn normal(keys: [u64; 3]) -> f64 {
    let first = hash(keys);
    let radius = (-2.0 * (1.0 - unit(first)).ln()).sqrt();
    radius * (TAU * unit(mix(first))).cos()
}

/// Returns a value of the log-normal distribution with the median 1.
pub(crate) fn log_normal(sigma: f64, keys: [u64; 3]) -> f64 {
    (sigma * normal(keys)).exp()
}

/// Returns a value of the Pareto distribution (type I) with a minimum and a shape.
pub(crate) fn pareto(least: f64, alpha: f64, keys: [u64; 3]) -> f64 {
    least * (1.0 - unit_of(keys)).powf(-1.0 / alpha)
}

fn hash(keys: [u64; 3]) -> u64 {
    let mut hash = 0x9e37_79b9_7f4a_7c15;
    for key in keys {
        hash = mix(hash ^ key);
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_depends_on_each_key_and_is_centred() {
        let all: Vec<f64> = (0..1_000).map(|key| noise([1, 2, key])).collect();
        let mean = all.iter().sum::<f64>() / 1_000.0;
        assert!(mean.abs() < 0.05, "{mean}");
        assert!(all.iter().all(|value| (-1.0..=1.0).contains(value)));
        assert_eq!(noise([1, 2, 3]).to_bits(), noise([1, 2, 3]).to_bits());
        assert_ne!(noise([1, 2, 3]).to_bits(), noise([2, 2, 3]).to_bits());
    }

    #[test]
    fn normal_values_have_the_mean_0_and_the_deviation_1() {
        let all: Vec<f64> = (0..10_000).map(|key| normal([4, 5, key])).collect();
        let mean = all.iter().sum::<f64>() / 10_000.0;
        let variance = all.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / 10_000.0;
        assert!(mean.abs() < 0.05, "{mean}");
        assert!((variance - 1.0).abs() < 0.06, "{variance}");
    }

    #[test]
    fn quantiles_are_those_of_the_distributions() {
        let share = |value: &dyn Fn(u64) -> f64, below: f64| {
            (0..10_000).filter(|key| value(*key) < below).count() as f64 / 10_000.0
        };
        let log_normal = |key| log_normal(0.5, [6, 7, key]);
        assert!((share(&log_normal, 1.0) - 0.5).abs() < 0.02);
        assert!((share(&log_normal, 0.5_f64.exp()) - 0.841).abs() < 0.02);
        let pareto = |key| pareto(2.0, 1.5, [8, 9, key]);
        assert!(share(&pareto, 2.0) == 0.0);
        assert!((share(&pareto, 8.0) - 0.875).abs() < 0.02);
    }
}
