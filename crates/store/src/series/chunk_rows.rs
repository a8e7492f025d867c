//! Rows of the table `chunks`, as merging, ageing and deletion read, write and delete them.

use std::collections::BTreeMap;

use domain::time::TimestampMs;

use super::Shared;
use super::chunk::Stored;

/// A group and a resolution.
pub(crate) type Target = (i64, i64);

/// A row to insert.
pub(crate) struct NewRow {
    pub(crate) id: i64,
    pub(crate) min_ms: TimestampMs,
    pub(crate) max_ms: TimestampMs,
    pub(crate) series: i64,
    pub(crate) samples: i64,
    pub(crate) data: Vec<u8>,
}

impl NewRow {
    /// Returns the row of a chunk, or `None` if the chunk has no samples.
    pub(crate) fn of(id: i64, stored: &Stored) -> Option<Self> {
        let (min_ms, max_ms) = stored.range()?;
        Some(Self {
            id,
            min_ms,
            max_ms,
            series: stored.ids().len() as i64,
            samples: stored.len() as i64,
            data: stored.encode(),
        })
    }

    pub(crate) async fn insert(
        &self,
        transaction: &mut sqlx::SqliteConnection,
        (group, resolution_ms): Target,
        level: i64,
    ) -> Result<(), sqlx::Error> {
        sqlx::query(
            "INSERT INTO chunks (id, group_id, min_ms, max_ms, series, samples, data, level, resolution_ms)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(self.id)
        .bind(group)
        .bind(self.min_ms)
        .bind(self.max_ms)
        .bind(self.series)
        .bind(self.samples)
        .bind(&self.data)
        .bind(level)
        .bind(resolution_ms)
        .execute(transaction)
        .await?;
        Ok(())
    }
}

/// Returns the blobs of chunks, in the order of the ids.
pub(crate) async fn read_blobs(shared: &Shared, ids: &[i64]) -> Result<Vec<Vec<u8>>, sqlx::Error> {
    let found: Vec<(i64, Vec<u8>)> =
        sqlx::query_as("SELECT id, data FROM chunks WHERE id IN (SELECT value FROM json_each(?))")
            .bind(serde_json::Value::from(ids).to_string())
            .fetch_all(&shared.database.readers)
            .await?;
    let mut found: BTreeMap<i64, Vec<u8>> = found.into_iter().collect();
    ids.iter()
        .map(|id| found.remove(id).ok_or(sqlx::Error::RowNotFound))
        .collect()
}

pub(crate) async fn delete(transaction: &mut sqlx::SqliteConnection, ids: &[i64]) -> Result<(), sqlx::Error> {
    let delete = sqlx::query("DELETE FROM chunks WHERE id IN (SELECT value FROM json_each(?))")
        .bind(serde_json::Value::from(ids).to_string());
    delete.execute(transaction).await.map(drop)
}
