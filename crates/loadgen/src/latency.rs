//! Latencies, kept exactly and sorted at the end.

use std::time::Duration;

use serde::Serialize;

/// The most that are kept (32 MB); what comes after is counted only.
const KEPT_MAX: usize = 8 << 20;

/// Collects latencies.
#[derive(Debug, Default)]
pub struct Latencies {
    micros: Vec<u32>,
    count: u64,
}

/// What became of them, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Summary {
    /// How many there were.
    pub count: u64,
    /// The median.
    pub p50_ms: f64,
    /// One in a hundred is longer.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

impl Latencies {
    /// Adds one.
    pub fn add(&mut self, latency: Duration) {
        self.count += 1;
        if self.micros.len() < KEPT_MAX {
            self.micros
                .push(u32::try_from(latency.as_micros()).unwrap_or(u32::MAX));
        }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Adds another's.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        let room = KEPT_MAX - self.micros.len();
        self.micros.extend(other.micros.iter().take(room));
    }

    /// Those that are kept, in microseconds.
    #[must_use]
    pub fn micros(&self) -> &[u32] {
        &self.micros
    }

    /// Sorts and reads off.
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
