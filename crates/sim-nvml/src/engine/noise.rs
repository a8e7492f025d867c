//! Seeded noise: the same input always gives the same output.

/// A stream of deterministic numbers, one per (channel, time).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Noise {
    seed: u64,
}

impl Noise {
    /// Creates the stream of one GPU of one node with one seed.
    pub(crate) fn new(seed: u64, node: u32, gpu: u32) -> Noise {
        Noise {
            seed: mix(mix(mix(seed) ^ u64::from(node)) ^ u64::from(gpu)),
        }
    }

    /// Returns 64 bits that depend only on the stream and on `channel`.
    pub(crate) fn bits(self, channel: u64) -> u64 {
        mix(self.seed ^ mix(channel))
    }

    /// Returns a constant of this stream in [0, 1).
    pub(crate) fn unit(self, channel: u64) -> f64 {
        // An f64 stores 53 bits exactly.
        (self.bits(channel) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a value in [-1, 1) that changes once per second: gauges vary, but two reads within one second agree.
    pub(crate) fn each_second(self, channel: u64, t: f64) -> f64 {
        let second = t.floor() as i64 as u64;
        Noise {
            seed: self.bits(channel),
        }
        .unit(second)
            * 2.0
            - 1.0
    }
}

/// The finaliser of SplitMix64: every input bit changes about half of the output bits.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_noise_other_node_other_noise() {
        let one = Noise::new(1, 0, 0);
        assert_eq!(one.each_second(3, 7.2), Noise::new(1, 0, 0).each_second(3, 7.9));
        assert_ne!(one.bits(3), Noise::new(1, 1, 0).bits(3));
        assert_ne!(one.bits(3), Noise::new(2, 0, 0).bits(3));
    }

    #[test]
    fn noise_stays_in_its_range() {
        let noise = Noise::new(9, 0, 0);
        for second in -50..5_000 {
            let value = noise.each_second(1, f64::from(second));
            assert!((-1.0..1.0).contains(&value), "{value} at {second} s");
        }
    }
}
