//! Retention: rolls up or deletes old samples, then removes series without samples and groups without series.
//!
//! ```text
//! roll up, finest first → drop what is past its last tier → drop the oldest while the file is too large
//!                       → series, groups, sessions → return free pages to the file system
//! ```
//! A pass consists of steps, each a short transaction, so that sealing gets its turn between them.

use std::collections::VecDeque;
use std::sync::Arc;

use domain::time::TimestampMs;
use sqlx::sqlite::SqliteQueryResult;

use super::age::Ageing;
use super::index::Entry;
use super::rollup::{HOUR_MS, MINUTE_MS, Tier, floor, tiers};
use super::{SeriesId, Shared, lock, read, seal, write};

/// The number of series or groups deleted in one transaction. Small, so that other tasks wait only briefly for the lock.
const NAMES_PER_COMMIT: usize = 500;
/// The number of groups rolled up in one step.
const GROUPS_PER_STEP: usize = 16;
/// The number of chunks deleted in one transaction: 5 MB if they are merged, 20 ms.
const CHUNKS_PER_COMMIT: i64 = 128;
/// A series is removed after this many passes in which no client resolved or sent it, even without a value. Senders keep the
/// ids of series that have samples only now and then.
const PASSES_MIN: u8 = 2;
/// Returns free pages to the file system: 4 MB at a time, about 10 ms of the writer.
const VACUUM_PAGES: &str = "PRAGMA incremental_vacuum(1000)";
/// Copies SQLite's journal into the database and truncates it.
const TRUNCATE_JOURNAL: &str = "PRAGMA wal_checkpoint(TRUNCATE)";
/// The next merge uses free pages again. Only pages above this share of the file (1/8) are returned.
const FREE_SHARE: i64 = 8;
/// Up to this many free pages (16 MB) are never returned.
const FREE_PAGES_MIN: i64 = 4_096;
/// A session that was not seen for one week will not repeat an append.
const SESSION_AGE_MS: i64 = 7 * 24 * 3_600_000;

/// A pass over everything that is too old.
pub(crate) struct Pass {
    now_ms: TimestampMs,
    stages: VecDeque<Stage>,
}

enum Stage {
    /// The groups that are left to roll up. `None` before the stage begins, because an earlier stage may add work.
    RollUp(Ageing, Option<Vec<(i64, String)>>),
    Drop {
        resolution_ms: i64,
        before_ms: TimestampMs,
    },
    /// Shrinks the file to this many bytes.
    Shrink(u64),
    Names,
    Vacuum,
}

impl Pass {
    /// Creates a pass. With `everything`, it also rolls up chunks that would otherwise wait for more.
    pub(crate) fn new(shared: &Shared, now_ms: TimestampMs, everything: bool) -> Self {
        let config = &shared.config;
        let tiers = tiers(config);
        // Copies of old chunks in memory would be read in addition to their roll-up.
        let before_ms = now_ms.saturating_sub(tiers[0].retention_ms);
        let evicted = read(&shared.index)
            .groups()
            .iter()
            .map(|group| group.lock().evict(before_ms))
            .sum();
        shared.memory.remove_recent(evicted);
        let mut stages: VecDeque<Stage> = tiers
            .windows(2)
            .map(|pair| Stage::RollUp(ageing(pair[0], pair[1], now_ms, everything), None))
            .collect();
        let dropped = |(resolution_ms, retention_ms): (i64, i64)| Stage::Drop {
            resolution_ms,
            before_ms: now_ms.saturating_sub(retention_ms),
        };
        let configured = [
            (0, config.retention_ms),
            (MINUTE_MS, config.rollup_1m_ms),
            (HOUR_MS, config.rollup_1h_ms),
        ];
        let rolled_up = |resolution_ms: i64| {
            tiers
                .windows(2)
                .any(|pair| pair[0].resolution_ms == resolution_ms)
        };
        stages.extend(
            configured
                .into_iter()
                .filter(|(resolution_ms, _)| !rolled_up(*resolution_ms))
                .map(dropped),
        );
        stages.extend(config.size_max_bytes.map(Stage::Shrink));
        stages.extend([Stage::Names, Stage::Vacuum]);
        Self { now_ms, stages }
    }

    /// Does the work of one short transaction. Returns true if there is more.
    pub(crate) async fn step(&mut self, shared: &Arc<Shared>) -> Result<bool, sqlx::Error> {
        let Some(stage) = self.stages.front_mut() else {
            return Ok(false);
        };
        let more = match stage {
            Stage::RollUp(ageing, groups) => roll_up(shared, *ageing, groups).await?,
            Stage::Drop {
                resolution_ms,
                before_ms,
            } => drop_chunks(shared, *resolution_ms, *before_ms).await?,
            Stage::Shrink(bytes_max) => shrink(shared, bytes_max).await?,
            Stage::Names => {
                delete_names(shared, self.now_ms).await?;
                false
            }
            Stage::Vacuum => vacuum(shared).await?,
        };
        if !more {
            self.stages.pop_front();
        }
        Ok(!self.stages.is_empty())
    }
}

fn ageing(from: Tier, to: Tier, now_ms: TimestampMs, everything: bool) -> Ageing {
    Ageing {
        from_ms: from.resolution_ms,
        to_ms: to.resolution_ms,
        before_ms: floor(now_ms.saturating_sub(from.retention_ms), to.resolution_ms),
        everything,
    }
}

async fn roll_up(
    shared: &Arc<Shared>,
    ageing: Ageing,
    groups: &mut Option<Vec<(i64, String)>>,
) -> Result<bool, sqlx::Error> {
    let Some(groups) = groups else {
        *groups = Some(ageing.groups(shared).await?);
        return Ok(true);
    };
    let some = groups.split_off(groups.len().saturating_sub(GROUPS_PER_STEP));
    groups.extend(ageing.step(shared, &some).await?);
    Ok(!groups.is_empty())
}

async fn drop_chunks(
    shared: &Shared,
    resolution_ms: i64,
    before_ms: TimestampMs,
) -> Result<bool, sqlx::Error> {
    let dropped = sqlx::query(
        "DELETE FROM chunks WHERE id IN (SELECT id FROM chunks WHERE max_ms < ? AND resolution_ms = ? LIMIT ?)",
    )
    .bind(before_ms)
    .bind(resolution_ms)
    .bind(CHUNKS_PER_COMMIT)
    .execute(shared.database.writer())
    .await;
    note_dropped(shared, &dropped);
    Ok(dropped?.rows_affected() > 0)
}

/// Clears the chunk cache: rows of any group may be deleted, even if the deletion failed.
fn note_dropped(shared: &Shared, dropped: &Result<SqliteQueryResult, sqlx::Error>) {
    if dropped
        .as_ref()
        .map_or(true, |dropped| dropped.rows_affected() > 0)
    {
        lock(&shared.chunk_cache).all_changed();
    }
}

/// Drops the oldest chunks while the used pages of the file exceed the limit. Then drops 5 % more, so that the next chunk does
/// not exceed it again.
async fn shrink(shared: &Shared, bytes_max: &mut u64) -> Result<bool, sqlx::Error> {
    let pages = Pages::count(shared).await?;
    if pages.used_bytes() <= *bytes_max {
        return Ok(false);
    }
    let first = shared.config.size_max_bytes == Some(*bytes_max);
    if first {
        *bytes_max = *bytes_max / 20 * 19;
    }
    let dropped =
        sqlx::query("DELETE FROM chunks WHERE id IN (SELECT id FROM chunks ORDER BY max_ms LIMIT ?)")
            .bind(CHUNKS_PER_COMMIT)
            .execute(shared.database.writer())
            .await;
    note_dropped(shared, &dropped);
    if first {
        tracing::warn!(
            bytes_max = shared.config.size_max_bytes,
            "the series exceed their size limit on disk; the oldest samples are dropped before their retention ends"
        );
    }
    Ok(dropped?.rows_affected() > 0)
}

/// The pages of the database with the chunks.
struct Pages {
    all: i64,
    free: i64,
    bytes: i64,
}

impl Pages {
    async fn count(shared: &Shared) -> Result<Self, sqlx::Error> {
        let (all, free, bytes) = sqlx::query_as(
            "SELECT page_count, freelist_count, page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size",
        )
        .fetch_one(shared.database.writer())
        .await?;
        Ok(Self { all, free, bytes })
    }

    fn used_bytes(&self) -> u64 {
        ((self.all - self.free) * self.bytes).unsigned_abs()
    }
}

/// Returns some free pages to the file system, whether it is worthwhile or not; at the end also the journals. Returns true if
/// there is more.
pub(crate) async fn release_free_pages(shared: &Shared) -> Result<bool, sqlx::Error> {
    let more = Pages::count(shared).await?.free > 0;
    let step = if more { VACUUM_PAGES } else { TRUNCATE_JOURNAL };
    sqlx::query(step).execute(shared.database.writer()).await?;
    if !more {
        seal::empty_write_ahead(shared).await?;
    }
    Ok(more)
}

async fn vacuum(shared: &Shared) -> Result<bool, sqlx::Error> {
    let pages = Pages::count(shared).await?;
    if pages.free < FREE_PAGES_MIN || pages.free < pages.all / FREE_SHARE {
        return Ok(false);
    }
    sqlx::query(VACUUM_PAGES)
        .execute(shared.database.writer())
        .await?;
    Ok(true)
}

async fn delete_names(shared: &Shared, now_ms: TimestampMs) -> Result<(), sqlx::Error> {
    let longest_ms = tiers(&shared.config)
        .iter()
        .map(|tier| tier.retention_ms)
        .max()
        .unwrap_or_default();
    delete_series(shared, now_ms.saturating_sub(longest_ms)).await?;
    delete_groups(shared).await?;
    delete_sessions(shared, now_ms - SESSION_AGE_MS).await
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
    for some in ids.chunks(NAMES_PER_COMMIT) {
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
    for some in empty.chunks(NAMES_PER_COMMIT) {
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
