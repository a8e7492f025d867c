//! Findings of the analysers: which rank slows down or blocks a run, the evidence, and the cost.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::diagnosis::input::Phase;
use crate::event::Severity;
use crate::ident::{NodeName, Rank};
use crate::run::ranks::RankSet;
use crate::time::TimestampMs;

/// A problem of a run, or a fact worth knowing, at this time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Kind of the finding.
    pub kind: FindingKind,
    /// Culprit of the finding.
    pub culprit: Culprit,
    /// What the culprit does at this time, or the phase in which it loses time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Cause of the problem.
    pub cause: Cause,
    /// When it began, by the clocks of the nodes.
    pub since_ms: TimestampMs,
    /// Step in which it began; absent before the first step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_step: Option<u64>,
    /// Witnesses for the finding, the strongest first.
    pub witnesses: Vec<Witness>,
    /// True if there is only one witness. Lockstep shows a suspect but sends no notification.
    pub is_suspect: bool,
    /// True if another finding of the run explains this one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_symptom: bool,
    /// Severity of the finding.
    pub severity: Severity,
    /// Time lost since it began, in seconds of the whole run.
    pub lost_seconds: f64,
}

/// Kind of a finding.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// The run makes no progress and will not recover by itself.
    Hang,
    /// One rank does something by itself, such as an evaluation, while the others wait.
    WorksAlone,
    /// A rank is slower than its peers in nearly all steps.
    Straggler,
    /// A rank stalls intermittently while the others wait.
    RareStalls,
    /// The loss, the learning rate or the own gradients of a rank differ persistently from those of its peers.
    UnevenLearning,
    /// Ranks that should hold the same parameters hold different ones.
    ReplicasDiffer,
    /// The collector receives nothing from a node. It makes no findings about the ranks of that node.
    NodeBlind,
    /// A kind of a newer version.
    #[serde(untagged)]
    Other(String),
}

/// Culprit of a finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum Culprit {
    /// Some ranks.
    Ranks {
        /// One or more ranks.
        ranks: RankSet,
        /// Nodes of these ranks, each once.
        nodes: Vec<String>,
    },
    /// All ranks of one node.
    Node {
        /// Name of the node.
        node: String,
        /// Ranks of the node.
        ranks: RankSet,
    },
    /// The ranks disagree, and no side is more likely to be wrong than the others.
    Sides {
        /// For each side, the ranks that agree with each other.
        sides: Vec<RankSet>,
    },
    /// The culprit is unknown.
    Unknown,
}

/// Cause of a finding.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The process has ended.
    Ended,
    /// The process is stopped by a signal or a debugger.
    Stopped,
    /// The process waits in the kernel for a disk, a network file system or a driver.
    Uninterruptible,
    /// The rank has not enqueued the operation in which its peers wait.
    NotEnqueued,
    /// The rank holds the interpreter lock, so that its stack could not be read.
    HoldsInterpreter,
    /// The rank waits for a message that no rank sends.
    MessageMissing,
    /// Ranks do different operations, or operations with different sizes or types.
    Desynchronised,
    /// Ranks entered two process groups in different orders.
    GroupOrder,
    /// All ranks have enqueued the operation, and the kernel of this rank has not started.
    KernelNotStarted,
    /// The rank computes: its stack changes.
    Working,
    /// The rank saves a checkpoint.
    Saving,
    /// The GPU of the rank throttles.
    Throttled,
    /// The process of the rank waits for a processor.
    RunDelay,
    /// The processes of the rank and of its peers wait for processors. Which of them is late is chance.
    BusyProcessors,
    /// The hypervisor takes processor time from the node.
    Steal,
    /// The GPU of the rank has fewer PCIe lanes than the slot allows.
    PcieWidth,
    /// Memory of the rank is read back from disk.
    MajorFaults,
    /// The batches of the rank are larger.
    LargerBatch,
    /// The rank waits for the data loader.
    Data,
    /// The computation of the rank takes longer for an unknown reason.
    Computing,
    /// Code of the script between steps takes longer.
    HostCode,
    /// The loss of the rank differs from that of its peers: it trains on different data or computes something different.
    OtherLoss,
    /// The inputs of the rank have a different distribution than those of its peers.
    OtherInputs,
    /// The labels of the rank have a different distribution than those of its peers.
    OtherLabels,
    /// The learning rate of the rank differs from that of its peers.
    OtherLearningRate,
    /// The rank's own gradients, before they are combined with those of other ranks, are far larger than those of its peers.
    LargerGradients,
    /// The parameters of the rank were equal to those of its replicas and are not any more.
    ParametersDiverged,
    /// The parameters of the rank have differed from those of its replicas since the first check of the attempt.
    ParametersNeverEqual,
    /// The learning rate was raised after the loss was lowest.
    LearningRateRaised,
    /// The gradients grew together with the loss.
    GradientsGrew,
    /// The loss has not fallen since the attempt began.
    NeverFell,
    /// The loss fell at first and does not fall any more.
    StoppedFalling,
    /// The collector receives nothing from the node.
    NotHeard,
    /// The cause is unknown.
    Unknown,
    /// A cause of a newer version.
    #[serde(untagged)]
    Other(String),
}

/// One measurement that supports a finding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Witness {
    /// Source of the measurement.
    pub source: Source,
    /// What was measured.
    pub what: Evidence,
    /// Measured value.
    pub value: f64,
    /// Unit of the value, as in `domain::metric::Unit`; empty for numbers and counts.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unit: String,
    /// Value to compare with: that of the peers, or the usual value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compared_with: Option<f64>,
    /// Additional text, such as the name of an operation or function, or a reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// Source of a measurement. Two witnesses have different sources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum Source {
    /// A training process.
    Rank {
        /// Number of the rank.
        rank: Rank,
    },
    /// Several training processes that agree.
    Peers {
        /// Their ranks.
        ranks: RankSet,
    },
    /// The kernel of a node.
    Kernel {
        /// Name of the node.
        node: NodeLabel,
    },
    /// The GPU driver of a node.
    Driver {
        /// Name of the node.
        node: NodeLabel,
    },
    /// The agent of a node, or the loss of its connection.
    Agent {
        /// Name of the node.
        node: NodeLabel,
    },
}

/// Name of a node as a text.
pub type NodeLabel = String;

/// What was measured.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// Seconds since the rank last made progress.
    SecondsWithoutMove,
    /// Seconds that the peers have waited in a collective.
    WaitsInCollective,
    /// State of the process in the kernel. The value is that of `train_process_state`.
    ProcessState,
    /// Last operation that the rank enqueued in the group, compared with the one in which its peers wait.
    LastEnqueued,
    /// Operation in which the rank waits.
    UnfinishedOperation,
    /// Number of different stacks among the samples.
    DifferentStacks,
    /// Share of a processor that the rank used.
    CpuShare,
    /// The main thread reads a pipe that no other process has open. The value is 1, the detail is the pipe.
    PipeWithoutWriter,
    /// Seconds per step that the rank's peers wait and the rank does not.
    PeersWait,
    /// Seconds per step in a phase.
    PhaseSeconds,
    /// Seconds per step that the rank itself usually spends in a phase.
    OwnUsualSeconds,
    /// Seconds lost per minute.
    LostPerMinute,
    /// Share of time in which the GPU throttled, or 1 while it throttles.
    Throttled,
    /// Share of time in which the process waited for a processor.
    RunDelay,
    /// Share of the node's processor time that the hypervisor took.
    Steal,
    /// PCIe lanes as a share of the maximum.
    PcieWidthRatio,
    /// Major page faults per second.
    MajorFaults,
    /// Samples in a micro-batch.
    MicroBatch,
    /// 1 if the kernel of the operation has started on the GPU.
    KernelStarted,
    /// Loss of the rank itself, before any average over ranks.
    OwnLoss,
    /// Mean of the first tensor of the rank's batches.
    InputMean,
    /// Mean of the labels of the rank's batches, or of their last tensor.
    LabelMean,
    /// Share of the most frequent class among the rank's labels.
    TopClassShare,
    /// Norm of the rank's own gradients of a few parameters, before they are combined with those of other ranks.
    OwnGradientNorm,
    /// Highest learning rate of the optimizer.
    LearningRate,
    /// Checksum of the parameters, in the last step that was compared.
    ParametersChecksum,
    /// Seconds since the collector last received something from the node.
    NotHeard,
    /// A measurement of a newer version.
    #[serde(untagged)]
    Other(String),
}

impl Culprit {
    /// Returns the culprit for these ranks, with each of their nodes once.
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
