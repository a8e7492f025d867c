//! Ageing: replaces chunks that are too old by a roll-up of the next resolution, in one transaction.
//!
//! ```text
//! chunks of a group   ├── old ──┤├── old ──┤├── young ──┤
//!                                        edge: the end of the last whole bucket without young samples
//!                     roll-up ───────────┤├┤ rest, under the id of its chunk
//! ```
//! So each bucket is computed once from all of its samples, and a crash leaves either the samples or their roll-up.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use domain::time::TimestampMs;

use super::chunk::Stored;
use super::chunk_rows::{NewRow, delete, read_blobs};
use super::codec::Corrupt;
use super::plan::ROW_SAMPLES;
use super::rollup::{floor, is_counter, roll_up};
use super::union::{cut, union};
use super::work_pool::run_on_all_cores;
use super::{Shared, read};

/// The maximum number of samples of one group that are rolled up at once: 2 MB of values. It bounds memory when a whole store
/// ages at once.
const GROUP_SAMPLES_MAX: u64 = 8 * ROW_SAMPLES;
/// The maximum number of samples that are rolled up in one transaction.
const STEP_SAMPLES_MAX: u64 = 24 * ROW_SAMPLES;
/// Old chunks wait until they fill this many buckets, so that their roll-up is a large row from the start.
const BUCKETS_MIN: i64 = 6 * 60;

/// The source and target resolution, and the age from which chunks are rolled up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ageing {
    pub(crate) from_ms: i64,
    pub(crate) to_ms: i64,
    /// Chunks that end before this time are old.
    pub(crate) before_ms: TimestampMs,
    /// Rolls up also if this makes few buckets.
    pub(crate) everything: bool,
}

/// The index columns of a chunk row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Row {
    id: i64,
    min_ms: TimestampMs,
    max_ms: TimestampMs,
    samples: u64,
    level: i64,
}

impl Ageing {
    /// Returns the groups with old chunks, and their metrics.
    pub(crate) async fn groups(&self, shared: &Shared) -> Result<Vec<(i64, String)>, sqlx::Error> {
        let wait_ms = if self.everything {
            0
        } else {
            BUCKETS_MIN * self.to_ms
        };
        sqlx::query_as(
            "SELECT id, metric FROM groups WHERE id IN (
                 SELECT group_id FROM chunks WHERE resolution_ms = ? AND max_ms < ?
                 GROUP BY group_id HAVING min(max_ms) < ?)",
        )
        .bind(self.from_ms)
        .bind(self.before_ms)
        .bind(self.before_ms.saturating_sub(wait_ms))
        .fetch_all(&shared.database.readers)
        .await
    }

    /// Rolls up some groups. Returns those in which something was done, because more may be left.
    pub(crate) async fn step(
        &self,
        shared: &Arc<Shared>,
        groups: &[(i64, String)],
    ) -> Result<Vec<(i64, String)>, sqlx::Error> {
        let (mut done, mut work, mut samples) = (Vec::new(), Vec::new(), 0);
        for group in groups {
            let rows = self.rows(shared, group.0).await?;
            let Some((edge_ms, rows)) = old(&rows, self.before_ms, self.to_ms) else {
                continue;
            };
            samples += rows.iter().map(|row| row.samples).sum::<u64>();
            work.push(self.part(shared, group, edge_ms, rows).await?);
            done.push(group.clone());
            if samples >= STEP_SAMPLES_MAX {
                self.write(shared, std::mem::take(&mut work)).await?;
                samples = 0;
            }
        }
        self.write(shared, work).await?;
        Ok(done)
    }

    async fn rows(&self, shared: &Shared, group: i64) -> Result<Vec<Row>, sqlx::Error> {
        let rows: Vec<(i64, i64, i64, i64, i64)> = sqlx::query_as(
            "SELECT id, min_ms, max_ms, samples, level FROM chunks
             WHERE group_id = ? AND resolution_ms = ? AND min_ms < ? ORDER BY min_ms, id",
        )
        .bind(group)
        .bind(self.from_ms)
        .bind(self.before_ms)
        .fetch_all(&shared.database.readers)
        .await?;
        let row = |(id, min_ms, max_ms, samples, level): (i64, i64, i64, i64, i64)| Row {
            id,
            min_ms,
            max_ms,
            samples: samples.unsigned_abs(),
            level,
        };
        Ok(rows.into_iter().map(row).collect())
    }

    async fn part(
        &self,
        shared: &Shared,
        (group, metric): &(i64, String),
        edge_ms: TimestampMs,
        mut rows: Vec<Row>,
    ) -> Result<Part, sqlx::Error> {
        // Where two chunks have a sample at the same time, the one from the older chunk is right.
        rows.sort_unstable_by_key(|row| row.id);
        let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
        let kind = read(&shared.metadata)
            .get(metric)
            .map(|metadata| metadata.kind.clone());
        Ok(Part {
            group: *group,
            id: shared.next_chunk.fetch_add(1, Ordering::Relaxed),
            to_ms: self.to_ms,
            counter: is_counter(metric, kind.as_deref()),
            edge_ms,
            blobs: read_blobs(shared, &ids).await?,
            rows,
        })
    }

    async fn write(&self, shared: &Shared, parts: Vec<Part>) -> Result<(), sqlx::Error> {
        let outcomes = run_on_all_cores(parts, |part| (part.group, part.run())).await?;
        if outcomes.is_empty() {
            return Ok(());
        }
        let mut transaction = shared.database.begin().await?;
        for (group, outcome) in &outcomes {
            match outcome {
                Ok(rolled) => {
                    delete(&mut transaction, &rolled.gone).await?;
                    for (row, level) in &rolled.rest {
                        row.insert(&mut transaction, (*group, self.from_ms), *level)
                            .await?;
                    }
                    if let Some(row) = &rolled.buckets {
                        row.insert(&mut transaction, (*group, self.to_ms), 0).await?;
                    }
                }
                Err((id, error)) => {
                    tracing::error!(chunk = id, %error, "a chunk that ages out cannot be decoded, and its samples are lost; check the disk");
                    delete(&mut transaction, &[*id]).await?;
                }
            }
        }
        let changed = outcomes.iter().map(|(group, _)| *group);
        shared.commit_chunks(transaction, changed.collect()).await
    }
}

/// Returns the edge and the old chunks that begin before it, or `None` if no whole bucket is old.
fn old(rows: &[Row], before_ms: TimestampMs, to_ms: i64) -> Option<(TimestampMs, Vec<Row>)> {
    let mut edge_ms = floor(before_ms, to_ms);
    let mut old = Vec::new();
    let mut samples = 0;
    for row in rows {
        if row.max_ms < before_ms && samples < GROUP_SAMPLES_MAX {
            samples += row.samples;
            old.push(*row);
        } else {
            edge_ms = edge_ms.min(floor(row.min_ms, to_ms));
        }
    }
    old.retain(|row| row.min_ms < edge_ms);
    (!old.is_empty()).then_some((edge_ms, old))
}

/// The old chunks of one group, to be rolled up.
struct Part {
    group: i64,
    /// The id of the roll-up.
    id: i64,
    to_ms: i64,
    counter: bool,
    edge_ms: TimestampMs,
    rows: Vec<Row>,
    blobs: Vec<Vec<u8>>,
}

struct RolledUp {
    gone: Vec<i64>,
    /// The samples after the edge, with the level of their chunk.
    rest: Vec<(NewRow, i64)>,
    buckets: Option<NewRow>,
}

impl Part {
    /// Computes the roll-up. The error names the chunk that cannot be decoded.
    fn run(&self) -> Result<RolledUp, (i64, Corrupt)> {
        let mut resolution_ms = 0;
        let mut sets = Vec::new();
        let mut rest = Vec::new();
        for (row, blob) in self.rows.iter().zip(&self.blobs) {
            let stored = Stored::decode(blob).map_err(|error| (row.id, error))?;
            resolution_ms = stored.resolution_ms;
            sets.resize_with(stored.sets.len(), Vec::new);
            let mut behind = Vec::new();
            for (set, frames) in sets.iter_mut().zip(&stored.sets) {
                let mut parts = cut(frames, &[self.edge_ms]);
                behind.extend(parts.pop());
                set.extend(parts.into_iter().flatten());
            }
            let behind = Stored {
                resolution_ms,
                sets: behind,
            };
            rest.extend(NewRow::of(row.id, &behind).map(|new| (new, row.level)));
        }
        let before = Stored {
            resolution_ms,
            sets: sets.iter().map(|frames| union(frames)).collect(),
        };
        Ok(RolledUp {
            gone: self.rows.iter().map(|row| row.id).collect(),
            rest,
            buckets: NewRow::of(self.id, &roll_up(&before, self.to_ms, self.counter)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::rollup::MINUTE_MS;
    use super::*;

    fn row(id: i64, min_ms: i64, max_ms: i64) -> Row {
        Row {
            id,
            min_ms,
            max_ms,
            samples: 1,
            level: 1,
        }
    }

    fn check(rows: &[Row], expected: Option<(i64, &[i64])>) {
        let found = old(rows, 600_000, MINUTE_MS);
        let found = found.map(|(edge_ms, rows)| (edge_ms, rows.iter().map(|row| row.id).collect::<Vec<_>>()));
        assert_eq!(found, expected.map(|(edge_ms, ids)| (edge_ms, ids.to_vec())));
    }

    #[test]
    fn the_edge_is_a_bucket_that_nothing_young_reaches_into() {
        check(&[], None);
        check(
            &[row(1, 0, 200_000), row(2, 200_001, 599_999)],
            Some((600_000, &[1, 2])),
        );
        check(
            &[row(1, 0, 200_000), row(2, 200_001, 600_000)],
            Some((180_000, &[1])),
        );
        // A late sample in a young chunk keeps everything from its bucket on from being rolled up.
        check(
            &[
                row(1, 0, 200_000),
                row(3, 100_000, 700_000),
                row(2, 200_001, 599_999),
            ],
            Some((60_000, &[1])),
        );
        check(&[row(1, 30_000, 40_000), row(2, 50_000, 700_000)], None);
    }
}
