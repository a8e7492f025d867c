//! Messages between collector and agent about one node task of an attempt. They are JSON inside `Command` and `RunEvent`.
//!
//! Both sides may be older or newer than the other: fields are only ever added, with a default. An enum inside a report keeps an unknown
//! word in its last variant, `Other`: one unknown word must not make a whole report unreadable. [`read_report`](super::read_report) reads a
//! report whose kind this version does not know.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ident::Rank;
use crate::run::checkpoint::{CheckpointReport, PruneOrder, RemovalOrder};
use crate::run::knob::KnobAnswer;
use crate::run::mesh::RankMesh;
use crate::run::provenance::Provenance;
use crate::run::secret::SecretValue;
use crate::run::spec::Spec;
use crate::run::state::RankExit;
use crate::run::unobserved::RankUnobserved;

/// A command to a node. A node that receives the same command twice must carry it out only once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum NodeCommand {
    /// Check that the run could start here, and lease a port. Answered by `Prepared` or `PrepareFailed`.
    Prepare {
        /// The specification of the run.
        spec: Box<Spec>,
        /// Index of this node among the nodes of the attempt.
        node_rank: u32,
        /// Number of nodes of the attempt.
        nnodes: u32,
        /// The checkpoint to resume from. It must be readable on this node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resume_from: Option<String>,
    },
    /// Check whether a file that another node wrote is visible here too. Answered by `Looked`. Sent only to a node that wrote such a file
    /// itself.
    LookFor {
        /// Path of the file.
        path: String,
    },
    /// Measure the bandwidth to one other node. Answered by `Measured`. Sent only if the spec requests it, so never to an agent that is too
    /// old.
    Measure(Measure),
    /// Start the ranks. Answered by `ShimStarted` or `StartFailed`.
    Start(Box<Start>),
    /// The order to remove checkpoints from collectors that did not check who wrote them. Collectors no longer send it, and agents refuse
    /// it.
    Checkpoints(PruneOrder),
    /// Remove checkpoints that the run provably wrote, also those of an ended attempt. The next `Checkpoints` report shows the result. Sent
    /// only to a node whose reports say that it can prove who wrote them.
    Remove(RemovalOrder),
    /// End all processes of the attempt. Always answered by `Ended`.
    Stop {
        /// Time between SIGTERM and SIGKILL.
        grace_ms: u64,
    },
    /// Let every rank end by itself at the end of this optimizer step.
    StopAfter {
        /// The step, as the probe counts.
        step: u64,
        /// Time in which ranks that reached the step may save, whatever happens to the other ranks.
        #[serde(default)]
        grace_ms: u64,
    },
    /// Let every rank set knobs at the end of its next step, while it trains. Each rank answers with `KnobAnswered`. Sent only to a node
    /// whose `Prepared` says that it supports this.
    TurnLive {
        /// Number of the change in place within the attempt; answers contain it.
        live: u32,
        /// Knobs with their values; `None` restores the script's own value.
        set: BTreeMap<String, Option<String>>,
    },
}

/// All that a node needs to start its ranks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Start {
    /// The specification of the run.
    pub spec: Spec,
    /// Index of this node among the nodes of the attempt, from 0.
    pub node_rank: u32,
    /// Number of nodes of the attempt.
    pub nnodes: u32,
    /// Processes per node.
    pub nproc: u32,
    /// Address at which node 0 listens for the rendezvous.
    pub master_addr: String,
    /// The port that node 0 leased.
    pub master_port: u16,
    /// The checkpoint to resume from; ranks find it in `LOCKSTEP_RESUME_FROM`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume_from: Option<String>,
    /// True if no attempt of the run was started before: then everything in the run's checkpoint folder existed before the run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_first: bool,
    /// The step of that checkpoint. Ranks count on from it, so that a step has the same number in all attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume_step: Option<u64>,
    /// The values of the spec's secrets. They are inserted when the command is sent and are never stored.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, SecretValue>,
}

impl Start {
    /// Returns a copy that may be stored.
    #[must_use]
    pub fn without_secrets(&self) -> Self {
        Self {
            secrets: BTreeMap::new(),
            ..self.clone()
        }
    }
}

/// One pair of a bandwidth check, as each of its two nodes receives it. The listening node created the secret and reported it in
/// `Prepared`. The secret is valid for one attempt and allows only a measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Measure {
    /// The round; the answer repeats it.
    pub round: u32,
    /// Name of the other node, for display.
    pub peer: String,
    /// True if this node waits at its leased port for the other one.
    pub listens: bool,
    /// Address of the listening node.
    pub address: String,
    /// Port of the listening node.
    pub port: u16,
    /// The secret that both nodes share.
    pub secret: SecretValue,
    /// How long each direction is measured, in milliseconds.
    pub one_way_ms: u64,
    /// Time after which the node gives up and reports that, in milliseconds.
    pub within_ms: u64,
}

/// The result of a bandwidth measurement on the node that received the data.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Measured {
    /// The round.
    pub round: u32,
    /// MiB per second; 0 if the other node cannot be reached, `None` if it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mib_s: Option<f64>,
    /// Why it was not measured, as text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
}

/// A report from a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
#[expect(
    clippy::large_enum_variant,
    reason = "reports are handled one by one and not stored in bulk"
)]
pub enum NodeReport {
    /// A command arrived. The node will carry it out even if the connection is lost.
    Accepted {
        /// Id of the command.
        command: u64,
    },
    /// The node will not carry out a command.
    Refused {
        /// Id of the command.
        command: u64,
        /// Why not.
        reason: String,
    },
    /// The run can start on this node.
    Prepared(Prepared),
    /// The run cannot start on this node.
    PrepareFailed {
        /// What is missing, and how to provide it.
        message: String,
    },
    /// The answer to `LookFor`.
    Looked {
        /// True if the file is visible here.
        seen: bool,
    },
    /// The answer to `Measure`.
    Measured(Measured),
    /// The shim, which owns the ranks, runs.
    ShimStarted {
        /// Process id of the shim.
        pid: u32,
        /// The torchrun command line, for display.
        command: String,
        /// What holds the processes together until all of them have ended (for example a cgroup), for display; empty from an older agent.
        #[serde(default)]
        kept_by: String,
    },
    /// The ranks could not be started.
    StartFailed {
        /// Why not.
        message: String,
    },
    /// A command that is only watched exists. This is the first report about it.
    Watched(Watched),
    /// A rank exists.
    RankStarted {
        /// The rank.
        rank: Rank,
        /// Its local rank.
        local_rank: u32,
        /// Its process id.
        pid: u32,
    },
    /// A rank finished its first step.
    FirstStep {
        /// The rank.
        rank: Rank,
        /// The number of the step.
        step: u64,
    },
    /// The checkpoints that this node can see. Sent when they change, also after `Ended`.
    Checkpoints(CheckpointReport),
    /// A rank makes no progress, and not because it waits for another rank of its node. Sent once, and again when the cause changes.
    RankStalled {
        /// The rank.
        rank: Rank,
        /// The last step that the rank finished; absent before the first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<u64>,
        /// How long the stall has lasted so far, in milliseconds.
        for_ms: u64,
        /// How the node detected it.
        cause: StallCause,
    },
    /// A stalled rank makes progress again.
    RankRecovered {
        /// The rank.
        rank: Rank,
    },
    /// A rank reached the stop point and is ending.
    StopStep {
        /// The rank.
        rank: Rank,
        /// The number of the step.
        step: u64,
    },
    /// The probe of a rank applied a knob, or could not. Sent once per knob and outcome; for a change in place once per rank.
    KnobAnswered(KnobAnswer),
    /// A rank's place in the mesh that its script created. Sent once per rank and mesh.
    RankMesh(RankMesh),
    /// What cannot be observed about a rank. Sent if there is anything, and again when it changes; also after `Ended`.
    #[serde(rename = "rank_unseen")]
    RankUnobserved(RankUnobserved),
    /// A rank ended.
    RankExited(RankExit),
    /// Nothing of the attempt is left on the node.
    Ended(NodeEnd),
}

impl NodeReport {
    /// Returns true if nothing of the attempt is left on the node that reports this.
    #[must_use]
    pub fn is_end(&self) -> bool {
        matches!(
            self,
            Self::Ended(_) | Self::Refused { .. } | Self::PrepareFailed { .. } | Self::StartFailed { .. }
        )
    }
}

/// What a node found during preflight.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Prepared {
    /// Address at which the other nodes reach this one.
    pub address: String,
    /// A free port, leased for the attempt.
    pub port: u16,
    /// The Python interpreter that will be used.
    pub python: String,
    /// Version of that interpreter.
    pub python_version: String,
    /// Version of PyTorch.
    pub torch_version: String,
    /// Number of GPUs that PyTorch can use.
    pub gpus: u32,
    /// Number of processes that this node would start if the run does not set it.
    pub nproc_default: u32,
    /// Version of the NVIDIA driver; empty if there is none.
    pub driver: String,
    /// The CUDA version that PyTorch was built with; empty if none.
    pub cuda: String,
    /// Version of NCCL in PyTorch; empty if none.
    pub nccl: String,
    /// SHA-256 of the script, in hexadecimal; empty for a recipe.
    pub script_sha256: String,
    /// The commit that was checked out, if the run names a git revision.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub commit: String,
    /// Modules that the script imports and that were not found, although the script may still find them itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub doubtful_imports: Vec<String>,
    /// Free bytes where the run works.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir_free_bytes: Option<u64>,
    /// Free bytes where the run saves checkpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_free_bytes: Option<u64>,
    /// Path of a file that this node wrote to the checkpoint folder, for the other nodes to look for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The container's image: the run's, or the agent's own as far as it can be determined from inside; empty otherwise.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub image: String,
    /// What the collectives will use: the interface of their sockets first, then RDMA ports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<Nic>,
    /// This node's address on that interface; empty if it is the same as `address`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub data_address: String,
    /// The secret that allows another node to measure the bandwidth to this node; empty if the run does not request a measurement.
    #[serde(skip_serializing_if = "SecretValue::is_empty")]
    pub door: SecretValue,
    /// Code and packages; from the first node only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
    /// True if the agent and the probe of its ranks support `TurnLive`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub turns_live: bool,
}

/// A network interface, or a port of an RDMA adapter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Nic {
    /// Name of the interface or port: `eth0`, or `mlx5_0:1`.
    pub name: String,
    /// True for a port of an RDMA adapter.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rdma: bool,
    /// Speed of the link in megabits per second; `None` where there is none, for example on a virtual interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed_mbit: Option<u64>,
    /// Size of the largest packet, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// True if there is a link, or the port is active; `None` where the system does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<bool>,
}

/// How a node task ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeEnd {
    /// Exit code of the launcher.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// Signal that ended the launcher.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// What ended it.
    pub cause: EndCause,
    /// The last output of the launcher, or other information for a person; may be empty.
    pub message: String,
}

/// What ended a node task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndCause {
    /// The ranks ended by themselves, with or without a failure.
    #[default]
    Finished,
    /// The node was told to stop it.
    Stopped,
    /// Nothing had been started yet.
    NeverStarted,
    /// The shim vanished (it was killed, or the machine restarted), so the exits of the ranks are not known.
    ShimDied,
    /// A cause that this version does not know, as the newer agent wrote it.
    #[serde(untagged)]
    Other(String),
}

impl StallCause {
    /// Returns the word for the protocol and for labels.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Stopped => "stopped",
            Self::NoStep => "no_step",
            Self::Uninterruptible => "uninterruptible",
            Self::Other(word) => word,
        }
    }
}

/// How a node detected that a rank makes no progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StallCause {
    /// A signal or a debugger stopped its process.
    Stopped,
    /// It has finished no step for much longer than its steps take.
    NoStep,
    /// Its process waits in the kernel for a disk, a network file system or a driver, and cannot be interrupted.
    Uninterruptible,
    /// A cause that this version does not know, as the newer agent wrote it. It counts as `NoStep`.
    #[serde(untagged)]
    Other(String),
}

/// The first report of a node about a command that it only watches.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Watched {
    /// The run's name, for display.
    pub name: String,
    /// The script; the program if the command contains no script.
    pub program: String,
    /// The command, for display.
    pub command: String,
    /// Process id of the command.
    pub pid: u32,
    /// True if no user registered the command: the agent found its ranks among the node's processes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub found: bool,
}
