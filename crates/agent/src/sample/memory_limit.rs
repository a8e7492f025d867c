//! Limits the agent's memory. An agent whose memory grows is a bug, but the bug must not harm the node: above the limit the agent reads
//! less.
//!
//! ```text
//! everything ──own memory > MEMORY_MAX──▶ no burst ──still above after 10 s──▶ no detail (processes) either
//!            ◀──below four fifths of MEMORY_MAX for five minutes── one step back
//! ```

use std::sync::atomic::{AtomicU8, Ordering};

/// The limit of the agent's own memory, in bytes: three times what a node with eight GPUs needs.
pub(crate) const MEMORY_MAX: u64 = 48 << 20;
/// The number of checks (one per second) between two steps down: it takes time until freed memory is returned.
const STEP_AFTER: u32 = 10;
/// The number of checks below four fifths of the limit before a step back.
const BACK_AFTER: u32 = 300;
/// The number of steps down.
const STEPS: u8 = 2;

/// How far the readings are reduced. All readers share it.
#[derive(Debug, Default)]
pub(crate) struct MemoryLimit(AtomicU8);

impl MemoryLimit {
    /// Returns true if there is memory for a ring of recent readings.
    pub(crate) fn allows_burst(&self) -> bool {
        self.step() < 1
    }

    /// Returns true if there is memory for series per process.
    pub(crate) fn allows_detail(&self) -> bool {
        self.step() < 2
    }

    /// Returns the number of steps down; 0 means that everything is read.
    pub(crate) fn step(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Checks the agent's own memory once per second.
#[derive(Debug, Default)]
pub(crate) struct MemoryMonitor {
    above: u32,
    below: u32,
}

impl MemoryMonitor {
    /// Checks the memory once, and reduces or restores the readings.
    pub(crate) fn check(&mut self, own: u64, memory_limit: &MemoryLimit) {
        let heavy = own > MEMORY_MAX;
        let light = own < MEMORY_MAX / 5 * 4;
        self.above = if heavy { self.above + 1 } else { 0 };
        self.below = if light { self.below + 1 } else { 0 };
        let step = memory_limit.step();
        let next = match (self.above, self.below) {
            (1, _) if step == 0 => 1,
            (STEP_AFTER, _) => (step + 1).min(STEPS),
            (_, BACK_AFTER) => step.saturating_sub(1),
            _ => return,
        };
        if self.above == STEP_AFTER {
            self.above = 1;
        }
        self.below = 0;
        if next != step {
            tracing::warn!(
                own,
                bound = MEMORY_MAX,
                "the agent's memory has crossed its limit; readings are now {}",
                [
                    "complete again",
                    "without the burst",
                    "without the burst and processes"
                ][usize::from(next)]
            );
            memory_limit.0.store(next, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(checks: &[(u32, u64)]) -> Vec<u8> {
        let (memory_limit, mut monitor) = (MemoryLimit::default(), MemoryMonitor::default());
        let check = |&(times, mebibytes): &(u32, u64)| {
            (0..times).for_each(|_| monitor.check(mebibytes << 20, &memory_limit));
            memory_limit.step()
        };
        checks.iter().map(check).collect()
    }

    #[test]
    fn an_agent_that_grows_reads_less() {
        assert_eq!(
            steps(&[(600, 16), (1, 49), (8, 49), (1, 49), (99, 60)]),
            [0, 1, 1, 2, 2]
        );
    }

    #[test]
    fn one_that_shrinks_reads_all_again_in_time() {
        assert_eq!(
            steps(&[(30, 60), (600, 45), (299, 30), (1, 30), (300, 30)]),
            [2, 2, 2, 1, 0]
        );
    }
}
