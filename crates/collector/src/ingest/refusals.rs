//! Messages of an agent that the collector refuses. Each is counted, and one of each kind is logged once per minute. The connection stays
//! open: after a backup was restored, a correct agent reports runs that this collector does not have.

use std::collections::HashMap;
use std::fmt::Display;
use std::time::{Duration, Instant};

use domain::ident::NodeName;

use crate::self_metrics::SelfMetrics;

/// Minimum time between two log lines of one kind on one connection.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// What was refused on one connection, and when it was last logged.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    by_kind: HashMap<Refusal, Unlogged>,
}

/// The kinds of refusals. `lockstep_ingest_refused_total` has their names in the label `reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Refusal {
    /// A report or a log chunk of an unknown run.
    UnknownRun,
    /// A report of an attempt in which the node has no part.
    ReportNotInAttempt,
    /// An answer to a command that was sent to another node.
    CommandOfOther,
    /// A log chunk of an attempt in which the node has no part.
    LogNotInAttempt,
    /// A log beyond the maximum number of logs of a node.
    TooManyLogs,
    /// An answer to a request that was sent to another node.
    AnswerOfOther,
    /// More attempts than a node can hold.
    TooManyHeld,
}

/// Refusals of one kind since the last log line.
#[derive(Debug, Default)]
struct Unlogged {
    logged: Option<Instant>,
    count: u64,
}

impl Refusal {
    fn word(self) -> &'static str {
        match self {
            Self::UnknownRun => "unknown_run",
            Self::ReportNotInAttempt => "report_not_in_attempt",
            Self::CommandOfOther => "command_of_other",
            Self::LogNotInAttempt => "log_not_in_attempt",
            Self::TooManyLogs => "too_many_logs",
            Self::AnswerOfOther => "answer_of_other",
            Self::TooManyHeld => "too_many_held",
        }
    }
}

impl Refusals {
    /// Counts a refused message. `what` describes it in the log.
    pub(super) fn count(
        &mut self,
        metrics: &SelfMetrics,
        node: &NodeName,
        refusal: Refusal,
        what: impl Display,
    ) {
        let reason = refusal.word();
        metrics.refused.with_label_values(&[reason]).inc();
        let unlogged = self.by_kind.entry(refusal).or_default();
        unlogged.count += 1;
        if unlogged.logged.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
            let count = std::mem::take(&mut unlogged.count);
            unlogged.logged = Some(Instant::now());
            tracing::warn!(%node, reason, count, "a message of an agent was refused: {what}");
        }
    }
}
