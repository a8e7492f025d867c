//! The random choices of a trial, drawn from its seed.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::kind::{Inflicted, Kind, Range};

/// Everything that differs between two trials of a kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Draw {
    pub(super) strategy: String,
    pub(super) nodes: u32,
    pub(super) ranks_per_node: u32,
    /// In ascending order. Empty if all ranks have the fault.
    pub(super) culprits: Vec<u32>,
    pub(super) step_s: f64,
    /// The step after which the fault starts; 0 if it is there from the first step on.
    pub(super) at_step: u32,
    /// In the unit of the kind: for a straggler, extra time as a fraction of a step.
    pub(super) magnitude: f64,
    /// Duration of an intermittent stall, and the time from one stall to the next, in seconds.
    pub(super) stall_s: f64,
    pub(super) period_s: f64,
    /// A fault from outside waits for this fraction of a step, so that it can start in any phase.
    pub(super) offset: f64,
}

const STALL_S: Range = (1.5, 2.5);
const PERIOD_S: Range = (16.0, 24.0);

impl Draw {
    /// Draws a trial. The same kind, seed and number give the same draw on any machine.
    pub(super) fn new(kind: &Kind, seed: u64, number: u32) -> Self {
        let mut chance = Chance::new(&format!("{}/{seed}/{number}", kind.name));
        let strategy = kind.strategies[chance.below(kind.strategies.len())];
        let (nodes, ranks_per_node) = kind.sizes[chance.below(kind.sizes.len())];
        let mut others: Vec<u32> = (0..nodes * ranks_per_node).collect();
        let mut culprits: Vec<u32> = (0..kind.culprit.ranks())
            .map(|_| others.swap_remove(chance.below(others.len())))
            .collect();
        culprits.sort_unstable();
        let step_s = rounded(chance.between(kind.step_s));
        Self {
            strategy: strategy.name().to_owned(),
            nodes,
            ranks_per_node,
            culprits,
            step_s,
            at_step: (chance.between(kind.even_s) / step_s) as u32,
            magnitude: rounded(chance.between(kind.magnitude)),
            stall_s: rounded(chance.between(STALL_S)),
            period_s: rounded(chance.between(PERIOD_S)),
            offset: rounded(chance.between((0.0, 1.0))),
        }
    }

    pub(super) fn ranks(&self) -> u32 {
        self.nodes * self.ranks_per_node
    }

    /// Returns the ranks that have the fault.
    fn affected(&self) -> Vec<u32> {
        if self.culprits.is_empty() {
            (0..self.ranks()).collect()
        } else {
            self.culprits.clone()
        }
    }

    /// Returns the arguments of `faulty.py`.
    pub(super) fn arguments(&self, kind: &Kind, folder: &Path) -> Vec<String> {
        let mut arguments = vec!["--how".to_owned(), kind.how.to_owned(), "--ranks".to_owned()];
        arguments.extend(self.affected().iter().map(ToString::to_string));
        for (name, value) in [
            ("--strategy", self.strategy.clone()),
            ("--at-step", self.at_step.to_string()),
            ("--step-s", self.step_s.to_string()),
            ("--magnitude", self.magnitude.to_string()),
            ("--stall-s", self.stall_s.to_string()),
            ("--period-s", self.period_s.to_string()),
            ("--dir", folder.display().to_string()),
        ] {
            arguments.extend([name.to_owned(), value]);
        }
        if kind.inflicted == Inflicted::Burn {
            let core = burnt_core().to_string();
            arguments.extend(["--busy", "0.1", "--core", &core].map(str::to_owned));
        }
        arguments
    }
}

impl fmt::Display for Draw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} ranks, fault of ranks {:?}, steps of {} s, from step {}, magnitude {}",
            self.strategy,
            self.ranks(),
            self.affected(),
            self.step_s,
            self.at_step,
            self.magnitude
        )
    }
}

/// The core that a rank with a busy neighbour shares: the last one.
pub(super) fn burnt_core() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from) - 1
}

pub(super) fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

/// A random number generator (SplitMix64) whose numbers do not depend on the version of a library.
pub(super) struct Chance(u64);

impl Chance {
    /// Starts with the FNV-1a hash of a name.
    pub(super) fn new(name: &str) -> Self {
        let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self(name.bytes().fold(0xcbf2_9ce4_8422_2325, hash))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, count: usize) -> usize {
        (self.between((0.0, count as f64)) as usize).min(count - 1)
    }

    pub(super) fn between(&mut self, (low, high): Range) -> f64 {
        let part = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        low + part * (high - low)
    }
}

#[cfg(test)]
mod tests {
    use super::super::kinds::{KINDS, named};
    use super::*;

    #[test]
    fn a_seed_draws_the_same_each_time_and_another_one_something_else() {
        let kind = named("slow-forward");
        assert_eq!(Draw::new(kind, 1001, 1), Draw::new(kind, 1001, 1));
        assert_ne!(Draw::new(kind, 1001, 1), Draw::new(kind, 1, 1));
        assert_ne!(Draw::new(kind, 1001, 1), Draw::new(kind, 1001, 2));
    }

    #[test]
    fn draws_stay_within_what_their_kind_allows_and_reach_all_of_it() {
        let mut seen = std::collections::BTreeSet::new();
        for kind in KINDS {
            for number in 1..=200 {
                let draw = Draw::new(kind, 7, number);
                assert!(kind.sizes.contains(&(draw.nodes, draw.ranks_per_node)));
                assert_eq!(draw.culprits.len(), kind.culprit.ranks() as usize);
                assert!(draw.culprits.is_sorted_by(|a, b| a < b));
                assert!(draw.culprits.iter().all(|rank| *rank < draw.ranks()), "{draw}");
                let even_s = f64::from(draw.at_step) * draw.step_s;
                assert!(
                    even_s > kind.even_s.0 - kind.step_s.1 && even_s <= kind.even_s.1,
                    "{draw}"
                );
                seen.insert((draw.ranks(), draw.affected()[0], draw.strategy));
            }
        }
        for rank in 0..8 {
            for strategy in ["ddp", "fsdp2", "hsdp"] {
                assert!(
                    seen.contains(&(8, rank, strategy.to_owned())),
                    "rank {rank} is never drawn under {strategy}"
                );
            }
        }
    }

    #[test]
    fn if_no_rank_is_the_culprit_all_ranks_have_the_fault() {
        let kind = named("learning-rate-jump");
        let draw = Draw {
            nodes: 2,
            ranks_per_node: 2,
            ..Draw::new(kind, 1, 1)
        };
        let arguments = draw.arguments(kind, Path::new("/tmp/x")).join(" ");
        assert!(arguments.contains("--ranks 0 1 2 3 --strategy"), "{arguments}");
    }
}
