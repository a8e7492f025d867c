//! The audit log: who did what to what, and when. It is append-only.

use domain::time::TimestampMs;

use super::{StateError, StateStore, bounded, to_json};

/// One control action.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct AuditEntry {
    /// The time of the action.
    pub at_ms: TimestampMs,
    /// The id of the token, or `system`.
    pub who: String,
    /// The kind of action: `run_submit`, `token_create`, …
    pub what: String,
    /// The id of the object of the action.
    pub target: String,
}

impl StateStore {
    /// Appends an entry.
    ///
    /// # Errors
    /// Fails if the database fails. The action must then not be carried out.
    pub async fn append_audit(&self, entry: &AuditEntry) -> Result<(), StateError> {
        sqlx::query("INSERT INTO audit (at_ms, who, what, target) VALUES (?, ?, ?, ?)")
            .bind(entry.at_ms)
            .bind(&entry.who)
            .bind(&entry.what)
            .bind(&entry.target)
            .execute(self.database.writer())
            .await?;
        Ok(())
    }

    /// Returns the entries from `since_ms` on and before `before_ms`, newest first, whose target is one of `targets`, or begins
    /// with one of them followed by a space.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn audit_of(
        &self,
        targets: &[&str],
        (since_ms, before_ms): (TimestampMs, TimestampMs),
        limit: u32,
    ) -> Result<Vec<AuditEntry>, StateError> {
        let entries = sqlx::query_as(
            "SELECT at_ms, who, what, target FROM audit WHERE at_ms >= ? AND at_ms < ?
             AND substr(target, 1, instr(target || ' ', ' ') - 1) IN (SELECT value FROM json_each(?))
             ORDER BY at_ms DESC, id DESC LIMIT ?",
        )
        .bind(since_ms)
        .bind(before_ms)
        .bind(to_json("list of targets", &targets)?)
        .bind(bounded(limit))
        .fetch_all(&self.database.readers)
        .await?;
        Ok(entries)
    }

    /// Returns entries, newest first; only those before `before_ms` if it is set.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn audit(
        &self,
        before_ms: Option<TimestampMs>,
        limit: u32,
    ) -> Result<Vec<AuditEntry>, StateError> {
        let entries = sqlx::query_as(
            "SELECT at_ms, who, what, target FROM audit WHERE at_ms < ? ORDER BY at_ms DESC, id DESC LIMIT ?",
        )
        .bind(before_ms.unwrap_or(i64::MAX))
        .bind(bounded(limit))
        .fetch_all(&self.database.readers)
        .await?;
        Ok(entries)
    }
}
