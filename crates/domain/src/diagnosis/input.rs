//! What analysers are fed with: measurements of one attempt, in the order of their event times.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ident::{NodeName, Rank};
use crate::run::inspect::{FlightDigest, Frame};
use crate::time::TimestampMs;

/// Steps of one rank, put together. Pools of all ranks of an attempt end at the same step numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// Whose.
    pub rank: Rank,
    /// Where it runs.
    pub node: NodeName,
    /// Number of its first step.
    pub first_step: u64,
    /// Number of its last step.
    pub last_step: u64,
    /// When the last step ended, by the node's clock.
    pub at_ms: TimestampMs,
    /// Seconds of one step: the mean over its steps.
    pub mean: StepParts,
    /// Seconds of one step: for each part the longest among its steps.
    pub max: StepParts,
    /// Samples in one micro-batch, where the probe knows.
    pub micro_batch: Option<f64>,
    /// What it learns with.
    pub learning: Learning,
}

/// How a rank learns in the steps of a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Learning {
    /// Its own loss, before anything is averaged over ranks.
    pub loss: Option<f64>,
    /// The optimizer's highest learning rate.
    pub rate: Option<f64>,
    /// Gradient norm; of a sharded model the norm of this rank's part.
    pub gradient: Option<f64>,
    /// The first tensor of its batches.
    pub input: Distribution,
    /// The last tensor of its batches.
    pub label: Distribution,
}

/// Where the elements of a tensor lie.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Distribution {
    /// Their mean.
    pub mean: Option<f64>,
    /// Their standard deviation.
    pub deviation: Option<f64>,
}

/// How the seconds of a step are spent. What is not measured is absent, never 0.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepParts {
    /// The whole step.
    pub step: Option<f64>,
    /// Waiting for the data loader.
    pub data: Option<f64>,
    /// Forward pass, without exposed waits.
    pub forward: Option<f64>,
    /// Backward pass, without exposed waits.
    pub backward: Option<f64>,
    /// The optimizer's step, without exposed waits.
    pub optimizer: Option<f64>,
    /// Standing still for a checkpoint.
    pub save: Option<f64>,
    /// Exposed wait for other ranks.
    pub sync: Option<f64>,
    /// What no other part explains: code of the script outside of forward, backward and optimizer.
    pub host: Option<f64>,
}

/// Where one rank is right now, read by the node twice per second from the rank's mid-step page and `/proc`.
#[derive(Debug, Clone, PartialEq)]
pub struct Position {
    /// Whose.
    pub rank: Rank,
    /// Where it runs.
    pub node: NodeName,
    /// When it was read, by the node's clock.
    pub at_ms: TimestampMs,
    /// What the process does, by `/proc/PID/stat`.
    pub process: ProcessCondition,
    /// Its mid-step page; absent where the rank has none (no probe, a wrapper, an old torch).
    pub page: Option<Page>,
}

/// A record of the mid-step page.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Page {
    /// The last step that ended.
    pub step: u64,
    /// What the rank does.
    pub phase: Phase,
    /// For how long it has been in this phase, in seconds.
    pub in_phase_s: f64,
    /// Batches fetched and backward passes begun since the process began: grows while the rank moves, also when no step ends.
    pub moves: u64,
}

/// What a rank does, as its probe sees it. The numbers are the values of `train_phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Phase {
    /// Before `import torch` has ended.
    Starting = 0,
    /// torch is imported.
    TorchImported = 1,
    /// Inside `init_process_group`: waiting for all ranks to meet.
    Rendezvous = 2,
    /// The process group exists; no model is wrapped and no batch fetched yet.
    GroupMade = 3,
    /// The model is wrapped (DDP, FSDP); no batch fetched yet.
    ModelWrapped = 4,
    /// Waiting for the data loader.
    Data = 5,
    /// Forward pass, or the script's own code between a fetch and the backward pass.
    Forward = 6,
    /// Backward pass.
    Backward = 7,
    /// The optimizer's step.
    Optimizer = 8,
    /// Code of the script between the end of a step and the next fetch.
    Host = 9,
    /// Inside a collective or a receive that the host waits for.
    Collective = 10,
    /// Saving a checkpoint.
    Save = 11,
    /// The script has ended and Python is shutting down.
    Ending = 12,
}

/// What the kernel says about a rank's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessCondition {
    /// Runs or sleeps as processes do.
    Alive,
    /// Stopped by a signal or traced (`T`, `t`).
    Stopped,
    /// In an uninterruptible sleep (`D`) in all of the last readings.
    Uninterruptible,
    /// It has ended.
    Ended,
}

/// Answers of the ranks to one question for their Flight Recorders.
#[derive(Debug, Clone, PartialEq)]
pub struct FlightAnswer {
    /// Whose.
    pub rank: Rank,
    /// When it answered, by the collector's clock.
    pub at_ms: TimestampMs,
    /// What it answered; absent when it did not answer, or its torch has no Flight Recorder for its backend.
    pub digest: Option<FlightDigest>,
}

/// Samples of one rank's stack.
#[derive(Debug, Clone, PartialEq)]
pub struct StackAnswer {
    /// Whose.
    pub rank: Rank,
    /// When the last sample was taken, by the collector's clock.
    pub at_ms: TimestampMs,
    /// The main thread's calls, the innermost first, in each sample that was answered; fewer than were asked for where the rank did not answer.
    pub samples: Vec<Vec<Frame>>,
    /// The pipe that the main thread read in each sample, if no other process had it open.
    pub pipe_without_writer: Option<String>,
}

/// What a rank's process has used since it began, and how its GPU is. What is not known is absent.
#[derive(Debug, Clone, PartialEq)]
pub struct Resources {
    /// Whose.
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
    /// Its GPU.
    pub gpu: Option<GpuCondition>,
}

/// How a rank's GPU is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GpuCondition {
    /// Reasons for which it throttles now, as in `gpu_throttle`, those of an idle GPU left out; empty when it does not.
    pub throttle_reasons: Vec<String>,
    /// Share of time in which it computes.
    pub utilization_ratio: Option<f64>,
    /// SM clock as a share of the highest.
    pub clock_ratio: Option<f64>,
    /// Compute processes on it that are not of the run.
    pub other_processes: Option<u32>,
    /// PCIe lanes as a share of the most that GPU and slot have together.
    pub pcie_width_ratio: Option<f64>,
}

/// What the kernel of a node counts.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeResources {
    /// Which.
    pub node: NodeName,
    /// When it was read, by the node's clock.
    pub at_ms: TimestampMs,
    /// Processors.
    pub cpus: Option<f64>,
    /// `node_cpu_seconds_total{mode="steal"}`.
    pub steal_seconds_total: Option<f64>,
    /// Errors of network interfaces, TCP retransmissions and errors of RDMA ports, summed: whatever is known of them.
    pub network_errors_total: Option<f64>,
}

// === values of series ===

impl Phase {
    /// The phase that a value of `train_phase` stands for; `None` for one that this version does not know.
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
    /// The condition that a value of `train_process_state` stands for.
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
