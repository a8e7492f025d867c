//! Attempts that nodes hold and that the state does not contain, because it was restored from a backup; and the restores
//! themselves.

use domain::ident::{AttemptNo, NodeName, RunId};
use domain::time::TimestampMs;

use super::{StateError, StateStore, from_word};

/// An attempt that a node holds and the state does not contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownAttempt {
    /// The node.
    pub node: NodeName,
    /// The run. The state may not contain it either.
    pub run: RunId,
    /// The number of the attempt.
    pub attempt: AttemptNo,
    /// When the node first reported it.
    pub since_ms: TimestampMs,
    /// When a person requested its stop, or `None`.
    pub stop_told_ms: Option<TimestampMs>,
}

/// A restore of a backup into the data folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::FromRow)]
pub struct RestoreRecord {
    /// The time of the restore.
    pub restored_ms: TimestampMs,
    /// The time when the backup was made.
    pub backup_ms: TimestampMs,
    /// When all nodes had reported what they hold, or the wait for them ended. `None` before that.
    pub settled_ms: Option<TimestampMs>,
}

impl StateStore {
    /// Returns the attempts that nodes hold and the state does not contain.
    ///
    /// # Errors
    /// Fails if the database fails.
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

    /// Replaces the unknown attempts of a node.
    ///
    /// # Errors
    /// Fails if the database fails. Nothing is then changed.
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

    /// Returns the last restore of a backup into this data folder, or `None`.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn last_restore(&self) -> Result<Option<RestoreRecord>, StateError> {
        let last = sqlx::query_as(
            "SELECT restored_ms, backup_ms, settled_ms FROM restores ORDER BY restored_ms DESC LIMIT 1",
        )
        .fetch_optional(&self.database.readers)
        .await?;
        Ok(last)
    }

    /// Records that the nodes have reported what they hold since the restore, or that the wait for them ended.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn settle_restores(&self, now_ms: TimestampMs) -> Result<(), StateError> {
        sqlx::query("UPDATE restores SET settled_ms = ? WHERE settled_ms IS NULL")
            .bind(now_ms)
            .execute(self.database.writer())
            .await?;
        Ok(())
    }
}
