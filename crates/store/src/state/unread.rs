//! Reports of nodes that the collector could not decode. They are kept until a later version can, and shown on the run's page.

use domain::api::runs::{UnreadReason, UnreadReport};
use domain::ident::{AttemptNo, NodeName, RunId};
use domain::time::TimestampMs;
use sqlx::{Sqlite, Transaction};

use super::{StateError, StateStore, from_word, to_word};

/// The maximum number of unread reports of one run: one per node for an attempt on 1,000 nodes fits.
pub const RUN_REPORTS_MAX: i64 = 2_000;
/// The maximum size of the unread reports of one run in bytes: two of the largest. Beyond either limit, reports are only
/// counted.
pub const RUN_BYTES_MAX: i64 = 8 << 20;
/// The event id under which reports beyond the limits are counted. No event of a node has this id.
const MORE: &str = "more";

/// A report to be kept.
#[derive(Debug, Clone)]
pub struct NewUnread<'a> {
    /// The run. It must exist.
    pub run: &'a RunId,
    /// The attempt that the report is about.
    pub attempt: AttemptNo,
    /// The node that sent it.
    pub node: &'a NodeName,
    /// The id by which a repetition is recognised, as in `RunUpdate::event_ids`.
    pub event_id: &'a str,
    /// The name of the report; may be empty.
    pub kind: &'a str,
    /// Why it was not decoded.
    pub reason: UnreadReason,
    /// The report as it was received.
    pub report: &'a str,
}

/// The result of keeping a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// The report is stored.
    Stored,
    /// The run has too many unread reports. The report is only counted.
    Counted,
    /// The event was seen before. Nothing is changed.
    AlreadySeen,
}

/// A stored unread report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredUnread {
    /// The id of the row.
    pub id: i64,
    /// The run.
    pub run: RunId,
    /// The attempt that the report is about.
    pub attempt: AttemptNo,
    /// The node that sent it.
    pub node: NodeName,
    /// The id by which a repetition is recognised.
    pub event_id: String,
    /// The report as it was received.
    pub report: String,
}

impl StateStore {
    /// Stores a report. A report that is too large for the collector is stored without its text.
    ///
    /// # Errors
    /// Fails if the database fails, or if the run does not exist.
    pub async fn keep_unread(&self, new: &NewUnread<'_>, now_ms: TimestampMs) -> Result<Kept, StateError> {
        let mut transaction = self.database.begin().await?;
        let seen = sqlx::query("INSERT INTO run_events (run, event) VALUES (?, ?) ON CONFLICT DO NOTHING")
            .bind(new.run.as_str())
            .bind(new.event_id)
            .execute(&mut *transaction)
            .await?;
        if seen.rows_affected() == 0 {
            return Ok(Kept::AlreadySeen);
        }
        let bytes = i64::try_from(new.report.len()).unwrap_or(i64::MAX);
        let text = Some(new.report).filter(|_| new.reason != UnreadReason::TooLarge);
        let kept = if has_room(&mut transaction, new.run, text.map_or(0, |_| bytes)).await? {
            Kept::Stored
        } else {
            Kept::Counted
        };
        let (event, node, kind, reason, attempt, text) = match kept {
            Kept::Stored => (
                new.event_id,
                new.node.as_str(),
                new.kind,
                &new.reason,
                new.attempt.0,
                text,
            ),
            _ => (MORE, "", "", &UnreadReason::NotKept, 0, None),
        };
        sqlx::query(
            "INSERT INTO unread_reports (run, event, attempt, node, kind, reason, received_ms, count, bytes, report)
             VALUES (?, ?, ?, ?, ?, ?, ?, 1, ?, ?)
             ON CONFLICT (run, event) DO UPDATE SET
                 count = count + 1, bytes = bytes + excluded.bytes, received_ms = excluded.received_ms",
        )
        .bind(new.run.as_str())
        .bind(event)
        .bind(attempt)
        .bind(node)
        .bind(kind)
        .bind(to_word("reason", reason)?)
        .bind(now_ms)
        .bind(bytes)
        .bind(text)
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(kept)
    }

    /// Returns the unread reports of a run, summed by attempt, node, name and reason.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn unread_of(&self, run: &RunId) -> Result<Vec<UnreadReport>, StateError> {
        type Row = (u32, String, String, String, i64, i64, i64);
        let rows: Vec<Row> = sqlx::query_as(
            "SELECT attempt, node, kind, reason, SUM(count), MAX(bytes), MAX(received_ms) FROM unread_reports
             WHERE run = ? GROUP BY attempt, node, kind, reason ORDER BY MIN(id) LIMIT 100",
        )
        .bind(run.as_str())
        .fetch_all(&self.database.readers)
        .await?;
        let line = |(attempt, node, kind, reason, count, bytes, last_ms): Row| {
            Ok(UnreadReport {
                attempt: AttemptNo(attempt),
                node,
                kind,
                reason: from_word("reason", &reason)?,
                count: count.unsigned_abs(),
                bytes: bytes.unsigned_abs(),
                last_ms,
            })
        };
        rows.into_iter().map(line).collect()
    }

    /// Returns the first stored report after the id `after`, in the order of arrival, or `None` if there is none.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn next_unread(&self, after: i64) -> Result<Option<StoredUnread>, StateError> {
        let row: Option<(i64, String, u32, String, String, String)> = sqlx::query_as(
            "SELECT id, run, attempt, node, event, report FROM unread_reports
             WHERE id > ? AND report IS NOT NULL ORDER BY id LIMIT 1",
        )
        .bind(after)
        .fetch_optional(&self.database.readers)
        .await?;
        row.map(|(id, run, attempt, node, event_id, report)| {
            Ok(StoredUnread {
                id,
                run: from_word("run id", &run)?,
                attempt: AttemptNo(attempt),
                node: from_word("node name", &node)?,
                event_id,
                report,
            })
        })
        .transpose()
    }

    /// Deletes a stored report after it was decoded.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn forget_unread(&self, id: i64) -> Result<(), StateError> {
        sqlx::query("DELETE FROM unread_reports WHERE id = ?")
            .bind(id)
            .execute(self.database.writer())
            .await?;
        Ok(())
    }
}

/// Returns true if a run may store one more report of this length.
async fn has_room(
    transaction: &mut Transaction<'static, Sqlite>,
    run: &RunId,
    bytes: i64,
) -> Result<bool, sqlx::Error> {
    let (reports, kept_bytes): (i64, i64) = sqlx::query_as(
        "SELECT COUNT(*), COALESCE(SUM(CASE WHEN report IS NULL THEN 0 ELSE bytes END), 0) FROM unread_reports
         WHERE run = ? AND event <> ?",
    )
    .bind(run.as_str())
    .bind(MORE)
    .fetch_one(&mut **transaction)
    .await?;
    Ok(reports < RUN_REPORTS_MAX && kept_bytes.saturating_add(bytes) <= RUN_BYTES_MAX)
}
