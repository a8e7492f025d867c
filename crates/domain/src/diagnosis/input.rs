//! Input of the analysers: measurements of one attempt, in order of their times.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ident::{NodeName, Rank};
use crate::run::inspect::{FlightDigest, Frame};
use crate::time::TimestampMs;

/// Several steps of one rank, combined. The pools of all ranks of an attempt end at the same step numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// Number of the rank.
    pub rank: Rank,
    /// Node of the rank.
    pub node: NodeName,
    /// Number of the first step.
    pub first_step: u64,
    /// Number of the last step.
    pub last_step: u64,
    /// When the last step ended, by the node's clock.
    pub at_ms: TimestampMs,
    /// Seconds per step: the mean over the steps.
    pub mean: StepParts,
    /// Seconds per step: for each part, the maximum over the steps.
    pub max: StepParts,
    /// Samples in one micro-batch, if the probe reports it.
    pub micro_batch: Option<f64>,
    /// Loss, learning rate and related values.
    pub learning: Learning,
    /// Checksum of the parameters in the last step; absent in most pools.
    pub parameters: Option<ParametersChecksum>,
}

/// Checksum of the parameters that a rank shares with other ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParametersChecksum {
    /// Lowest rank of those that hold the same parameters.
    pub group: u32,
    /// The checksum, below 2^52.
    pub checksum: u64,
}

/// Loss, learning rate and related values of a rank in the steps of a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Learning {
    /// Loss of the rank itself, before any average over ranks.
    pub loss: Option<f64>,
    /// Highest learning rate of the optimizer.
    pub rate: Option<f64>,
    /// Gradient norm. For a sharded model, the norm of this rank's shard.
    pub gradient: Option<f64>,
    /// Norm of the rank's own gradients of a few parameters, before they are combined with those of other ranks.
    pub own_gradient: Option<f64>,
    /// First tensor of its batches.
    pub input: Distribution,
    /// Labels of its batches, or their last tensor.
    pub label: Distribution,
    /// Share of the most frequent class among its labels.
    pub label_top: Option<f64>,
}

/// Distribution of the elements of a tensor.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Distribution {
    /// Mean.
    pub mean: Option<f64>,
    /// Standard deviation.
    pub deviation: Option<f64>,
}

/// Seconds of a step by part. A part that is not measured is absent, never 0.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepParts {
    /// Whole step.
    pub step: Option<f64>,
    /// Wait for the data loader.
    pub data: Option<f64>,
    /// Forward pass, without exposed waits.
    pub forward: Option<f64>,
    /// Backward pass, without exposed waits.
    pub backward: Option<f64>,
    /// Step of the optimizer, without exposed waits.
    pub optimizer: Option<f64>,
    /// Time in which training waits for a checkpoint to be saved.
    pub save: Option<f64>,
    /// Exposed wait for other ranks.
    pub sync: Option<f64>,
    /// Rest of the step: code of the script outside of forward, backward and optimizer.
    pub host: Option<f64>,
}

/// Position of one rank at this time. The agent reads it twice per second from the rank's mid-step page and from `/proc`.
#[derive(Debug, Clone, PartialEq)]
pub struct Position {
    /// Number of the rank.
    pub rank: Rank,
    /// Node of the rank.
    pub node: NodeName,
    /// When it was read, by the node's clock.
    pub at_ms: TimestampMs,
    /// State of the process, from `/proc/PID/stat`.
    pub process: ProcessCondition,
    /// Mid-step page of the rank; absent if it has none (no probe, a wrapper, an old torch).
    pub page: Option<Page>,
}

/// A record of the mid-step page.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Page {
    /// Last step known to have ended. Other than `moves`, it may be reported late.
    pub step: u64,
    /// Current phase of the rank.
    pub phase: Phase,
    /// Seconds that the rank has been in this phase.
    pub in_phase_s: f64,
    /// Batches fetched, backward passes begun and steps ended since the process started. Grows while the rank moves, even if no step ends.
    pub moves: u64,
}

/// Phase of a rank, as its probe reports it. The numbers are the values of `train_phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Phase {
    /// Before `import torch` has ended.
    Starting = 0,
    /// torch is imported.
    TorchImported = 1,
    /// Inside `init_process_group`: waiting for all ranks to connect.
    Rendezvous = 2,
    /// The process group exists. No model is wrapped and no batch was fetched yet.
    GroupMade = 3,
    /// The model is wrapped (DDP, FSDP). No batch was fetched yet.
    ModelWrapped = 4,
    /// Waiting for the data loader.
    Data = 5,
    /// Forward pass, or code of the script between a fetch and the backward pass.
    Forward = 6,
    /// Backward pass.
    Backward = 7,
    /// Step of the optimizer.
    Optimizer = 8,
    /// Code of the script between the end of a step and the next fetch.
    Host = 9,
    /// Inside a collective or a receive for which the host waits.
    Collective = 10,
    /// Saving a checkpoint.
    Save = 11,
    /// The script has ended and Python shuts down.
    Ending = 12,
}

/// State of a rank's process in the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ProcessCondition {
    /// Running or sleeping normally.
    #[default]
    Alive,
    /// Stopped by a signal or traced (`T`, `t`).
    Stopped,
    /// In uninterruptible sleep (`D`) in all of the last readings.
    Uninterruptible,
    /// The process has ended.
    Ended,
}

/// Answer of one rank to a request for its Flight Recorder.
#[derive(Debug, Clone, PartialEq)]
pub struct FlightAnswer {
    /// Number of the rank.
    pub rank: Rank,
    /// When it answered, by the collector's clock.
    pub at_ms: TimestampMs,
    /// Digest of the Flight Recorder; absent if the rank did not answer, or its torch has no Flight Recorder for its backend.
    pub digest: Option<FlightDigest>,
}

/// Stack samples of one rank.
#[derive(Debug, Clone, PartialEq)]
pub struct StackAnswer {
    /// Number of the rank.
    pub rank: Rank,
    /// When the last sample was taken, by the collector's clock.
    pub at_ms: TimestampMs,
    /// Calls of the main thread, the innermost first, per sample. There are fewer samples than requested if the rank did not always answer.
    pub samples: Vec<Vec<Frame>>,
    /// Pipe that the main thread read in each sample, if no other process had it open.
    pub pipe_without_writer: Option<String>,
}

/// Resources that a rank's process has used since it started, and the condition of its GPU. Unknown values are absent.
#[derive(Debug, Clone, PartialEq)]
pub struct Resources {
    /// Number of the rank.
    pub rank: Rank,
    /// When it was read, by the node's clock.
    pub at_ms: TimestampMs,
    /// `train_cpu_seconds_total`.
    pub cpu_seconds_total: Option<f64>,
    /// `train_run_delay_seconds_total`.
    pub run_delay_seconds_total: Option<f64>,
    /// `train_major_faults_total`.
    pub major_faults_total: Option<f64>,
    /// `train_host_memory_bytes`.
    pub host_memory_bytes: Option<f64>,
    /// Condition of the rank's GPU.
    pub gpu: Option<GpuCondition>,
}

/// Condition of a rank's GPU.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GpuCondition {
    /// Reasons for throttling now, as in `gpu_throttle`, without those of an idle GPU; empty if the GPU does not throttle, or if its driver does not
    /// say so.
    pub throttle_reasons: Vec<String>,
    /// PCIe lanes as a share of the maximum that GPU and slot support together.
    pub pcie_width_ratio: Option<f64>,
}

/// Counters of a node's kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeResources {
    /// Name of the node.
    pub node: NodeName,
    /// When they were read, by the node's clock.
    pub at_ms: TimestampMs,
    /// Number of processors.
    pub cpus: Option<f64>,
    /// `node_cpu_seconds_total{mode="steal"}`.
    pub steal_seconds_total: Option<f64>,
}

// === values of series ===

impl Phase {
    /// Returns the phase for a value of `train_phase`; `None` for a value that this version does not know.
    #[must_use]
    pub fn from_value(value: f64) -> Option<Self> {
        use Phase as P;
        const ALL: [Phase; 13] = [
            P::Starting,
            P::TorchImported,
            P::Rendezvous,
            P::GroupMade,
            P::ModelWrapped,
            P::Data,
            P::Forward,
            P::Backward,
            P::Optimizer,
            P::Host,
            P::Collective,
            P::Save,
            P::Ending,
        ];
        ALL.into_iter().find(|phase| f64::from(*phase as u8) == value)
    }
}

impl ProcessCondition {
    /// Returns the condition for a value of `train_process_state`.
    #[must_use]
    pub fn from_value(value: f64) -> Option<Self> {
        [
            (0.0, Self::Alive),
            (1.0, Self::Stopped),
            (2.0, Self::Uninterruptible),
            (3.0, Self::Ended),
        ]
        .into_iter()
        .find_map(|(known, condition)| (known == value).then_some(condition))
    }
}
