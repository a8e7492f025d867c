//! What a selection needs, group by group: copies from memory, and chunks from disk where memory does not reach.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use domain::series::{Budget, Labels, SelectError};
use domain::time::TimestampMs;

use super::head::{Group, GroupId, Snapshot};
use super::{SeriesId, Shared};

/// Groups whose chunks are read in one statement.
const GROUPS_A_QUERY: usize = 64;

/// What is read of one group.
pub(crate) struct Wanted {
    pub(crate) group: Arc<Group>,
    pub(crate) series: HashMap<SeriesId, Labels>,
    pub(crate) memory: Snapshot,
    /// Chunks on disk by their ids.
    pub(crate) chunks: Vec<(i64, Vec<u8>)>,
}

impl Wanted {
    pub(crate) fn new(group: Arc<Group>) -> Self {
        Self {
            group,
            series: HashMap::new(),
            memory: Snapshot::default(),
            chunks: Vec::new(),
        }
    }

    /// Samples in memory that will be read.
    pub(crate) fn memory_cost(&self) -> u64 {
        let frozen = self
            .memory
            .segments
            .iter()
            .map(|segment| share(segment.samples, self.series.len(), segment.series));
        let live = self.memory.live.iter().map(|frame| frame.values.len() as u64);
        frozen.chain(live).sum()
    }
}

/// Reads the chunks that memory does not have. Blobs are paid for as they come, so that no query gathers more than it may.
pub(crate) async fn read_chunks(
    shared: &Shared,
    wanted: &mut BTreeMap<GroupId, Wanted>,
    (start_ms, end_ms): (TimestampMs, TimestampMs),
    budget: &Budget,
) -> Result<(), SelectError> {
    let groups: Vec<i64> = wanted
        .iter()
        .filter(|(_, group)| group.memory.disk)
        .map(|(id, _)| id.0)
        .collect();
    for some in groups.chunks(GROUPS_A_QUERY) {
        let rows: Vec<(i64, i64, i64, i64, Vec<u8>)> = sqlx::query_as(
            "SELECT chunks.group_id, chunks.id, chunks.series, chunks.samples, chunks.data FROM json_each(?) AS wanted
             JOIN chunks ON chunks.group_id = wanted.value AND chunks.max_ms >= ? AND chunks.min_ms <= ?",
        )
        .bind(serde_json::Value::from(some).to_string())
        .bind(start_ms)
        .bind(end_ms)
        .fetch_all(&shared.database.readers)
        .await
        .map_err(|error| SelectError::Store(Box::new(error)))?;
        for (group, id, series, samples, data) in rows {
            let Some(group) = wanted.get_mut(&GroupId(group)) else {
                continue;
            };
            if group.memory.segments.iter().any(|segment| segment.chunk == id) {
                continue;
            }
            budget.take(0, share(samples as u64, group.series.len(), series as usize))?;
            group.chunks.push((id, data));
        }
    }
    Ok(())
}

/// Of the samples of so many pooled series those of the wanted ones, about.
fn share(samples: u64, wanted: usize, series: usize) -> u64 {
    let share = samples
        .saturating_mul(wanted as u64)
        .div_ceil(series.max(1) as u64);
    share.min(samples)
}
