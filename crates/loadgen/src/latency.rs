//! Latencies, stored exactly and sorted at the end.

use std::time::Duration;

use serde::Serialize;

/// The maximum number of stored latencies (32 MB). Later ones are only counted.
const KEPT_MAX: usize = 8 << 20;

/// A collection of latencies.
#[derive(Debug, Default)]
pub struct Latencies {
    micros: Vec<u32>,
    count: u64,
}

/// A summary of latencies, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Summary {
    /// The number of latencies.
    pub count: u64,
    /// The median.
    pub p50_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
    /// The maximum.
    pub max_ms: f64,
}

impl Latencies {
    /// Adds a latency.
    pub fn add(&mut self, latency: Duration) {
        self.count += 1;
        if self.micros.len() < KEPT_MAX {
            self.micros
                .push(u32::try_from(latency.as_micros()).unwrap_or(u32::MAX));
        }
    }

    /// Returns the number of latencies.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Adds the latencies of another collection.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        let room = KEPT_MAX - self.micros.len();
        self.micros.extend(other.micros.iter().take(room));
    }

    /// Returns the stored latencies in microseconds.
    #[must_use]
    pub fn micros(&self) -> &[u32] {
        &self.micros
    }

    /// Sorts the latencies and returns their summary.
    #[must_use]
    pub fn summary(mut self) -> Summary {
        self.micros.sort_unstable();
        let at = |share: f64| {
            let last = self.micros.len().saturating_sub(1);
            let rank = (self.micros.len() as f64 * share).ceil() as usize;
            let micros = self.micros.get(rank.saturating_sub(1).min(last));
            micros.map_or(0.0, |micros| f64::from(*micros) / 1_000.0)
        };
        Summary {
            count: self.count,
            p50_ms: at(0.5),
            p99_ms: at(0.99),
            max_ms: at(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let mut latencies = Latencies::default();
        (1..=200)
            .rev()
            .for_each(|ms| latencies.add(Duration::from_millis(ms)));
        let summary = latencies.summary();
        assert_eq!(
            (summary.count, summary.p50_ms, summary.p99_ms, summary.max_ms),
            (200, 100.0, 198.0, 200.0)
        );
        assert_eq!(Latencies::default().summary(), Summary::default());
    }
}
