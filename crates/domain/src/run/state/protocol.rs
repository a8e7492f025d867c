//! What collector and agent tell each other about one node's part of an attempt; JSON inside `Command` and `RunEvent`.
//!
//! Both sides may be older or newer than the other: fields are only ever added, with a default.

use serde::{Deserialize, Serialize};

use crate::ident::Rank;
use crate::run::spec::Spec;
use crate::run::state::RankExit;

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
    },
    /// Start the ranks; answered by `ShimStarted` or `StartFailed`.
    Start(Box<Start>),
    /// End whatever of the attempt is there; always answered by `Ended`.
    Stop {
        /// Time between SIGTERM and SIGKILL.
        grace_ms: u64,
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
}

/// From a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
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
    /// The process that owns the ranks is there.
    ShimStarted {
        /// Its process id.
        pid: u32,
        /// The torchrun command line, for people.
        command: String,
    },
    /// The ranks could not be started.
    StartFailed {
        /// Why.
        message: String,
    },
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
    /// A rank ended.
    RankExited(RankExit),
    /// Nothing of the attempt is left on the node.
    Ended(NodeEnd),
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
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
}
