//! What the agent may take of its machine. An agent that grows is a fault of its own, but never the node's: above the bound it
//! reads less instead of growing on.
//!
//! ```text
//! everything ──own memory > MEMORY_MAX──▶ no burst ──10 s later still──▶ no detail (processes) either
//!            ◀──below four fifths of it for five minutes── one step back
//! ```

use std::sync::atomic::{AtomicU8, Ordering};

/// Three times what a node of eight GPUs needs.
pub(crate) const MEMORY_MAX: u64 = 48 << 20;
/// Looks (once a second) between two steps down: freed memory must have time to go.
const STEP_AFTER: u32 = 10;
/// Looks well below the bound before a step back.
const BACK_AFTER: u32 = 300;
/// All steps down.
const STEPS: u8 = 2;

/// How far readings are cut down at the moment; seen by all readers.
#[derive(Debug, Default)]
pub(crate) struct Footprint(AtomicU8);

impl Footprint {
    /// Whether there is room for a ring of recent readings.
    pub(crate) fn allows_burst(&self) -> bool {
        self.step() < 1
    }

    /// Whether there is room for what has series of its own for each process.
    pub(crate) fn allows_detail(&self) -> bool {
        self.step() < 2
    }

    /// 0: all is read.
    pub(crate) fn step(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Looks at the agent's own memory once a second.
#[derive(Debug, Default)]
pub(crate) struct Scales {
    above: u32,
    below: u32,
}

impl Scales {
    /// Takes a look; cuts down or gives back.
    pub(crate) fn weigh(&mut self, own: u64, footprint: &Footprint) {
        let heavy = own > MEMORY_MAX;
        let light = own < MEMORY_MAX / 5 * 4;
        self.above = if heavy { self.above + 1 } else { 0 };
        self.below = if light { self.below + 1 } else { 0 };
        let step = footprint.step();
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
                "the agent's memory has crossed its bound; readings are {}",
                [
                    "complete again",
                    "without the burst",
                    "without the burst and processes"
                ][usize::from(next)]
            );
            footprint.0.store(next, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(looks: &[(u32, u64)]) -> Vec<u8> {
        let (footprint, mut scales) = (Footprint::default(), Scales::default());
        let weigh = |&(times, mebibytes): &(u32, u64)| {
            (0..times).for_each(|_| scales.weigh(mebibytes << 20, &footprint));
            footprint.step()
        };
        looks.iter().map(weigh).collect()
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
