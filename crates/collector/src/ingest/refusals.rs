//! Messages of an agent that are not taken: each is counted, and one of a kind is logged now and then. The connection goes on: after a
//! restored backup an honest agent reports what this collector does not know.

use std::collections::HashMap;
use std::fmt::Display;
use std::time::{Duration, Instant};

use domain::ident::NodeName;

use crate::self_metrics::SelfMetrics;

/// How often one kind of one connection is logged.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// What a connection was refused, and when that was last logged.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    by_kind: HashMap<Refusal, Unlogged>,
}

/// The kinds, as the label `reason` of `lockstep_ingest_refused_total` names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Refusal {
    /// A report, or a piece of a log, of a run that is not known here.
    UnknownRun,
    /// A report of an attempt in which the node has no part.
    ReportNotInAttempt,
    /// An answer to a command that was not sent to the node.
    CommandOfOther,
    /// A piece of a log of an attempt in which the node has no part.
    LogNotInAttempt,
    /// A log beyond those that a node may have.
    TooManyLogs,
    /// An answer to a question that another node was asked.
    AnswerOfOther,
    /// More attempts than a node can hold.
    TooManyHeld,
}

/// Since the last line in the log.
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
    /// Counts a refused message; `what` says which, for the log.
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
            tracing::warn!(%node, reason, count, "a message of an agent is not taken: {what}");
        }
    }
}
