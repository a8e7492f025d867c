//! Reproducible noise.

use domain::noise::unit;

pub(crate) use domain::noise::mix;

/// Returns a value from -1 to 1 that depends only on its keys.
pub(crate) fn noise(keys: [u64; 3]) -> f64 {
    let mut hash = 0x9e37_79b9_7f4a_7c15;
    for key in keys {
        hash = mix(hash ^ key);
    }
    2.0 * unit(hash) - 1.0
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
}
