//! Input and output of the analysers.

use crate::diagnosis::finding::Finding;
use crate::diagnosis::input::{FlightAnswer, NodeResources, Pool, Position, Resources, StackAnswer};
use crate::ident::{NodeName, Rank};
use crate::run::ranks::RankSet;
use crate::time::TimestampMs;

/// A rank of the attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Number of the rank.
    pub rank: Rank,
    /// Node of the rank.
    pub node: NodeName,
    /// Mesh coordinates or pipeline stage, if ranks have different work by design. Only ranks with the same role are compared.
    pub role: Option<String>,
    /// Position on the axes of the mesh along which the data are not divided, if there are such axes. Ranks with different positions have
    /// other parts of the same samples (context parallelism) or of the model. Only the data and losses of ranks with the same position are
    /// compared.
    pub data_group: Option<String>,
}

/// One measurement.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "made and taken apart at once, never kept"
)]
pub enum Measurement {
    /// Steps of a rank.
    Pool(Pool),
    /// Position of a rank in its step.
    Position(Position),
    /// Answers to `RankRequest::Flight`: all of them in one measurement.
    Flight {
        /// As in the request.
        suspected_ms: TimestampMs,
        /// One answer per rank.
        answers: Vec<FlightAnswer>,
    },
    /// Answers to `RankRequest::Stacks`: all of them in one measurement.
    Stacks {
        /// As in the request.
        suspected_ms: TimestampMs,
        /// One answer per rank that answered.
        answers: Vec<StackAnswer>,
    },
    /// Resource use of a rank's process and GPU.
    Resources(Resources),
    /// Counters of a node's kernel.
    Node(NodeResources),
    /// All measurements of a node before this time have been passed to the analysers.
    CompleteUntil {
        /// Name of the node.
        node: NodeName,
        /// Time of the node's clock.
        at_ms: TimestampMs,
    },
}

/// A request for information from ranks. Each is made once per suspicion, except that the Flight Recorders of NCCL are read several times.
/// `suspected_ms` is the time at which the suspicion began, by the collector's clock. An answer that arrives after ranks have moved belongs to
/// a suspicion that is over, and is dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RankRequest {
    /// Request the Flight Recorders of ranks. For a rank that does not answer there is an answer without a digest.
    Flight {
        /// Beginning of the suspicion.
        suspected_ms: TimestampMs,
        /// Ranks to inspect.
        ranks: RankSet,
    },
    /// Request `STACK_SAMPLES` samples of the stacks of ranks within `STACK_SECONDS`.
    Stacks {
        /// Beginning of the suspicion.
        suspected_ms: TimestampMs,
        /// Ranks to inspect.
        ranks: RankSet,
    },
}

/// Number of stack samples per rank.
pub const STACK_SAMPLES: u32 = 6;
/// Time over which the stack samples are taken, in seconds.
pub const STACK_SECONDS: f64 = 5.0;

/// One sample of a series `diagnosis_*`. If a score is missing in an `AnalysisOutput`, its series ends.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    /// Name of the series.
    pub metric: &'static str,
    /// The culprit, if it is one rank.
    pub rank: Option<Rank>,
    /// Node of the culprit.
    pub node: Option<NodeName>,
    /// Labels other than `run`, `rank` and `node`.
    pub labels: Vec<(&'static str, String)>,
    /// Value of the sample.
    pub value: f64,
}

/// Output of one evaluation of the analysers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AnalysisOutput {
    /// All current findings. A finding that is no longer in the list has ended.
    pub findings: Vec<Finding>,
    /// Samples of the series `diagnosis_*`.
    pub scores: Vec<Score>,
    /// Requests to make now.
    pub requests: Vec<RankRequest>,
}
