//! The kinds of faults that the simulated cluster plays, and which scenario plays them.

use std::time::Duration;

use domain::diagnosis::input::Phase;
use sim_cluster::{
    BlockedIn, Exit, Fault, FaultKind, Hold, LearnedValue, Noise, Part, Scenario, WaitPath, Workload,
    workloads,
};

use super::super::draw::{Chance, Draw};
use super::super::kind::{Culprit, Family, Kind, Range, Strategy};
use super::super::kinds::{hang, slow_data, slower_run, soon, straggler};

const ALL: &[Strategy] = &[Strategy::Ddp, Strategy::Fsdp2, Strategy::Hsdp];
/// Nodes and ranks per node: 4 to 64 ranks.
const SIZES: &[(u32, u32)] = &[(1, 4), (1, 8), (2, 4), (2, 8), (4, 8), (8, 8)];
/// Two slow ranks must be few among their peers.
const EIGHT_OR_MORE: &[(u32, u32)] = &[(1, 8), (2, 4), (2, 8), (4, 8), (8, 8)];
const SEVERAL_NODES: &[(u32, u32)] = &[(2, 4), (2, 8), (4, 8), (8, 8)];
/// 1,024 ranks.
const LARGE: &[(u32, u32)] = &[(128, 8)];

const STEP_S: Range = (0.12, 1.0);
/// A stall counts from two and a half steps on.
const SHORT_STEP_S: Range = (0.12, 0.5);
const LONG_STEP_S: Range = (2.0, 6.0);
/// The time before the fault in trials with long steps.
const LONG_EVEN_S: Range = (60.0, 100.0);
const LONG_WATCHED: Duration = Duration::from_secs(120);
/// Moments are spread out, so that the ranks of a few runs are inspected at the same time and not those of all.
const EVEN_S: Range = (18.0, 45.0);

/// Each trial with such a number has long steps.
const LONG_EVERY: u32 = 8;
/// Trials from this number on have 1,024 ranks.
pub(super) const LARGE_FROM: u32 = 10_000;

/// A group of trials with its own table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    /// Gloo on processors, as in the real trials.
    Simulated,
    /// NCCL on GPUs, as the probe would report it.
    Replayed,
}

/// The kinds, by family.
const SIMULATED: &[Kind] = &[
    held("stopped"),
    held("spin"),
    held("spin-gil"),
    held("data-sleep"),
    held("uninterruptible"),
    held("save"),
    held("other-operation"),
    late("slow-forward"),
    late("slow-backward"),
    late("slow-optimizer"),
    sized(slow_data("slow-data", ALL)),
    late("slow-host"),
    late("slow-everywhere"),
    late("large-batch"),
    Kind {
        magnitude: (0.25, 0.5),
        ..late("busy-neighbour")
    },
    Kind {
        step_s: SHORT_STEP_S,
        ..late("intermittent")
    },
    Kind {
        how: "slow-forward",
        sizes: EIGHT_OR_MORE,
        culprit: Culprit::Ranks(2),
        ..late("two-stragglers")
    },
    Kind {
        how: "slow-everywhere",
        sizes: SIZES,
        step_s: STEP_S,
        magnitude: (1.0, 2.0),
        ..slower_run("slow-step", ALL, &["ThroughputDropped"])
    },
    Kind {
        magnitude: (0.3, 0.7),
        ..quick("other-learning-rate", Family::Learning, &["LearningRateUneven"])
    },
    quick("nan-labels", Family::Learning, &["LossNotFinite"]),
    Kind {
        culprit: Culprit::RankOrRun,
        ..quick("inf-gradient", Family::Learning, &["LossNotFinite"])
    },
    Kind {
        how: "slow-data",
        culprit: Culprit::Run,
        magnitude: (0.7, 1.2),
        ..quick("slow-data-everywhere", Family::Data, &["DataLoadingSlow"])
    },
    quick("failed-saves", Family::Checkpoint, &["CheckpointSaveFailed"]),
    quick("exception", Family::Failure, &["RunFailed"]),
    quick("killed", Family::Failure, &["RunFailed"]),
    Kind {
        sizes: SEVERAL_NODES,
        culprit: Culprit::Node,
        ..quick("node-lost", Family::Failure, &["NodeDown"])
    },
];

const REPLAYED: &[Kind] = &[
    replayed("nccl-stopped", held("stopped")),
    replayed("nccl-spin", held("spin")),
    replayed("nccl-data-sleep", held("data-sleep")),
    replayed("nccl-other-operation", held("other-operation")),
    replayed("nccl-slow-forward", late("slow-forward")),
    replayed("nccl-slow-backward", late("slow-backward")),
    replayed("nccl-slow-data", sized(slow_data("slow-data", ALL))),
    replayed("nccl-slow-host", late("slow-host")),
    Kind {
        rules: &["RunOnFaultyHardware"],
        ..replayed("nccl-power-brake", late("power-brake"))
    },
    replayed(
        "nccl-memory-error",
        quick(
            "memory-error",
            Family::Failure,
            &["RunFailed", "RunOnFaultyHardware"],
        ),
    ),
];

const fn sized(kind: Kind) -> Kind {
    Kind {
        strategies: ALL,
        sizes: SIZES,
        step_s: STEP_S,
        even_s: EVEN_S,
        ..kind
    }
}

const fn held(name: &'static str) -> Kind {
    sized(hang(name, SIZES))
}

const fn late(name: &'static str) -> Kind {
    sized(straggler(name, name, ALL))
}

const fn quick(name: &'static str, family: Family, rules: &'static [&'static str]) -> Kind {
    sized(soon(name, family, rules))
}

const fn replayed(name: &'static str, kind: Kind) -> Kind {
    Kind { name, ..kind }
}

impl Group {
    pub(super) fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Simulated => SIMULATED,
            Self::Replayed => REPLAYED,
        }
    }

    pub(super) fn has_gpus(self) -> bool {
        self == Self::Replayed
    }

    fn waits(self, draw: &Draw) -> WaitPath {
        match self {
            Self::Simulated => WaitPath::Gloo,
            Self::Replayed => WaitPath::Nccl {
                blocked_in: if draw.offset < 0.5 {
                    BlockedIn::Backward
                } else {
                    BlockedIn::Host
                },
            },
        }
    }
}

/// Returns the kind as the trial with this number plays it: some trials have long steps, some have many ranks.
pub(super) fn of_number(kind: &Kind, number: u32) -> Kind {
    if number >= LARGE_FROM {
        Kind {
            sizes: LARGE,
            ..*kind
        }
    } else if number.is_multiple_of(LONG_EVERY) && kind.step_s == STEP_S {
        Kind {
            step_s: LONG_STEP_S,
            even_s: (kind.even_s.0.max(LONG_EVEN_S.0), kind.even_s.1.max(LONG_EVEN_S.1)),
            watched: kind.watched + LONG_WATCHED,
            ..*kind
        }
    } else {
        *kind
    }
}

/// Returns the scenario of a trial. `name` is that of its run.
pub(super) fn scenario(group: Group, name: &str, kind: &Kind, draw: &Draw, seed: u64) -> Scenario {
    let mut chance = Chance::new(&format!("{name}/{seed}"));
    let after_s = (f64::from(draw.at_step) + draw.offset) * draw.step_s;
    let faults = fault_kinds(kind, draw).into_iter();
    Scenario {
        step_s: draw.step_s,
        seed: Some(chance.next()),
        waits: group.waits(draw),
        noise: noise(&mut chance),
        faults: faults.map(|kind| Fault { after_s, kind }).collect(),
        ..Scenario::even(name.to_owned(), recording(&draw.strategy))
    }
}

/// Draws the noise of a run. In one run of four, batches have different sizes.
pub(super) fn noise(chance: &mut Chance) -> Noise {
    Noise {
        sigma: Some(chance.between((0.01, 0.05))),
        batch_sigma: if chance.below(4) == 0 { 0.15 } else { 0.0 },
        pause_chance: chance.between((0.0, 0.002)),
    }
}

/// Returns the recording of a strategy.
pub(super) fn recording(strategy: &str) -> &'static Workload {
    let recipe = if strategy == "fsdp2" { "fsdp" } else { strategy };
    workloads()
        .iter()
        .find(|workload| workload.recipe == recipe)
        .unwrap()
}

fn fault_kinds(kind: &Kind, draw: &Draw) -> Vec<FaultKind> {
    let culprit = draw.culprits.first().copied();
    let rank = culprit.unwrap_or_default();
    let hold = |phase, hold| vec![FaultKind::Hold { rank, phase, hold }];
    let slow = |part| {
        let culprits = if draw.culprits.is_empty() {
            vec![None]
        } else {
            draw.culprits
                .iter()
                .copied()
                .map(Some)
                .collect::<Vec<Option<u32>>>()
        };
        let slow = |rank| FaultKind::Slow {
            rank,
            part,
            ratio: draw.magnitude,
        };
        culprits.into_iter().map(slow).collect::<Vec<FaultKind>>()
    };
    let one_of = |phases: [Phase; 3]| phases[(draw.offset * 3.0) as usize % 3];
    match kind.how {
        "stopped" => hold(
            one_of([Phase::Data, Phase::Forward, Phase::Backward]),
            Hold::Stopped,
        ),
        "spin" => hold(
            one_of([Phase::Forward, Phase::Backward, Phase::Host]),
            Hold::Spins,
        ),
        "spin-gil" => hold(Phase::Forward, Hold::HoldsInterpreter),
        "data-sleep" => hold(Phase::Data, Hold::Sleeps),
        "uninterruptible" => hold(
            one_of([Phase::Data, Phase::Forward, Phase::Host]),
            Hold::Uninterruptible,
        ),
        "save" => hold(Phase::Save, Hold::Sleeps),
        "other-operation" => hold(Phase::Collective, Hold::OtherOperation),
        "slow-forward" => slow(Part::Forward),
        "slow-backward" => slow(Part::Backward),
        "slow-optimizer" => slow(Part::Optimizer),
        "slow-data" => slow(Part::Data),
        "slow-host" => slow(Part::Host),
        "slow-everywhere" => slow(Part::Everything),
        "large-batch" => vec![FaultKind::LargerBatch {
            rank,
            ratio: draw.magnitude,
        }],
        "busy-neighbour" => vec![FaultKind::BusyProcessor {
            rank,
            share: draw.magnitude,
        }],
        "intermittent" => vec![FaultKind::Stall {
            rank,
            part: Part::Forward,
            stall_s: draw.stall_s,
            period_s: draw.period_s,
        }],
        "other-learning-rate" => vec![FaultKind::LearningRate {
            rank,
            factor: draw.magnitude,
        }],
        "nan-labels" => vec![FaultKind::NotFinite {
            rank,
            value: LearnedValue::Loss,
        }],
        "inf-gradient" => vec![FaultKind::NotFinite {
            rank,
            value: LearnedValue::Gradient,
        }],
        "failed-saves" => vec![FaultKind::FailSaves { rank }],
        "exception" => vec![FaultKind::Exit {
            rank,
            exit: Exit::Exception,
        }],
        "killed" => vec![FaultKind::Exit {
            rank,
            exit: Exit::Killed,
        }],
        "node-lost" => vec![FaultKind::LoseNode { rank }],
        "power-brake" => vec![FaultKind::PowerBrake { rank }],
        "memory-error" => vec![FaultKind::MemoryError { rank }],
        other => panic!("no scenario plays {other}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_kind_has_a_name_of_its_own_and_a_scenario_with_its_culprits() {
        let mut names = BTreeSet::new();
        for group in [Group::Simulated, Group::Replayed] {
            for kind in group.kinds() {
                assert!(names.insert(kind.name), "{}", kind.name);
                let draw = Draw::new(kind, 1001, 1);
                let scenario = scenario(group, "r", kind, &draw, 1001);
                assert_eq!(scenario.faults.len(), draw.culprits.len().max(1), "{}", kind.name);
                assert!(scenario.faults[0].after_s > 15.0, "{}", kind.name);
            }
        }
    }

    #[test]
    fn numbers_decide_on_long_steps_and_many_ranks() {
        let kind = &SIMULATED[0];
        let draw = |number| Draw::new(&of_number(kind, number), 1001, number);
        assert!(draw(1).step_s <= 1.0 && draw(1).ranks() <= 64);
        assert!(draw(LONG_EVERY).step_s >= 2.0);
        assert_eq!(draw(LARGE_FROM).ranks(), 1_024);
    }

    #[test]
    fn a_run_plays_the_same_again_with_the_same_seed_only() {
        let kind = &SIMULATED[0];
        let draw = Draw::new(kind, 1001, 1);
        let of = |seed| scenario(Group::Simulated, "r", kind, &draw, seed);
        assert_eq!(of(1001).seed, of(1001).seed);
        assert_ne!(of(1001).seed, of(1002).seed);
    }
}
