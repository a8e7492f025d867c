//! Retention: chunks whose last sample is too old go, then series that have none left, then groups without series.

use domain::time::TimestampMs;

use super::index::Entry;
use super::{SeriesId, Shared, lock, read, write};

/// Groups looked at in one transaction, so that nobody waits long for the lock.
const GROUPS_A_COMMIT: usize = 500;
/// A series is forgotten when nobody resolved it or sent it, not even without a value, for this many passes: senders keep
/// the ids of series that only now and then have a sample.
const PASSES_MIN: u8 = 2;
/// Free pages given back to the file system in one pass: 40 MB, more would stall the writer.
const VACUUM_PAGES: &str = "PRAGMA incremental_vacuum(10000)";
/// Sessions not heard of for a week do not come back to repeat an append.
const SESSION_AGE_MS: i64 = 7 * 24 * 3_600_000;

pub(crate) async fn run(shared: &Shared, now_ms: TimestampMs) -> Result<(), sqlx::Error> {
    let before_ms = now_ms.saturating_sub(shared.config.retention_ms);
    delete_chunks(shared, before_ms).await?;
    delete_series(shared, before_ms).await?;
    delete_groups(shared).await?;
    delete_sessions(shared, now_ms - SESSION_AGE_MS).await?;
    sqlx::query(VACUUM_PAGES)
        .execute(shared.database.writer())
        .await?;
    Ok(())
}

async fn delete_chunks(shared: &Shared, before_ms: TimestampMs) -> Result<(), sqlx::Error> {
    let groups: Vec<i64> = read(&shared.index)
        .groups()
        .iter()
        .map(|group| group.id.0)
        .collect();
    for some in groups.chunks(GROUPS_A_COMMIT) {
        sqlx::query("DELETE FROM chunks WHERE group_id IN (SELECT value FROM json_each(?)) AND max_ms < ?")
            .bind(json(some))
            .bind(before_ms)
            .execute(shared.database.writer())
            .await?;
    }
    Ok(())
}

async fn delete_series(shared: &Shared, before_ms: TimestampMs) -> Result<(), sqlx::Error> {
    write(&shared.index).begin_pass();
    let expired = |entry: &Entry| {
        let recent = entry
            .group
            .lock()
            .last_ms(entry.row)
            .is_some_and(|last_ms| last_ms >= before_ms);
        !recent && entry.idle_passes() >= PASSES_MIN
    };
    let ids: Vec<SeriesId> = read(&shared.index)
        .durable_entries()
        .filter(expired)
        .map(|entry| entry.id)
        .collect();
    for some in ids.chunks(GROUPS_A_COMMIT) {
        let numbers: Vec<i64> = some.iter().map(|id| i64::from(id.0)).collect();
        let delete = sqlx::query("DELETE FROM series WHERE id IN (SELECT value FROM json_each(?))");
        delete
            .bind(json(&numbers))
            .execute(shared.database.writer())
            .await?;
        write(&shared.index).remove(some);
    }
    Ok(())
}

async fn delete_groups(shared: &Shared) -> Result<(), sqlx::Error> {
    let empty = write(&shared.index).take_empty_groups();
    for some in empty.chunks(GROUPS_A_COMMIT) {
        sqlx::query(
            "DELETE FROM groups WHERE id IN (SELECT value FROM json_each(?))
             AND NOT EXISTS (SELECT 1 FROM chunks WHERE group_id = groups.id)
             AND NOT EXISTS (SELECT 1 FROM series WHERE group_id = groups.id)",
        )
        .bind(json(&some.iter().map(|id| id.0).collect::<Vec<_>>()))
        .execute(shared.database.writer())
        .await?;
    }
    Ok(())
}

async fn delete_sessions(shared: &Shared, before_ms: TimestampMs) -> Result<(), sqlx::Error> {
    let forgotten = lock(&shared.sessions).forget(before_ms);
    if forgotten.is_empty() {
        return Ok(());
    }
    let names = serde_json::Value::from(forgotten).to_string();
    let delete = sqlx::query("DELETE FROM sessions WHERE session IN (SELECT value FROM json_each(?))");
    delete.bind(names).execute(shared.database.writer()).await?;
    Ok(())
}

fn json(ids: &[i64]) -> String {
    serde_json::Value::from(ids).to_string()
}
