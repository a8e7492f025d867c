//! What analysers find out: who holds a run up, by what it is known, and what it costs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::diagnosis::input::Phase;
use crate::event::Severity;
use crate::ident::{NodeName, Rank};
use crate::run::ranks::RankSet;
use crate::time::TimestampMs;

/// One thing that is wrong with a run, or worth knowing about it, now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// What it is.
    pub kind: FindingKind,
    /// Who causes it.
    pub culprit: Culprit,
    /// What the culprit does meanwhile, or in which phase it loses the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Why.
    pub cause: Cause,
    /// Since when, by the nodes' clocks.
    pub since_ms: TimestampMs,
    /// Since which step; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_step: Option<u64>,
    /// By what it is known, the strongest first.
    pub witnesses: Vec<Witness>,
    /// Whether only one witness speaks for it. A suspect is shown, and no one is alerted.
    pub is_suspect: bool,
    /// Whether another finding of the run explains it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_symptom: bool,
    /// How bad.
    pub severity: Severity,
    /// What it has cost since it began, in seconds of the whole run.
    pub lost_seconds: f64,
}

/// Kinds of findings.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// The run does not advance, and will not.
    Hang,
    /// One rank does something by itself, such as an evaluation, while the others wait.
    WorksAlone,
    /// A rank that is slower than its peers in nearly all steps.
    Straggler,
    /// A rank that stands still now and then while the others wait.
    RareStalls,
    /// A rank whose loss, or whose learning rate, stays apart from its peers'.
    UnevenLearning,
    /// A node of which nothing is heard. Nothing is said about its ranks.
    NodeBlind,
    /// A kind of a newer version.
    #[serde(untagged)]
    Other(String),
}

/// Who causes a finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum Culprit {
    /// These ranks.
    Ranks {
        /// One or several.
        ranks: RankSet,
        /// Where they run, each node once.
        nodes: Vec<String>,
    },
    /// All ranks of one node.
    Node {
        /// The node.
        node: String,
        /// Its ranks.
        ranks: RankSet,
    },
    /// The ranks disagree, and neither side is more likely to be wrong.
    Sides {
        /// Ranks that agree with each other.
        sides: Vec<RankSet>,
    },
    /// It is not known.
    Unknown,
}

/// Why.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The process has ended.
    Ended,
    /// The process is stopped by a signal or a debugger.
    Stopped,
    /// The process waits in the kernel for a disk, a network file system or a driver.
    Uninterruptible,
    /// It has not enqueued the operation that its peers wait in.
    NotEnqueued,
    /// It holds the interpreter lock, so that its stack could not be read.
    HoldsInterpreter,
    /// It waits for a message that no rank sends.
    MessageMissing,
    /// Ranks do different operations, or operations on other sizes or types.
    Desynchronised,
    /// Ranks entered two process groups in different orders.
    GroupOrder,
    /// All have enqueued the operation, and the network's counters show errors.
    Network,
    /// All have enqueued the operation, and this rank's kernel has not started.
    KernelNotStarted,
    /// It works, as its changing stack shows.
    Working,
    /// It saves a checkpoint.
    Saving,
    /// Its GPU throttles.
    Throttled,
    /// Its GPU's clock is lower than the others'.
    LowClock,
    /// Its process waits for a processor.
    RunDelay,
    /// Its process waits for a processor, and so do those of its peers: it is chance which of them is late.
    BusyProcessors,
    /// The hypervisor takes processor time from its node.
    Steal,
    /// Another process works on its GPU.
    OtherProcess,
    /// Its GPU has fewer PCIe lanes than the slot allows.
    PcieWidth,
    /// Its memory is read back from disk.
    MajorFaults,
    /// Its batches are larger.
    LargerBatch,
    /// Waiting for the data loader.
    Data,
    /// Its own computing takes longer, and nothing else is known.
    Computing,
    /// The script's own code between steps.
    HostCode,
    /// Its loss is another than its peers': it learns from other data, or computes something else.
    OtherLoss,
    /// Its inputs lie elsewhere than its peers'.
    OtherInputs,
    /// Its labels lie elsewhere than its peers'.
    OtherLabels,
    /// It steps with another learning rate than its peers.
    OtherLearningRate,
    /// The learning rate has been raised since the loss was lowest.
    LearningRateRaised,
    /// The gradients have grown with the loss.
    GradientsGrew,
    /// The loss has not fallen since the attempt began.
    NeverFell,
    /// The loss fell, and falls no more.
    StoppedFalling,
    /// Its node is not heard.
    NotHeard,
    /// It is not known.
    Unknown,
    /// A cause of a newer version.
    #[serde(untagged)]
    Other(String),
}

/// One measurement that speaks for a finding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Witness {
    /// Who measured it.
    pub source: Source,
    /// What was measured.
    pub what: Evidence,
    /// The value.
    pub value: f64,
    /// Its unit, as `domain::metric::Unit` writes it; empty for numbers and counts.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unit: String,
    /// The value it is held against: of its peers, or what is usual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compared_with: Option<f64>,
    /// What a number cannot say: the name of an operation, of a function, of a reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// Who measured something. Two witnesses are two different sources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum Source {
    /// A training process.
    Rank {
        /// Which.
        rank: Rank,
    },
    /// Several training processes that agree.
    Peers {
        /// Which.
        ranks: RankSet,
    },
    /// The kernel of a node.
    Kernel {
        /// Which.
        node: NodeLabel,
    },
    /// The GPU driver of a node.
    Driver {
        /// Which.
        node: NodeLabel,
    },
    /// Network interfaces of a node.
    Nic {
        /// Which.
        node: NodeLabel,
    },
    /// The agent of a node, or its silence.
    Agent {
        /// Which.
        node: NodeLabel,
    },
}

/// A node's name as the API writes it.
pub type NodeLabel = String;

/// What was measured.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// Seconds since the rank last moved.
    SecondsWithoutMove,
    /// Seconds for which the peers have waited in a collective.
    WaitsInCollective,
    /// The kernel's state of the process; the value is that of `train_process_state`.
    ProcessState,
    /// The last operation that the rank enqueued in the group, held against the one that its peers wait in.
    LastEnqueued,
    /// The operation in which the rank waits.
    UnfinishedOperation,
    /// Different stacks among the samples.
    DifferentStacks,
    /// Share of a processor that the rank used.
    CpuShare,
    /// The main thread reads a pipe that no other process has open; the value is 1, the detail is the pipe.
    PipeWithoutWriter,
    /// Seconds per step that the rank's peers wait and the rank does not.
    PeersWait,
    /// Seconds per step in a phase.
    PhaseSeconds,
    /// Seconds per step in a phase that are usual for the rank itself.
    OwnUsualSeconds,
    /// Seconds per minute that were lost.
    LostPerMinute,
    /// Share of time the GPU throttled, or 1 while it does.
    Throttled,
    /// The GPU's clock as a share of the highest.
    ClockRatio,
    /// Share of time the process waited for a processor.
    RunDelay,
    /// Share of the node's processor time that the hypervisor took.
    Steal,
    /// Other processes on the GPU.
    OtherProcesses,
    /// PCIe lanes as a share of the most possible.
    PcieWidthRatio,
    /// Major page faults per second.
    MajorFaults,
    /// Samples in a micro-batch.
    MicroBatch,
    /// Network errors and retransmissions per second.
    NetworkErrors,
    /// Whether the kernel of the operation has started on the GPU.
    KernelStarted,
    /// The rank's own loss, before anything is averaged over ranks.
    OwnLoss,
    /// Mean of the first tensor of its batches.
    InputMean,
    /// Mean of the last tensor of its batches.
    LabelMean,
    /// The optimizer's highest learning rate.
    LearningRate,
    /// Seconds since the node was heard.
    NotHeard,
    /// Something that a newer version measures.
    #[serde(untagged)]
    Other(String),
}

impl Culprit {
    /// Ranks and their nodes, each node once.
    pub(super) fn ranks<'a>(members: impl IntoIterator<Item = (Rank, &'a NodeName)>) -> Self {
        let mut ranks = RankSet::default();
        let mut nodes: Vec<String> = Vec::new();
        for (rank, node) in members {
            ranks.insert(rank);
            if !nodes.iter().any(|known| known == node.as_str()) {
                nodes.push(node.as_str().to_owned());
            }
        }
        Culprit::Ranks { ranks, nodes }
    }
}
