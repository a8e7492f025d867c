//! Reports of nodes: checked against their sender, parsed and processed. Reports that cannot be parsed are kept until a collector can.
//!
//! ```text
//! RunEvent ─▶ parsed?  yes ─▶ has the node a part in the attempt? ─▶ take: one transaction with the machine ─▶ acknowledged
//!                      no, or too large ─▶ the same question ─▶ unread_reports ─▶ acknowledged, shown on the run's page
//!                                                                   └── at the next start of a collector: read again
//! ```
//! A report that is not stored is acknowledged only if it can never be stored: its run is unknown, or its node has no part in the attempt.

use std::sync::Arc;

use domain::api::runs::UnreadReason;
use domain::event::{Event as LogLine, Severity};
use domain::ident::{AttemptId, NodeName, RunId};
use domain::run::state::{Event, Machine, NodeReport, ReadReport, Task, Watched, read_report, report_kind};
use store::state::unread::{Kept, NewUnread};

use super::Runs;
use super::commands::LEFTOVER_STOP;
use super::error::RunError;
use super::owners::PendingEvent;
use super::stored::{record, unless_unreadable};
use crate::changes::Change;
use crate::clock;

/// Maximum size of a report, in bytes. Newer agents send less than 64 KiB; older ones sent a whole folder of checkpoints.
const REPORT_BYTES_MAX: usize = 4 << 20;

/// A report as received from a node's connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Incoming<'a> {
    /// The attempt that the report is about.
    pub(crate) attempt: &'a AttemptId,
    /// The node of the connection.
    pub(crate) node: &'a NodeName,
    /// The number that the agent gave the report.
    pub(crate) id: u64,
    /// A `NodeReport` as JSON, of any version.
    pub(crate) json: &'a str,
}

/// The result of a report. In each case it is acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Receipt {
    /// The report is stored, or was stored before.
    Taken,
    /// The report is stored unparsed, because it could not be read.
    Kept(UnreadReason),
    /// The report is never stored.
    Refused(Refused),
}

/// Why a report is never stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    /// The run is unknown. The data of this collector may have been lost.
    #[error("its run is unknown")]
    UnknownRun,
    /// The node has no part in the attempt, or the attempt is newer than this collector's data.
    #[error("the node has no part in that attempt")]
    NotInAttempt,
    /// The report answers a command that was sent to another node, or to none.
    #[error("command {0} was not sent to this node")]
    NotItsCommand(u64),
}

impl Runs {
    /// Processes a report of a node. A repeated report is a no-op.
    ///
    /// # Errors
    /// Returns an error if the store fails. The report is then not acknowledged, and the agent sends it again.
    pub(crate) async fn report(self: &Arc<Self>, incoming: Incoming<'_>) -> Result<Receipt, RunError> {
        let Incoming {
            attempt,
            node,
            id,
            json,
        } = incoming;
        let event_id = format!("{}/{node}/{id}", attempt.no);
        let (kind, reason) = match read_bounded(json) {
            Read::Known(report) => {
                let taken = self.apply(attempt, node, &event_id, *report).await;
                return refused_or(taken, Receipt::Taken);
            }
            Read::NotRead { kind, reason } => (kind, reason),
        };
        let new = NewUnread {
            run: &attempt.run,
            attempt: attempt.no,
            node,
            event_id: &event_id,
            kind: &kind,
            reason: reason.clone(),
            report: json,
        };
        let kept = self.keep_unread(&new).await.map(Ok);
        refused_or(kept, Receipt::Kept(reason))
    }

    /// Processes a parsed report. The inner error says why it is never stored.
    async fn apply(
        self: &Arc<Self>,
        attempt: &AttemptId,
        node: &NodeName,
        event_id: &str,
        report: NodeReport,
    ) -> Result<Result<(), Refused>, RunError> {
        if self.take_of_unknown(attempt, node, &report).await? {
            return Ok(Ok(()));
        }
        if report.is_end() {
            self.agents.remove_leftover(node, attempt);
        }
        if let NodeReport::Watched(watched) = &report {
            self.watch(attempt, watched).await?;
        }
        let answered = match report {
            NodeReport::Accepted { command } | NodeReport::Refused { command, .. } => Some(command),
            _ => None,
        };
        if let Some(command) = answered
            && !self.was_sent_to(node, attempt, command).await?
        {
            return Ok(Err(Refused::NotItsCommand(command)));
        }
        let event = Event::Reported {
            attempt: attempt.no,
            node: node.clone(),
            report: self.by_our_clock(node, report).await,
        };
        let done = answered.and_then(|command| Some((attempt.no, u32::try_from(command).ok()?)));
        let pending = PendingEvent::with_id(event, event_id.to_owned(), done);
        self.take_as(&attempt.run, pending).await?;
        Ok(Ok(()))
    }

    /// Returns true if a command was sent to this node. The stop of a leftover attempt is not a stored action; any node may get it.
    async fn was_sent_to(
        &self,
        node: &NodeName,
        attempt: &AttemptId,
        command: u64,
    ) -> Result<bool, RunError> {
        let Ok(n) = u32::try_from(command) else {
            return Ok(false);
        };
        if n == LEFTOVER_STOP {
            return Ok(true);
        }
        let Some(action) = self.parts.state.action(&attempt.run, attempt.no, n).await? else {
            // For an unknown run, that is the reason to report.
            return Ok(self.parts.state.run(&attempt.run).await?.is_none());
        };
        let task = serde_json::from_value(action.action);
        Ok(matches!(task, Ok(Task::Command { node: to, .. }) if to == *node))
    }

    /// Creates a watched run when the first of its nodes reports it.
    async fn watch(self: &Arc<Self>, attempt: &AttemptId, watched: &Watched) -> Result<(), RunError> {
        let now_ms = clock::now_ms();
        let machine = Machine::watch(attempt.run.clone(), attempt.no, watched, now_ms);
        let record = record(&machine, 0)?;
        let insert = async { Ok(self.parts.state.insert_run(&record, &[], now_ms).await?) };
        if self.insert(machine.clone(), insert).await? {
            self.publish(None, &machine).await;
        }
        Ok(())
    }

    /// Returns true if a node has or had a part in an attempt, or holds it as an unknown attempt; `None` if the run is unknown.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub(crate) async fn has_task(
        &self,
        node: &NodeName,
        attempt: &AttemptId,
    ) -> Result<Option<bool>, RunError> {
        if self.unknown.is_held(node, attempt) {
            return Ok(Some(true));
        }
        match self.machine(&attempt.run).await {
            Ok(machine) => Ok(Some(machine.has_task(node, attempt.no))),
            Err(RunError::Unknown(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns true if a run is known and has only other nodes.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub(crate) async fn is_of_others(&self, node: &NodeName, run: &RunId) -> Result<bool, RunError> {
        match self.machine(run).await {
            Ok(machine) => Ok(!machine.has_node(node)),
            Err(RunError::Unknown(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    // === reports that cannot be read ===

    async fn keep_unread(self: &Arc<Self>, new: &NewUnread<'_>) -> Result<(), RunError> {
        match self
            .has_task(new.node, &AttemptId::new(new.run.clone(), new.attempt))
            .await?
        {
            Some(true) => {}
            Some(false) => {
                return Err(RunError::NotInAttempt {
                    run: new.run.clone(),
                    attempt: new.attempt,
                    node: new.node.clone(),
                });
            }
            None => return Err(RunError::Unknown(new.run.clone())),
        }
        if self.parts.state.keep_unread(new, clock::now_ms()).await? == Kept::AlreadySeen {
            return Ok(());
        }
        self.parts
            .metrics
            .refused
            .with_label_values(&["report_not_read"])
            .inc();
        self.parts.changes.send(Change::Run(new.run.clone()));
        let lines = self.parts.state.unread_of(new.run).await?;
        let first = lines.iter().find(|line| {
            (line.node.as_str(), line.kind.as_str(), &line.reason)
                == (new.node.as_str(), new.kind, &new.reason)
                && line.count == 1
        });
        if let Some(line) = first {
            let (now_ms, message) = (clock::now_ms(), line.sentence());
            let line = LogLine {
                node: Some(new.node.to_string()),
                run: Some(new.run.to_string()),
                ..LogLine::new(now_ms, Severity::Warning, "report_not_read", message)
            };
            self.parts.events.append(line).await;
        }
        Ok(())
    }

    /// Parses again, in the order of arrival, the reports that earlier collectors could not read.
    pub(super) async fn read_kept(self: &Arc<Self>) -> Result<(), RunError> {
        let mut last = 0;
        while let Some(kept) = self.parts.state.next_unread(last).await? {
            last = kept.id;
            let ReadReport::Known(report) = read_report(&kept.report) else {
                continue;
            };
            // The id of the original event was recorded when it arrived.
            let event_id = format!("{}/read", kept.event_id);
            let attempt = AttemptId::new(kept.run.clone(), kept.attempt);
            let taken = self.apply(&attempt, &kept.node, &event_id, *report).await;
            if let Some(receipt) = unless_unreadable(refused_or(taken, Receipt::Taken))? {
                tracing::info!(run = %kept.run, node = %kept.node, event = kept.event_id, ?receipt, "a kept report was read");
                self.parts.state.forget_unread(kept.id).await?;
            }
        }
        Ok(())
    }
}

/// A parsed report, or why it could not be parsed.
enum Read {
    Known(Box<NodeReport>),
    NotRead { kind: String, reason: UnreadReason },
}

/// Parses a report of at most [`REPORT_BYTES_MAX`]. An end is parsed at any length, with shortened texts: otherwise its run would never
/// end.
fn read_bounded(json: &str) -> Read {
    if json.len() > REPORT_BYTES_MAX {
        let kind = report_kind(json);
        if kind == "ended"
            && let ReadReport::Known(end) = read_report(json)
        {
            return Read::Known(Box::new(end.bounded().into_owned()));
        }
        return Read::NotRead {
            kind,
            reason: UnreadReason::TooLarge,
        };
    }
    match read_report(json) {
        ReadReport::Known(report) => Read::Known(report),
        ReadReport::UnknownKind { kind } => Read::NotRead {
            kind,
            reason: UnreadReason::UnknownKind,
        },
        ReadReport::Unreadable { kind, error } => {
            tracing::warn!(
                kind,
                error,
                "a report of an agent cannot be read; it is stored unread"
            );
            Read::NotRead {
                kind,
                reason: UnreadReason::Unreadable,
            }
        }
    }
}

/// Turns errors that mean "never stored" into a receipt.
fn refused_or(result: Result<Result<(), Refused>, RunError>, stored: Receipt) -> Result<Receipt, RunError> {
    match result {
        Ok(Ok(())) => Ok(stored),
        Ok(Err(refused)) => Ok(Receipt::Refused(refused)),
        Err(RunError::Unknown(_)) => Ok(Receipt::Refused(Refused::UnknownRun)),
        Err(RunError::NotInAttempt { .. }) => Ok(Receipt::Refused(Refused::NotInAttempt)),
        Err(error) => Err(error),
    }
}
