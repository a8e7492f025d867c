//! What goes into the analysers and what comes out.

use crate::diagnosis::finding::Finding;
use crate::diagnosis::input::{FlightAnswer, NodeResources, Pool, Position, Resources, StackAnswer};
use crate::ident::{NodeName, Rank};
use crate::run::ranks::RankSet;
use crate::time::TimestampMs;

/// A rank of the attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Which.
    pub rank: Rank,
    /// Where it runs.
    pub node: NodeName,
    /// Mesh coordinates or pipeline stage, where ranks have different work by design. Only ranks of one role are compared.
    pub role: Option<String>,
}

/// One thing that was measured.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "made and taken apart at once, never kept"
)]
pub enum Tick {
    /// Steps of a rank.
    Pool(Pool),
    /// Where a rank is.
    Position(Position),
    /// Answers to `Question::Flight`: all of them in one tick.
    Flight(Vec<FlightAnswer>),
    /// Answers to `Question::Stacks`: all of them in one tick.
    Stacks(Vec<StackAnswer>),
    /// What a rank's process and GPU use.
    Resources(Resources),
    /// What a node's kernel counts.
    Node(NodeResources),
    /// A node was heard: all it measured before this time has been given.
    Heard {
        /// Which.
        node: NodeName,
        /// Until when.
        at_ms: TimestampMs,
    },
}

/// What the analysers want to know. Each is asked once per suspicion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// The ranks' Flight Recorders. Ranks that do not answer get an answer without a digest.
    Flight {
        /// Of these.
        ranks: RankSet,
    },
    /// The ranks' stacks: `STACK_SAMPLES` of them in `STACK_SECONDS`.
    Stacks {
        /// Of these.
        ranks: RankSet,
    },
}

/// Samples of a rank's stack that answer one question.
pub const STACK_SAMPLES: u32 = 6;
/// The time over which they are taken.
pub const STACK_SECONDS: f64 = 5.0;

/// One sample of a series `diagnosis_*`. A score that is absent from one `Progress` ends its series.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    /// The series' name.
    pub metric: &'static str,
    /// The culprit, where it is one rank.
    pub rank: Option<Rank>,
    /// The culprit's node.
    pub node: Option<NodeName>,
    /// Labels beside `run`, `rank` and `node`.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: f64,
}

/// What came out.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Progress {
    /// All that is found now; one that is not among them any more has ended.
    pub findings: Vec<Finding>,
    /// As series.
    pub scores: Vec<Score>,
    /// To be asked now.
    pub questions: Vec<Question>,
}
