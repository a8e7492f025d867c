//! The event log.

use domain::event::{Event, Severity};
use domain::time::TimestampMs;
use sqlx::{QueryBuilder, Sqlite};

use super::{StateError, StateStore, bounded, from_json, to_json};

/// The maximum number of events; the oldest are deleted first. About one month of a busy cluster, some 300 MB.
const EVENTS_MAX: i64 = 1_000_000;
/// How often the maximum is enforced, in appended events.
const PRUNE_EVERY: i64 = 1_000;

/// A filter for events. `None` matches all.
#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    /// Events of this node.
    pub node: Option<String>,
    /// Events of this run.
    pub run: Option<String>,
    /// Events of this kind.
    pub kind: Option<String>,
    /// Events of at least this severity.
    pub severity: Option<Severity>,
    /// Events at or after this time.
    pub since_ms: Option<TimestampMs>,
    /// Events before this time, for the next page.
    pub before_ms: Option<TimestampMs>,
}

impl StateStore {
    /// Appends an event.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn append_event(&self, event: &Event) -> Result<(), StateError> {
        let done = sqlx::query(
            "INSERT INTO events (at_ms, severity, kind, node, run, event) VALUES (?, ?, ?, ?, ?, ?)",
        )
        .bind(event.at_ms)
        .bind(event.severity as i64)
        .bind(&event.kind)
        .bind(&event.node)
        .bind(&event.run)
        .bind(to_json("event", event)?)
        .execute(self.database.writer())
        .await?;
        let id = done.last_insert_rowid();
        if id % PRUNE_EVERY == 0 {
            let prune = sqlx::query("DELETE FROM events WHERE id <= ?");
            prune
                .bind(id - EVENTS_MAX)
                .execute(self.database.writer())
                .await?;
        }
        Ok(())
    }

    /// Returns events, newest first.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn events(&self, filter: &EventFilter, limit: u32) -> Result<Vec<Event>, StateError> {
        let mut query = QueryBuilder::<Sqlite>::new("SELECT event FROM events WHERE 1");
        if let Some(node) = &filter.node {
            query.push(" AND node = ").push_bind(node);
        }
        if let Some(run) = &filter.run {
            query.push(" AND run = ").push_bind(run);
        }
        if let Some(kind) = &filter.kind {
            query.push(" AND kind = ").push_bind(kind);
        }
        if let Some(severity) = filter.severity {
            query.push(" AND severity >= ").push_bind(severity as i64);
        }
        if let Some(since_ms) = filter.since_ms {
            query.push(" AND at_ms >= ").push_bind(since_ms);
        }
        if let Some(before_ms) = filter.before_ms {
            query.push(" AND at_ms < ").push_bind(before_ms);
        }
        query
            .push(" ORDER BY at_ms DESC, id DESC LIMIT ")
            .push_bind(bounded(limit));
        let rows: Vec<String> = query
            .build_query_scalar()
            .fetch_all(&self.database.readers)
            .await?;
        rows.iter().map(|row| from_json("event", row)).collect()
    }
}
