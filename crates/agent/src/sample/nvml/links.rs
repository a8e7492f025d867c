//! Counts bytes over NVLink and PCIe from counters of different kinds, and computes the capacity of a link.

use std::time::{Duration, Instant};

/// The values for sending and for receiving.
pub(crate) type Pair = [f64; 2];

/// If a counter decreases and its last value was below this, it wrapped at 32 bits. Otherwise it was reset.
const WRAP: f64 = 4_294_967_296.0;

/// Counts bytes in both directions from readings of counters or of rates.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    total: Pair,
    last: Option<(Instant, Pair)>,
}

impl Flow {
    /// Adds a reading of byte counters. Returns the rates since the last reading, in bytes per second.
    pub(crate) fn counted(&mut self, now: Instant, counters: Pair) -> Option<Pair> {
        let (before, earlier) = self.last.replace((now, counters))?;
        let seconds = now.duration_since(before).as_secs_f64();
        let grown = [grown(earlier[0], counters[0]), grown(earlier[1], counters[1])];
        self.add(grown);
        (seconds > 0.0).then(|| grown.map(|bytes| bytes / seconds))
    }

    /// Adds rates averaged over an interval, if there are any, and returns them.
    pub(crate) fn rated_if(&mut self, rates: Option<(Duration, Pair)>) -> Option<Pair> {
        let (interval, rates) = rates?;
        self.add(rates.map(|rate| rate * interval.as_secs_f64()));
        Some(rates)
    }

    /// Returns the bytes counted since the agent started.
    pub(crate) fn total(&self) -> Pair {
        self.total
    }

    fn add(&mut self, bytes: Pair) {
        for (total, bytes) in self.total.iter_mut().zip(bytes) {
            *total += bytes;
        }
    }
}

/// Returns the increase of a counter. The PCIe counters wrap, and all counters are reset with the driver.
fn grown(before: f64, now: f64) -> f64 {
    match now - before {
        growth if growth >= 0.0 => growth,
        _ if before < WRAP => now - before + WRAP,
        _ => now,
    }
}

/// Returns the capacity of a PCIe link in one direction, in bytes per second, after line coding.
pub(crate) fn pcie_bytes_per_second(generation: u32, width: u32) -> Option<f64> {
    let lane = match generation {
        1 => 0.25e9,
        2 => 0.5e9,
        3 => 0.985e9,
        4 => 1.969e9,
        5 => 3.938e9,
        6 => 7.563e9,
        _ => return None,
    };
    Some(lane * f64::from(width))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_wrap_and_start_again() {
        assert_eq!(grown(10.0, 25.0), 15.0);
        assert_eq!(grown(WRAP - 10.0, 5.0), 15.0);
        assert_eq!(grown(9.0 * WRAP, 7.0), 7.0);
    }

    #[test]
    fn a_flow_counts_from_its_first_reading() {
        let mut flow = Flow::default();
        let start = Instant::now();
        assert_eq!(flow.counted(start, [1_000.0, 5.0]), None);
        assert_eq!(
            flow.counted(start + Duration::from_secs(2), [3_000.0, 5.0]),
            Some([1_000.0, 0.0])
        );
        flow.rated_if(Some((Duration::from_millis(500), [100.0, 200.0])));
        flow.rated_if(None);
        assert_eq!(flow.total(), [2_050.0, 100.0]);
    }

    #[test]
    fn lanes_of_all_generations() {
        assert_eq!(pcie_bytes_per_second(5, 16), Some(63.008e9));
        assert_eq!(pcie_bytes_per_second(0, 16), None);
    }
}
