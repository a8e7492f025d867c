//! The kinds of faults.

/// One kind of fault.
#[derive(Debug, PartialEq)]
pub(super) struct Kind {
    /// Name of the kind: the value of `--only`, and the row in the table.
    pub(super) name: &'static str,
    /// Name of the fault in `faulty.py`.
    pub(super) how: &'static str,
    pub(super) family: Family,
    /// Possible strategies; a trial draws one of them.
    pub(super) strategies: &'static [Strategy],
    /// Nodes and ranks per node; a trial draws one of these pairs.
    pub(super) sizes: &'static [(u32, u32)],
    /// Number of ranks with the fault.
    pub(super) culprits: u32,
    pub(super) inflicted: Inflicted,
    /// Rules that match this kind, in addition to those that mark a rank as stuck (hangs) or late (stragglers).
    pub(super) rules: &'static [&'static str],
}

/// The effect of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// No rank makes progress any more.
    Hang,
    /// All ranks make progress, but wait for one.
    Straggler,
}

/// How the ranks share the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strategy {
    Ddp,
    Fsdp2,
}

/// How the fault is caused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inflicted {
    /// The script causes it.
    Script,
    /// The test sends SIGSTOP to the rank.
    Stop,
    /// The test starts programs that compute on the rank's core.
    Burn,
}

const BOTH: &[Strategy] = &[Strategy::Ddp, Strategy::Fsdp2];
const DDP: &[Strategy] = &[Strategy::Ddp];
const FSDP2: &[Strategy] = &[Strategy::Fsdp2];

/// From two to eight ranks. Four is the common case, so it is listed twice.
const ANY: &[(u32, u32)] = &[(1, 2), (2, 2), (2, 2), (2, 3), (2, 4)];
/// If only two ranks disagree, neither can be identified as the culprit.
const FOUR_OR_MORE: &[(u32, u32)] = &[(2, 2), (2, 2), (2, 3), (2, 4)];
/// Two slow ranks must be fewer than the ranks that wait.
const SIX_OR_MORE: &[(u32, u32)] = &[(2, 3), (2, 4)];
/// These ranks compute, and share the cores of this machine.
const FEW: &[(u32, u32)] = &[(1, 2), (2, 2)];

pub(super) const KINDS: [Kind; 29] = [
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
        culprits: 2,
        ..straggler("two-stragglers", "slow-forward", DDP)
    },
    straggler("fsdp2-slow-forward", "slow-forward", FSDP2),
    straggler("fsdp2-slow-backward", "slow-backward", FSDP2),
    slow_data("fsdp2-slow-data", FSDP2),
    straggler("fsdp2-slow-host", "slow-host", FSDP2),
    straggler("fsdp2-large-batch", "large-batch", FSDP2),
];

const fn hang(name: &'static str, sizes: &'static [(u32, u32)]) -> Kind {
    Kind {
        name,
        how: name,
        family: Family::Hang,
        strategies: BOTH,
        sizes,
        culprits: 1,
        inflicted: Inflicted::Script,
        // Some hangs end the run.
        rules: &["RunFailed", "RunRestarted"],
    }
}

const fn straggler(name: &'static str, how: &'static str, strategies: &'static [Strategy]) -> Kind {
    Kind {
        name,
        how,
        family: Family::Straggler,
        strategies,
        sizes: ANY,
        culprits: 1,
        inflicted: Inflicted::Script,
        rules: &[],
    }
}

const fn slow_data(name: &'static str, strategies: &'static [Strategy]) -> Kind {
    Kind {
        rules: &["DataLoadingSlow"],
        ..straggler(name, "slow-data", strategies)
    }
}

/// Returns the kind with a name that must exist.
pub(super) fn named(name: &str) -> &'static Kind {
    KINDS.iter().find(|kind| kind.name == name).unwrap()
}

impl Strategy {
    /// Returns the name of the strategy in `faulty.py`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ddp => "ddp",
            Self::Fsdp2 => "fsdp2",
        }
    }
}
