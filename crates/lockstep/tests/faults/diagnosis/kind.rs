//! What a kind of fault is. `kinds.rs` lists them.

use std::time::Duration;

/// Lowest and highest value that a trial may draw.
pub(super) type Range = (f64, f64);

/// One kind of fault.
#[derive(Debug, Clone, Copy, PartialEq)]
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
    pub(super) culprit: Culprit,
    pub(super) inflicted: Inflicted,
    /// Rules that match this kind, in addition to those that mark a rank as stuck (hangs) or late (stragglers).
    pub(super) rules: &'static [&'static str],
    /// Maximum number of restarts of the run.
    pub(super) restarts: u32,
    /// Duration of a step in seconds.
    pub(super) step_s: Range,
    /// Time before the fault, in which training is even, in seconds. If both are 0, the fault comes before the first step.
    pub(super) even_s: Range,
    /// Magnitude of the fault: for a straggler the extra time as a fraction of a step, otherwise in the unit of the fault in `faulty.py`.
    pub(super) magnitude: Range,
    /// A fault that is not named within this time counts as not named. It is longer than the periods of the rules.
    pub(super) watched: Duration,
}

/// The effect of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// No rank makes progress any more.
    Hang,
    /// All ranks make progress, but wait for one.
    Straggler,
    /// All ranks become slower.
    Throughput,
    /// The parameters, gradients or losses are wrong.
    Learning,
    /// Ranks get wrong data, or get them too slowly.
    Data,
    /// Checkpoints are not saved, or saving takes long.
    Checkpoint,
    /// A rank or a node ends.
    Failure,
}

/// Whom the alerts must name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Culprit {
    /// Each of this many ranks, and no other rank or node.
    Ranks(u32),
    /// The run. One rank has the fault and may be named, but no other one.
    RankOrRun,
    /// The run, and no rank or node: all ranks have the fault.
    Run,
    /// The node of one rank, and no rank.
    Node,
}

/// How the ranks share the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strategy {
    Ddp,
    Fsdp2,
    /// FSDP2 on a mesh with pairs of ranks that shard, and replicas of these pairs.
    Hsdp,
}

/// How the fault is caused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inflicted {
    /// The script causes it.
    Script,
    /// The test sends SIGSTOP to the rank.
    Stop,
    /// The test sends SIGKILL to the rank.
    Kill,
    /// The test starts programs that compute on the rank's core.
    Burn,
    /// The rank saves its checkpoints on a small file system, and the test fills it. Needs root.
    FillDisk,
    /// The test sends SIGKILL to the agent of the rank's node.
    KillAgent,
    /// The test sends SIGKILL to all processes of the rank's node.
    KillNode,
}

impl Family {
    /// In the order of their tables.
    pub(super) const ALL: [Self; 7] = [
        Self::Hang,
        Self::Straggler,
        Self::Throughput,
        Self::Learning,
        Self::Data,
        Self::Checkpoint,
        Self::Failure,
    ];

    /// Returns the heading of the family's table.
    pub(super) fn heading(self) -> &'static str {
        match self {
            Self::Hang => "Hangs",
            Self::Straggler => "Stragglers",
            Self::Throughput => "Throughput",
            Self::Learning => "Learning",
            Self::Data => "Data",
            Self::Checkpoint => "Checkpoints",
            Self::Failure => "Failures",
        }
    }

    /// Returns the state of a rank in the alerts that match any kind of this family, if there is one.
    pub(super) fn rank_state(self) -> Option<&'static str> {
        match self {
            Self::Hang => Some("stuck"),
            Self::Straggler => Some("late"),
            _ => None,
        }
    }
}

impl Culprit {
    /// Returns the number of ranks to draw.
    pub(super) fn ranks(self) -> u32 {
        match self {
            Self::Ranks(count) => count,
            Self::RankOrRun | Self::Node => 1,
            Self::Run => 0,
        }
    }
}

impl Strategy {
    /// Returns the name of the strategy in `faulty.py`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ddp => "ddp",
            Self::Fsdp2 => "fsdp2",
            Self::Hsdp => "hsdp",
        }
    }
}
