//! All kinds of faults, by family.
//!
//! Faults whose rules need ten minutes or more are not included: `LossPlateau`, `HostMemoryGrows`, `CheckpointOverdue`, `RunStuckQueued`.

use std::time::Duration;

use super::kind::{Culprit, Family, Inflicted, Kind, Range, Strategy};

const BOTH: &[Strategy] = &[Strategy::Ddp, Strategy::Fsdp2];
const DDP: &[Strategy] = &[Strategy::Ddp];
const FSDP2: &[Strategy] = &[Strategy::Fsdp2];
const HSDP: &[Strategy] = &[Strategy::Hsdp];

/// From two to eight ranks. Four is the common case, so it is listed twice.
const ANY: &[(u32, u32)] = &[(1, 2), (2, 2), (2, 2), (2, 3), (2, 4)];
/// If only two ranks disagree, neither can be identified as the culprit.
const FOUR_OR_MORE: &[(u32, u32)] = &[(2, 2), (2, 2), (2, 3), (2, 4)];
/// Two slow ranks must be fewer than the ranks that wait. Under HSDP, a majority needs three replicas.
const SIX_OR_MORE: &[(u32, u32)] = &[(2, 3), (2, 4)];
/// These ranks compute, and share the cores of this machine.
const FEW: &[(u32, u32)] = &[(1, 2), (2, 2)];
/// Steps of these ranks must be short.
const FOUR_OR_SIX: &[(u32, u32)] = &[(2, 2), (2, 3)];
const TWO: &[(u32, u32)] = &[(1, 2), (2, 1)];

const STEP_S: Range = (0.08, 0.2);
/// Eight of these steps make a window of about one second. Some rules count windows.
const WINDOW_STEP_S: Range = (0.095, 0.12);
/// Some rules count hundreds of steps.
const SHORT_STEP_S: Range = (0.02, 0.03);

const EVEN_S: Range = (18.0, 30.0);
/// For rules that do not compare with the time before the fault.
const SOON_S: Range = (4.0, 12.0);
/// For rules that compare with the best minute.
const AFTER_A_MINUTE_S: Range = (75.0, 90.0);
const FROM_THE_START: Range = (0.0, 0.0);

const EXTRA: Range = (0.15, 0.8);
/// Bits of the mantissa of a 32-bit float. An update would round lower bits away.
const BITS: Range = (14.0, 22.0);
const WATCHED: Duration = Duration::from_secs(90);
/// If the throughput is between 50 and 70 % of the best, `ThroughputDropped` needs more than two and a half minutes.
const SLOWER_RUN_WATCHED: Duration = Duration::from_secs(210);

pub(super) const KINDS: &[Kind] = &[
    Kind {
        inflicted: Inflicted::Stop,
        ..hang("stopped", ANY)
    },
    hang("spin", ANY),
    hang("spin-gil", ANY),
    hang("unsent-message", FOUR_OR_MORE),
    hang("skipped-collective", FOUR_OR_MORE),
    hang("other-order", FOUR_OR_MORE),
    hang("other-operation", FOUR_OR_MORE),
    hang("early-end", FOUR_OR_MORE),
    hang("data-sleep", ANY),
    hang("fifo", ANY),
    hang("before-rendezvous", ANY),
    hang("before-model", ANY),
    hang("save", ANY),
    hang("main-ended", ANY),
    straggler("slow-forward", "slow-forward", DDP),
    straggler("slow-backward", "slow-backward", DDP),
    straggler("slow-optimizer", "slow-optimizer", DDP),
    slow_data("slow-data", DDP),
    straggler("slow-host", "slow-host", DDP),
    straggler("slow-everywhere", "slow-everywhere", DDP),
    straggler("large-batch", "large-batch", DDP),
    Kind {
        sizes: FEW,
        inflicted: Inflicted::Burn,
        ..straggler("busy-neighbour", "busy-neighbour", DDP)
    },
    straggler("intermittent", "intermittent", DDP),
    Kind {
        sizes: SIX_OR_MORE,
        culprit: Culprit::Ranks(2),
        ..straggler("two-stragglers", "slow-forward", DDP)
    },
    straggler("fsdp2-slow-forward", "slow-forward", FSDP2),
    straggler("fsdp2-slow-backward", "slow-backward", FSDP2),
    slow_data("fsdp2-slow-data", FSDP2),
    straggler("fsdp2-slow-host", "slow-host", FSDP2),
    straggler("fsdp2-large-batch", "large-batch", FSDP2),
    Kind {
        sizes: FOUR_OR_MORE,
        ..straggler("hsdp-slow-forward", "slow-forward", HSDP)
    },
    Kind {
        sizes: FOUR_OR_MORE,
        ..slow_data("hsdp-slow-data", HSDP)
    },
    Kind {
        magnitude: (1.0, 2.0),
        watched: SLOWER_RUN_WATCHED,
        ..slower_run("slow-step", BOTH, &["ThroughputDropped"])
    },
    Kind {
        magnitude: (0.8, 1.4),
        watched: SLOWER_RUN_WATCHED,
        ..slower_run("slow-sync", DDP, &["ThroughputDropped", "GradientSyncSlow"])
    },
    other_parameters("flipped-bit", DDP, FOUR_OR_SIX),
    other_parameters("hsdp-flipped-bit", HSDP, SIX_OR_MORE),
    Kind {
        culprit: Culprit::RankOrRun,
        ..other_parameters("flipped-bit-of-two", DDP, TWO)
    },
    Kind {
        how: "other-checkpoint",
        even_s: FROM_THE_START,
        magnitude: (0.01, 0.1),
        ..other_parameters("other-checkpoint", DDP, FOUR_OR_SIX)
    },
    Kind {
        sizes: FOUR_OR_MORE,
        magnitude: (0.3, 0.7),
        ..soon("other-learning-rate", Family::Learning, &["LearningRateUneven"])
    },
    Kind {
        culprit: Culprit::Run,
        even_s: FROM_THE_START,
        // Three minutes.
        watched: Duration::from_secs(230),
        ..soon("learning-rate-zero", Family::Learning, &["LearningRateZero"])
    },
    Kind {
        culprit: Culprit::Run,
        magnitude: (4.0, 5.0),
        ..soon(
            "learning-rate-jump",
            Family::Learning,
            &["GradientExplosion", "LossNotFinite", "LossRises"],
        )
    },
    soon("nan-labels", Family::Learning, &["LossNotFinite"]),
    Kind {
        culprit: Culprit::RankOrRun,
        ..soon("inf-gradient", Family::Learning, &["LossNotFinite"])
    },
    Kind {
        strategies: DDP,
        culprit: Culprit::RankOrRun,
        ..soon("lost-scale", Family::Learning, &["LossScaleLost"])
    },
    Kind {
        strategies: DDP,
        culprit: Culprit::Run,
        step_s: WINDOW_STEP_S,
        // The rule compares with the best block of 16 windows, and needs four blocks.
        even_s: (40.0, 55.0),
        magnitude: (1.2, 1.5),
        watched: Duration::from_secs(150),
        ..soon(
            "noisy-labels",
            Family::Learning,
            &["LossRises", "GradientExplosion"],
        )
    },
    Kind {
        magnitude: (1.8, 3.0),
        ..other_data("constant-labels")
    },
    other_data("shuffled-labels"),
    other_data("repeated-batch"),
    Kind {
        magnitude: (20.0, 250.0),
        ..other_data("normalised-twice")
    },
    Kind {
        how: "slow-data",
        culprit: Culprit::Run,
        magnitude: (0.7, 1.2),
        ..soon("slow-data-everywhere", Family::Data, &["DataLoadingSlow"])
    },
    Kind {
        culprit: Culprit::Run,
        magnitude: (1.6, 2.4),
        ..soon("few-workers", Family::Data, &["DataLoadingSlow"])
    },
    Kind {
        even_s: EVEN_S,
        ..soon("intermittent-data", Family::Data, &["RankStalls"])
    },
    Kind {
        inflicted: Inflicted::FillDisk,
        ..soon("full-disk", Family::Checkpoint, &["CheckpointSaveFailed"])
    },
    soon("folder-gone", Family::Checkpoint, &["CheckpointSaveFailed"]),
    Kind {
        // Under FSDP2, a checkpoint of eight ranks is smaller than the limit.
        strategies: DDP,
        magnitude: (8_000.0, 32_000.0),
        ..soon("file-size-limit", Family::Checkpoint, &["CheckpointSaveFailed"])
    },
    Kind {
        magnitude: (75.0, 90.0),
        ..soon("slow-save", Family::Checkpoint, &["RankWorksAlone"])
    },
    soon("exception", Family::Failure, &["RunFailed"]),
    soon("segmentation-fault", Family::Failure, &["RunFailed"]),
    Kind {
        magnitude: (2.0, 120.0),
        ..soon("exit-code", Family::Failure, &["RunFailed"])
    },
    Kind {
        // If the other ranks only wait, the run fails after two minutes without a step.
        watched: Duration::from_secs(150),
        ..soon("exits-early", Family::Failure, &["RunFailed"])
    },
    soon("out-of-memory", Family::Failure, &["RunFailed"]),
    Kind {
        how: "out-of-memory",
        culprit: Culprit::RankOrRun,
        restarts: 1,
        // Another attempt starts meanwhile.
        watched: Duration::from_secs(150),
        ..soon("out-of-memory-again", Family::Failure, &["OutOfMemoryAgain"])
    },
    Kind {
        inflicted: Inflicted::Kill,
        ..soon("killed", Family::Failure, &["RunFailed"])
    },
    Kind {
        sizes: FOUR_OR_MORE,
        culprit: Culprit::Node,
        inflicted: Inflicted::KillAgent,
        ..soon("agent-killed", Family::Failure, &["NodeDown"])
    },
    Kind {
        sizes: FOUR_OR_MORE,
        culprit: Culprit::Node,
        inflicted: Inflicted::KillNode,
        ..soon("node-lost", Family::Failure, &["NodeDown"])
    },
];

const fn kind(name: &'static str, family: Family, rules: &'static [&'static str]) -> Kind {
    Kind {
        name,
        how: name,
        family,
        strategies: BOTH,
        sizes: ANY,
        culprit: Culprit::Ranks(1),
        inflicted: Inflicted::Script,
        rules,
        restarts: 0,
        step_s: STEP_S,
        even_s: EVEN_S,
        magnitude: EXTRA,
        watched: WATCHED,
    }
}

pub(super) const fn soon(name: &'static str, family: Family, rules: &'static [&'static str]) -> Kind {
    Kind {
        even_s: SOON_S,
        ..kind(name, family, rules)
    }
}

pub(super) const fn hang(name: &'static str, sizes: &'static [(u32, u32)]) -> Kind {
    Kind {
        sizes,
        // Some hangs end the run.
        ..kind(name, Family::Hang, &["RunFailed", "RunRestarted"])
    }
}

pub(super) const fn straggler(
    name: &'static str,
    how: &'static str,
    strategies: &'static [Strategy],
) -> Kind {
    Kind {
        how,
        strategies,
        ..kind(name, Family::Straggler, &[])
    }
}

pub(super) const fn slow_data(name: &'static str, strategies: &'static [Strategy]) -> Kind {
    Kind {
        rules: &["DataLoadingSlow"],
        ..straggler(name, "slow-data", strategies)
    }
}

pub(super) const fn slower_run(
    name: &'static str,
    strategies: &'static [Strategy],
    rules: &'static [&'static str],
) -> Kind {
    Kind {
        strategies,
        culprit: Culprit::Run,
        even_s: AFTER_A_MINUTE_S,
        watched: Duration::from_secs(110),
        ..kind(name, Family::Throughput, rules)
    }
}

/// Parameters are checked at every 256th step. A rank is named after three checks.
const fn other_parameters(
    name: &'static str,
    strategies: &'static [Strategy],
    sizes: &'static [(u32, u32)],
) -> Kind {
    Kind {
        how: "flipped-bit",
        strategies,
        sizes,
        step_s: SHORT_STEP_S,
        magnitude: BITS,
        watched: Duration::from_secs(150),
        ..soon(name, Family::Learning, &["ReplicasDiffer"])
    }
}

/// The rule compares 64 windows, over at least one minute.
const fn other_data(name: &'static str) -> Kind {
    Kind {
        sizes: FOUR_OR_MORE,
        step_s: WINDOW_STEP_S,
        watched: Duration::from_secs(150),
        ..soon(name, Family::Data, &["DataUneven"])
    }
}

/// Returns the kind with a name that must exist.
pub(super) fn named(name: &str) -> &'static Kind {
    KINDS.iter().find(|kind| kind.name == name).unwrap()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The descriptions of all faults.
    const DESCRIPTIONS: [&str; 7] = [
        include_str!("faults/hangs.py"),
        include_str!("faults/stragglers.py"),
        include_str!("faults/throughput.py"),
        include_str!("faults/learning.py"),
        include_str!("faults/data.py"),
        include_str!("faults/checkpoints.py"),
        include_str!("faults/failures.py"),
    ];

    #[test]
    fn each_kind_has_a_name_of_its_own_and_a_description() {
        let names: BTreeSet<&str> = KINDS.iter().map(|kind| kind.name).collect();
        assert_eq!(names.len(), KINDS.len());
        for kind in KINDS {
            let describes = |text: &&str| {
                let description = text.split("\"\"\"").nth(1).unwrap();
                description.split([' ', ',', '\n']).any(|word| word == kind.how)
            };
            assert!(DESCRIPTIONS.iter().any(describes), "{}", kind.how);
        }
    }

    #[test]
    fn each_kind_is_listed_beside_the_rule_that_it_tests() {
        let page = include_str!("../../../../../docs/diagnoses/README.md");
        for kind in KINDS {
            let (prefix, _) = kind.name.split_once('-').unwrap_or_default();
            let is_listed = |name: String| page.contains(&format!("`{name}`"));
            assert!(
                is_listed(kind.name.to_owned()) || is_listed(format!("{prefix}-*")),
                "{}",
                kind.name
            );
        }
    }

    #[test]
    fn kinds_are_listed_by_family() {
        let families: Vec<Family> = KINDS.iter().map(|kind| kind.family).collect();
        let mut by_family = families.clone();
        by_family.sort_by_key(|family| Family::ALL.iter().position(|known| known == family));
        assert_eq!(families, by_family);
    }

    /// Two ranks disagree without a majority, so none of them can be named.
    #[test]
    fn a_rank_is_named_by_comparison_only_if_it_has_several_peers() {
        for kind in KINDS {
            let compares = ["DataUneven", "LearningRateUneven", "ReplicasDiffer"];
            if kind.rules.iter().any(|rule| compares.contains(rule)) && kind.culprit == Culprit::Ranks(1) {
                assert!(
                    kind.sizes.iter().all(|(nodes, ranks)| nodes * ranks > 2),
                    "{}",
                    kind.name
                );
            }
        }
    }
}
