//! Why a run, an attempt or a node task ended: a cause for decisions, an explanation for people.

use std::borrow::Cow;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ident::{NodeName, Rank};

/// How a run, an attempt or a node task ended, and where the failure began.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    /// The cause.
    pub cause: Cause,
    /// The node where it began, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The rank where it began, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
    /// What happened, to what, and what to do next.
    pub message: Explanation,
}

impl Outcome {
    /// An outcome that names no node and no rank.
    pub(super) fn new(cause: Cause, message: impl Into<Explanation>) -> Self {
        Self {
            cause,
            node: None,
            rank: None,
            message: message.into(),
        }
    }

    /// An outcome that began on a node.
    pub(super) fn at_node(cause: Cause, node: &NodeName, message: impl Into<Explanation>) -> Self {
        Self {
            node: Some(node.to_string()),
            ..Self::new(cause, message)
        }
    }
}

/// Why a run, an attempt or a node task ended. Stored and sent as a word.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(from = "Cow<'_, str>", into = "String")]
pub enum Cause {
    /// A rank raised an exception.
    Exception,
    /// A signal killed a rank or the launcher.
    Signal,
    /// A rank ran out of GPU or host memory.
    OutOfMemory,
    /// A rank or the launcher exited with a code other than 0, without an explanation.
    ExitCode,
    /// A collective of NCCL timed out.
    NcclTimeout,
    /// A collective of another backend timed out.
    CollectiveTimeout,
    /// A checkpoint could not be saved.
    CheckpointFailed,
    /// A checkpoint could not be read.
    CheckpointUnreadable,
    /// Another process took the port of the rendezvous.
    PortInUse,
    /// A rank made no step for longer than the run's stall timeout.
    Stuck,
    /// A rank exited with 0 while the others continued.
    ExitedEarly,
    /// A node was lost.
    NodeLost,
    /// A watched job's agent was lost.
    AgentLost,
    /// The shim, which owns the ranks, vanished.
    ShimDied,
    /// A node refused the run.
    Refused,
    /// A node lacks what the run needs.
    PrepareFailed,
    /// A node could not start the ranks.
    StartFailed,
    /// All ranks exited with 0.
    Succeeded,
    /// A person stopped the run.
    Stopped,
    /// The nodes of the run have different drivers, libraries or files.
    Mismatch,
    /// The run waits for nodes.
    NoNodes,
    /// A watched job ended, and how it ended is not known; or a newer agent reported a cause that this version does not know.
    Unknown,
    /// A node holds an attempt that began after the restored backup was made.
    UnknownAttempt,
    /// A cause that this version does not know, as a newer version stored it.
    Other(String),
}

static WORDS: [(Cause, &str); 23] = [
    (Cause::Exception, "exception"),
    (Cause::Signal, "signal"),
    (Cause::OutOfMemory, "out_of_memory"),
    (Cause::ExitCode, "exit_code"),
    (Cause::NcclTimeout, "nccl_timeout"),
    (Cause::CollectiveTimeout, "collective_timeout"),
    (Cause::CheckpointFailed, "checkpoint_failed"),
    (Cause::CheckpointUnreadable, "checkpoint_unreadable"),
    (Cause::PortInUse, "port_in_use"),
    (Cause::Stuck, "stuck"),
    (Cause::ExitedEarly, "exited_early"),
    (Cause::NodeLost, "node_lost"),
    (Cause::AgentLost, "agent_lost"),
    (Cause::ShimDied, "shim_died"),
    (Cause::Refused, "refused"),
    (Cause::PrepareFailed, "prepare_failed"),
    (Cause::StartFailed, "start_failed"),
    (Cause::Succeeded, "succeeded"),
    (Cause::Stopped, "stopped"),
    (Cause::Mismatch, "mismatch"),
    (Cause::NoNodes, "no_nodes"),
    (Cause::Unknown, "unknown"),
    (Cause::UnknownAttempt, "unknown_attempt"),
];

impl Cause {
    /// Returns the word for the API, for labels and for stored runs.
    #[must_use]
    pub fn as_str(&self) -> &str {
        if let Self::Other(word) = self {
            return word;
        }
        let entry = WORDS.iter().find(|(cause, _)| cause == self);
        entry.map_or("", |(_, word)| word)
    }

    /// Returns true if no rank can report this cause. It outweighs exits that only followed from it.
    pub(super) fn outweighs_exits(&self) -> bool {
        matches!(
            self,
            Self::Stuck
                | Self::NodeLost
                | Self::ExitedEarly
                | Self::ShimDied
                | Self::Refused
                | Self::PrepareFailed
                | Self::StartFailed
                | Self::Mismatch
        )
    }

    /// Returns true if a restart cannot help.
    pub(super) fn is_definite(&self) -> bool {
        matches!(self, Self::Succeeded | Self::Stopped | Self::Mismatch)
    }

    /// Returns true if the cause lies outside of the training, so that the step at which it occurred says nothing about the training.
    pub(in crate::run) fn is_external(&self) -> bool {
        matches!(
            self,
            Self::NodeLost
                | Self::AgentLost
                | Self::ShimDied
                | Self::PortInUse
                | Self::Refused
                | Self::PrepareFailed
                | Self::StartFailed
        )
    }

    /// Returns true if the outcome says nothing about the training: the cause is external, or a restart cannot help.
    pub(in crate::run) fn says_nothing_of_training(&self) -> bool {
        self.is_external() || self.is_definite()
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<Cow<'_, str>> for Cause {
    fn from(word: Cow<'_, str>) -> Self {
        let entry = WORDS.iter().find(|(_, known)| *known == word);
        entry.map_or_else(|| Self::Other(word.into_owned()), |(cause, _)| cause.clone())
    }
}

impl From<Cause> for String {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Other(word) => word,
            known => known.as_str().to_owned(),
        }
    }
}

/// A sentence for people. It can be shown and extended, but not parsed: no decision depends on its text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Explanation(String);

impl From<String> for Explanation {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Explanation {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_round_trips_byte_for_byte() {
        let words = WORDS.iter().map(|(_, word)| *word);
        for word in words.chain(["préempted by \"slurm\"", "", "Succeeded"]) {
            let json = serde_json::to_string(word).expect("a string");
            let cause: Cause = serde_json::from_str(&json).expect("any word");
            assert_eq!(cause.as_str(), word);
            assert_eq!(serde_json::to_string(&cause).expect("a word"), json);
            let is_known = WORDS.iter().any(|(known, _)| *known == cause);
            assert_eq!(is_known, !matches!(cause, Cause::Other(_)), "{word}");
        }
    }

    #[test]
    fn the_stored_form_of_an_outcome_does_not_change() {
        let json = r#"{"cause":"signal","node":"n1","rank":3,"message":"rank 3 was killed"}"#;
        let outcome: Outcome = serde_json::from_str(json).expect("an outcome");
        assert_eq!(
            (outcome.cause.clone(), outcome.rank),
            (Cause::Signal, Some(Rank(3)))
        );
        assert_eq!(serde_json::to_string(&outcome).expect("an outcome"), json);
    }
}
