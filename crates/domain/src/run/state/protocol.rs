//! What collector and agent tell each other about one node's part of an attempt; JSON inside `Command` and `RunEvent`.
//!
//! Both sides may be older or newer than the other: fields are only ever added, with a default. An enum inside a report keeps a word
//! that this version does not know in its last variant, `Other`: an unknown word must not make a whole report unreadable. A whole
//! report that this version does not know is read by [`read_report`](super::read_report).

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
use crate::run::unseen::RankUnseen;

/// To a node. Carrying out the same command twice must do no more than once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum NodeCommand {
    /// Check that the run could start here and lease a port; answered by `Prepared` or `PrepareFailed`.
    Prepare {
        /// What is asked for.
        spec: Box<Spec>,
        /// This node's place among the attempt's nodes.
        node_rank: u32,
        /// How many nodes the attempt has.
        nnodes: u32,
        /// The checkpoint the attempt goes on from, which must be readable here.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resume_from: Option<String>,
    },
    /// Look whether a file that another node wrote is here too; answered by `Looked`. Only for a node that wrote one itself.
    LookFor {
        /// The file.
        path: String,
    },
    /// Measure the bandwidth to one other node; answered by `Measured`. Only when the spec asks for it, so
    /// never to an agent that is too old.
    Measure(Measure),
    /// Start the ranks; answered by `ShimStarted` or `StartFailed`.
    Start(Box<Start>),
    /// The order to remove checkpoints of collectors that did not ask who wrote them. It is not given any more, and refused.
    Checkpoints(PruneOrder),
    /// Remove checkpoints that the run provably wrote, also of an attempt that is over; seen by the next `Checkpoints`. Only for a node
    /// whose reports say that it can prove them.
    Remove(RemovalOrder),
    /// End whatever of the attempt is there; always answered by `Ended`.
    Stop {
        /// Time between SIGTERM and SIGKILL.
        grace_ms: u64,
    },
    /// Let every rank end at the end of this optimizer step, by itself.
    StopAfter {
        /// The step, as the probe counts.
        step: u64,
        /// Time for ranks that have come there to save, whatever becomes of the others.
        #[serde(default)]
        grace_ms: u64,
    },
    /// Let every rank set knobs at the end of its next step, while it trains; answered by `KnobAnswered` of each rank. Only to a
    /// node whose `Prepared` says that it can.
    TurnLive {
        /// Which of the attempt's changes in place it is; answers name it.
        live: u32,
        /// Knob and value; no value for what the script itself has.
        set: BTreeMap<String, Option<String>>,
    },
}

/// What a node needs to know to start its ranks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Start {
    /// What is asked for.
    pub spec: Spec,
    /// This node's place among the attempt's nodes, from 0.
    pub node_rank: u32,
    /// How many nodes the attempt has.
    pub nnodes: u32,
    /// Processes on each node.
    pub nproc: u32,
    /// Where node 0 listens for the rendezvous.
    pub master_addr: String,
    /// The port node 0 leased.
    pub master_port: u16,
    /// The checkpoint to go on from; ranks find it in `LOCKSTEP_RESUME_FROM`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume_from: Option<String>,
    /// No attempt of the run was started before: what the run's checkpoint folder holds now was there before the run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_first: bool,
    /// The step that checkpoint holds: ranks count on from it, so that a step has one number in all attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume_step: Option<u64>,
    /// The values of the spec's secrets, put in when the command is sent; in what is stored there are none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, SecretValue>,
}

impl Start {
    /// The same as it may be stored.
    #[must_use]
    pub fn without_secrets(&self) -> Self {
        Self {
            secrets: BTreeMap::new(),
            ..self.clone()
        }
    }
}

/// One pair of a check of bandwidths, as each of its two nodes is told. The node that listens made the secret and told it with its
/// preparation; it is good for one attempt, and opens nothing but a measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Measure {
    /// The round, so that an answer finds its place.
    pub round: u32,
    /// The other node's name, for people.
    pub peer: String,
    /// Whether this node waits at its leased port for the other one.
    pub listens: bool,
    /// Where the listening node is.
    pub address: String,
    /// Its port.
    pub port: u16,
    /// What both know.
    pub secret: SecretValue,
    /// How long each direction is measured, in milliseconds.
    pub one_way_ms: u64,
    /// After which the node gives up and says so, in milliseconds.
    pub within_ms: u64,
}

/// What a node received from the other one of its pair.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Measured {
    /// The round.
    pub round: u32,
    /// MiB a second; 0 when the other node cannot be reached, none when it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mib_s: Option<f64>,
    /// Why not, in words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
}

/// From a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
#[expect(
    clippy::large_enum_variant,
    reason = "reports are taken one by one; none is kept in numbers"
)]
pub enum NodeReport {
    /// A command arrived and will be carried out, whatever happens to the connection.
    Accepted {
        /// Its id.
        command: u64,
    },
    /// A command that this node will not carry out.
    Refused {
        /// Its id.
        command: u64,
        /// Why.
        reason: String,
    },
    /// The run can start here.
    Prepared(Prepared),
    /// The run cannot start here.
    PrepareFailed {
        /// What is missing, and how to get it.
        message: String,
    },
    /// The answer to `LookFor`.
    Looked {
        /// Whether the file is here.
        seen: bool,
    },
    /// The answer to `Measure`.
    Measured(Measured),
    /// The process that owns the ranks is there.
    ShimStarted {
        /// Its process id.
        pid: u32,
        /// The torchrun command line, for people.
        command: String,
        /// What keeps the processes together until all of them have ended, for people; empty from an older agent.
        #[serde(default)]
        kept_by: String,
    },
    /// The ranks could not be started.
    StartFailed {
        /// Why.
        message: String,
    },
    /// A command is there that is only watched; comes before all else of it.
    Watched(Watched),
    /// A rank is there.
    RankStarted {
        /// Its place in the world.
        rank: Rank,
        /// Its place on the node.
        local_rank: u32,
        /// Its process id.
        pid: u32,
    },
    /// A rank finished its first step.
    FirstStep {
        /// Which rank.
        rank: Rank,
        /// The step's number.
        step: u64,
    },
    /// What has been saved where this node can see it; comes when it changed, also behind `Ended`.
    Checkpoints(CheckpointReport),
    /// A rank stands still, and not because it waits for another one on its node. Said once, and again when the cause changes.
    RankStalled {
        /// Which rank.
        rank: Rank,
        /// The last step it finished; absent before the first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<u64>,
        /// For how long already, in milliseconds.
        for_ms: u64,
        /// How that shows.
        cause: StallCause,
    },
    /// A rank that stood still gets on again.
    RankRecovered {
        /// Which rank.
        rank: Rank,
    },
    /// A rank came to the step after which the run was to stop, and is ending.
    StopStep {
        /// Which rank.
        rank: Rank,
        /// The step's number.
        step: u64,
    },
    /// A rank's probe turned a knob, or could not. Said once for each knob and outcome, and of a change in place once for each rank.
    KnobAnswered(KnobAnswer),
    /// A rank's place in the mesh its script has made. Said once for each rank and mesh.
    RankMesh(RankMesh),
    /// What cannot be seen of a rank. Said when there is such a thing, and again when it changes; also behind `Ended`.
    RankUnseen(RankUnseen),
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

/// What a node found when it prepared a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Prepared {
    /// Where the other nodes reach this one.
    pub address: String,
    /// A free port, leased for the attempt.
    pub port: u16,
    /// The interpreter that will be used.
    pub python: String,
    /// Its version.
    pub python_version: String,
    /// The version of PyTorch.
    pub torch_version: String,
    /// GPUs that PyTorch can use.
    pub gpus: u32,
    /// Processes this node would start when the run does not say how many.
    pub nproc_default: u32,
    /// The NVIDIA driver's version; empty without one.
    pub driver: String,
    /// The CUDA version PyTorch was built with; empty without.
    pub cuda: String,
    /// NCCL's version in PyTorch; empty without.
    pub nccl: String,
    /// SHA-256 of the script, in hexadecimal; empty for a recipe.
    pub script_sha256: String,
    /// The commit that was checked out, where the run names a git revision.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub commit: String,
    /// Modules the script imports that are not to be found, where it may still find them by itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub doubtful_imports: Vec<String>,
    /// Free bytes where the run works.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir_free_bytes: Option<u64>,
    /// Free bytes where it saves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_free_bytes: Option<u64>,
    /// A file this node wrote to the folder of checkpoints, for the others to look for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The container's image: the run's, or the agent's own as far as it can be told from inside; empty otherwise.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub image: String,
    /// What the collectives will go over: the interface of their sockets first, then RDMA ports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<Nic>,
    /// This node's address on that interface; empty for `address`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub data_address: String,
    /// Who knows this may measure the bandwidth to this node; empty when the run does not ask for it.
    #[serde(skip_serializing_if = "SecretValue::is_empty")]
    pub door: SecretValue,
    /// Code and packages; from the first node only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
    /// Its agent and the probe of its ranks understand `TurnLive`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub turns_live: bool,
}

/// A network interface, or a port of an RDMA card.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Nic {
    /// `eth0`, or `mlx5_0:1`.
    pub name: String,
    /// A port of an RDMA card.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rdma: bool,
    /// What the link runs at, in megabits a second; none where there is no such thing, as on a virtual interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed_mbit: Option<u64>,
    /// The largest packet, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Whether there is a link, or the port is active; none where it does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<bool>,
}

/// How a node's part of an attempt ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeEnd {
    /// The launcher's exit code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// The signal that ended the launcher.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Who or what ended it.
    pub cause: EndCause,
    /// The launcher's last words, or what else a person should know; may be empty.
    pub message: String,
}

/// Who or what ended a node's part of an attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndCause {
    /// The ranks ended by themselves, well or not.
    #[default]
    Finished,
    /// It was told to stop.
    Stopped,
    /// Nothing had been started yet.
    NeverStarted,
    /// The shim vanished (killed, or the machine restarted), so exits are not known.
    ShimDied,
    /// A cause that this version does not know, as the newer agent wrote it.
    #[serde(untagged)]
    Other(String),
}

impl StallCause {
    /// The word in the protocol and in labels.
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

/// How it shows that a rank stands still.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StallCause {
    /// A signal or a debugger stopped its process.
    Stopped,
    /// It has finished no step for much longer than its steps take.
    NoStep,
    /// Its process waits in the kernel, for a disk, a network file system or a driver, and cannot be interrupted.
    Uninterruptible,
    /// A cause that this version does not know, as the newer agent wrote it. It counts as `NoStep`.
    #[serde(untagged)]
    Other(String),
}

/// What a node says of a command that it only watches; the first report of each.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Watched {
    /// The run's name for people.
    pub name: String,
    /// The script, or the program where none is found in the command.
    pub program: String,
    /// The command, for people.
    pub command: String,
    /// Its process id.
    pub pid: u32,
    /// Nobody told of it: its ranks were found among the node's processes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub found: bool,
}
