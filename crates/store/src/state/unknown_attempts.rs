//! Attempts that nodes hold and that this state does not know, because it is that of a backup that was restored; and the restores.

use domain::ident::{AttemptNo, NodeName, RunId};
use domain::time::TimestampMs;

use super::{StateError, StateStore, from_word};

/// An attempt that a node holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownAttempt {
    /// The node.
    pub node: NodeName,
    /// The run, which may be unknown as well.
    pub run: RunId,
    /// The attempt's number.
    pub attempt: AttemptNo,
    /// When the node first said so.
    pub since_ms: TimestampMs,
    /// When a person asked for its stop, if so.
    pub stop_told_ms: Option<TimestampMs>,
}

/// A backup that was put into the data folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestoreRecord {
    /// When it was put there.
    pub restored_ms: TimestampMs,
    /// When the backup was made.
    pub backup_ms: TimestampMs,
    /// When the nodes had said what they hold since, or were waited for long enough.
    pub settled_ms: Option<TimestampMs>,
}

impl StateStore {
    /// The attempts that nodes hold and that are not known here.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn unknown_attempts(&self) -> Result<Vec<UnknownAttempt>, StateError> {
        type Row = (String, String, u32, i64, Option<i64>);
        let rows: Vec<Row> = sqlx::query_as(
            "SELECT node, run, attempt, since_ms, stop_told_ms FROM unknown_attempts ORDER BY node, run, attempt",
        )
        .fetch_all(&self.database.readers)
        .await?;
        rows.into_iter()
            .map(|(node, run, attempt, since_ms, stop_told_ms)| {
                Ok(UnknownAttempt {
                    node: from_word("node name", &node)?,
                    run: from_word("run id", &run)?,
                    attempt: AttemptNo(attempt),
                    since_ms,
                    stop_told_ms,
                })
            })
            .collect()
    }

    /// Puts what a node holds now in the place of what it held.
    ///
    /// # Errors
    /// When the database fails; then nothing is changed.
    pub async fn set_unknown_attempts(
        &self,
        node: &NodeName,
        held: &[UnknownAttempt],
    ) -> Result<(), StateError> {
        let mut transaction = self.database.begin().await?;
        sqlx::query("DELETE FROM unknown_attempts WHERE node = ?")
            .bind(node.as_str())
            .execute(&mut *transaction)
            .await?;
        for attempt in held {
            sqlx::query(
                "INSERT INTO unknown_attempts (node, run, attempt, since_ms, stop_told_ms) VALUES (?, ?, ?, ?, ?)",
            )
            .bind(node.as_str())
            .bind(attempt.run.as_str())
            .bind(attempt.attempt.0)
            .bind(attempt.since_ms)
            .bind(attempt.stop_told_ms)
            .execute(&mut *transaction)
            .await?;
        }
        Ok(transaction.commit().await?)
    }

    /// The last restore of a backup into this data folder, if there was one.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn last_restore(&self) -> Result<Option<RestoreRecord>, StateError> {
        let row: Option<(i64, i64, Option<i64>)> = sqlx::query_as(
            "SELECT restored_ms, backup_ms, settled_ms FROM restores ORDER BY restored_ms DESC LIMIT 1",
        )
        .fetch_optional(&self.database.readers)
        .await?;
        Ok(row.map(|(restored_ms, backup_ms, settled_ms)| RestoreRecord {
            restored_ms,
            backup_ms,
            settled_ms,
        }))
    }

    /// Notes that the nodes have said what they hold since the restore, or were waited for long enough.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn settle_restores(&self, now_ms: TimestampMs) -> Result<(), StateError> {
        sqlx::query("UPDATE restores SET settled_ms = ? WHERE settled_ms IS NULL")
            .bind(now_ms)
            .execute(self.database.writer())
            .await?;
        Ok(())
    }
}
