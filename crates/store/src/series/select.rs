//! Reading: what selections ask for is fetched and decoded first, then handed to a query as a plain value.
//!
//! ```text
//! matchers → series by group → memory (segments, live lanes) + chunks on disk, where memory does not reach back far enough
//!          → pieces, oldest chunk first → merged: ascending, each time once, the first value wins
//! ```
//! Series whose pieces lie on the same axes get the same merged axis, by allocation.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use domain::series::matcher::CompiledMatcher;
use domain::series::{
    Budget, BudgetExceeded, Frame, Labels, Matcher, SelectError, Selection, Series, SeriesSet, SeriesSource,
    is_absent,
};
use domain::time::TimestampMs;

use super::head::{Group, GroupId, Snapshot, range_of};
use super::index::{Entry, Index};
use super::{Metadata, SeriesId, SeriesStore, Shared, Stats, chunk, lock, read, write};

/// Groups whose chunks are read in one statement.
const GROUPS_A_QUERY: usize = 64;

type Axis = Arc<[TimestampMs]>;

/// The answers to some selections, ready to be asked for.
#[derive(Debug, Default)]
pub struct Prefetched {
    sets: HashMap<Selection, SeriesSet>,
}

impl SeriesSource for Prefetched {
    /// Costs no budget: [`SeriesStore::prefetch`] has paid.
    fn select(&self, selection: &Selection, budget: &Budget) -> Result<SeriesSet, SelectError> {
        budget.check_cancelled()?;
        let set = self.sets.get(selection);
        set.cloned()
            .ok_or_else(|| SelectError::Store("the selection was not prefetched".into()))
    }
}

impl SeriesStore {
    /// Reads what some selections ask for, and pays for it.
    ///
    /// # Errors
    /// When the budget is spent, a matcher is malformed, or the database fails.
    pub async fn prefetch(
        &self,
        selections: &[Selection],
        budget: &Budget,
    ) -> Result<Prefetched, SelectError> {
        let mut sets = HashMap::new();
        for selection in selections {
            if !sets.contains_key(selection) {
                sets.insert(selection.clone(), self.read_selection(selection, budget).await?);
            }
        }
        Ok(Prefetched { sets })
    }

    async fn read_selection(&self, selection: &Selection, budget: &Budget) -> Result<SeriesSet, SelectError> {
        let (start_ms, end_ms) = (selection.start_ms, selection.end_ms);
        let mut wanted = self.wanted(&selection.matchers, start_ms, end_ms)?;
        budget.take(wanted.values().map(|group| group.series.len() as u64).sum(), 0)?;
        for group in wanted.values_mut() {
            let names = &group.series;
            group.memory = group
                .group
                .lock()
                .snapshot(start_ms, end_ms, |id| names.contains_key(&id));
            budget.take(0, group.memory_cost())?;
        }
        read_chunks(&self.shared, &mut wanted, (start_ms, end_ms), budget).await?;
        let cancelled = budget.cancel_flag();
        let groups: Vec<Wanted> = wanted.into_values().collect();
        let merge = move || merge(groups, start_ms, end_ms, &cancelled);
        tokio::task::spawn_blocking(merge)
            .await
            .map_err(|error| SelectError::Store(Box::new(error)))?
    }

    fn wanted(
        &self,
        matchers: &[Matcher],
        start_ms: TimestampMs,
        end_ms: TimestampMs,
    ) -> Result<BTreeMap<GroupId, Wanted>, SelectError> {
        let compiled = compile(matchers)?;
        let mut wanted: BTreeMap<GroupId, Wanted> = BTreeMap::new();
        let index = read(&self.shared.index);
        for entry in active(&index, &compiled, start_ms, end_ms) {
            let group = wanted
                .entry(entry.group.id)
                .or_insert_with(|| Wanted::new(Arc::clone(&entry.group)));
            group.series.insert(entry.id, entry.labels.clone());
        }
        Ok(wanted)
    }

    /// Labels of the series that match any of the sets and may have samples within the range, sorted; at most `limit`.
    ///
    /// # Errors
    /// When a matcher is malformed.
    pub fn series(
        &self,
        sets: &[Vec<Matcher>],
        start_ms: TimestampMs,
        end_ms: TimestampMs,
        limit: usize,
    ) -> Result<Vec<Labels>, SelectError> {
        let mut found = self.matching(sets, start_ms, end_ms, |entry| entry.labels.clone())?;
        found.sort_unstable();
        found.dedup();
        found.truncate(limit);
        Ok(found)
    }

    /// Label names of the series that match any of the sets, or of all without a set; sorted.
    ///
    /// # Errors
    /// When a matcher is malformed.
    pub fn label_names(
        &self,
        sets: &[Vec<Matcher>],
        start_ms: TimestampMs,
        end_ms: TimestampMs,
    ) -> Result<Vec<String>, SelectError> {
        if sets.is_empty() {
            return Ok(read(&self.shared.index).label_names());
        }
        let found = self.matching(sets, start_ms, end_ms, |entry| entry.labels.clone())?;
        let names: HashSet<Arc<str>> = found
            .iter()
            .flat_map(Labels::iter)
            .map(|label| Arc::clone(&label.name))
            .collect();
        Ok(sorted(names.iter().map(ToString::to_string).collect()))
    }

    /// Values of a label on the series that match any of the sets, or on all without a set; sorted, at most `limit`.
    ///
    /// # Errors
    /// When a matcher is malformed.
    pub fn label_values(
        &self,
        name: &str,
        sets: &[Vec<Matcher>],
        start_ms: TimestampMs,
        end_ms: TimestampMs,
        limit: usize,
    ) -> Result<Vec<String>, SelectError> {
        let mut values = if sets.is_empty() {
            read(&self.shared.index).label_values(name)
        } else {
            let found = self.matching(sets, start_ms, end_ms, |entry| {
                entry.labels.get(name).map(str::to_owned)
            })?;
            sorted(
                found
                    .into_iter()
                    .flatten()
                    .collect::<HashSet<_>>()
                    .into_iter()
                    .collect(),
            )
        };
        values.truncate(limit);
        Ok(values)
    }

    fn matching<T>(
        &self,
        sets: &[Vec<Matcher>],
        start_ms: TimestampMs,
        end_ms: TimestampMs,
        take: impl Fn(&Entry) -> T,
    ) -> Result<Vec<T>, SelectError> {
        let compiled = sets
            .iter()
            .map(|set| compile(set))
            .collect::<Result<Vec<_>, _>>()?;
        let index = read(&self.shared.index);
        Ok(compiled
            .iter()
            .flat_map(|set| active(&index, set, start_ms, end_ms))
            .map(take)
            .collect())
    }

    /// Notes TYPE and HELP of a metric; writes only what is new.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn set_metadata(&self, name: &str, kind: &str, help: &str) -> Result<(), SelectError> {
        let metadata = Metadata {
            kind: kind.to_owned(),
            help: help.to_owned(),
        };
        if read(&self.shared.metadata).get(name) == Some(&metadata) {
            return Ok(());
        }
        sqlx::query(
            "INSERT INTO metadata (name, type, help) VALUES (?, ?, ?)
             ON CONFLICT (name) DO UPDATE SET type = excluded.type, help = excluded.help",
        )
        .bind(name)
        .bind(kind)
        .bind(help)
        .execute(self.shared.database.writer())
        .await
        .map_err(failed)?;
        write(&self.shared.metadata).insert(name.to_owned(), metadata);
        Ok(())
    }

    /// TYPE and HELP by metric name.
    #[must_use]
    pub fn metadata(&self) -> BTreeMap<String, Metadata> {
        read(&self.shared.metadata).clone()
    }

    /// What the store counts about itself.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let shared = &self.shared;
        let groups = read(&shared.index).groups();
        let closed: u64 = lock(&shared.wal_files).iter().map(|file| file.bytes).sum();
        let chunk_file = shared.config.data_dir.join("lockstep.db");
        Stats {
            series: read(&shared.index).len() as u64,
            head_samples: groups.iter().map(|group| group.lock().samples()).sum(),
            wal_bytes: closed + shared.wal_bytes.load(Ordering::Relaxed).unsigned_abs(),
            chunk_file_bytes: std::fs::metadata(chunk_file).map_or(0, |file| file.len()),
            ..shared.counters.stats()
        }
    }
}

fn compile(matchers: &[Matcher]) -> Result<Vec<CompiledMatcher>, SelectError> {
    let compiled =
        |matcher| CompiledMatcher::new(matcher).map_err(|error| SelectError::Matcher(error.to_string()));
    matchers.iter().map(compiled).collect()
}

/// The matching series that may have samples within the range.
fn active<'a>(
    index: &'a Index,
    matchers: &[CompiledMatcher],
    start_ms: TimestampMs,
    end_ms: TimestampMs,
) -> Vec<&'a Entry> {
    let mut found = index.search(matchers);
    found.retain(|entry| entry.group.lock().overlaps(entry.row, start_ms, end_ms));
    found
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort_unstable();
    names
}

fn failed(error: sqlx::Error) -> SelectError {
    SelectError::Store(Box::new(error))
}

// === fetching ===

/// What is read of one group.
struct Wanted {
    group: Arc<Group>,
    series: HashMap<SeriesId, Labels>,
    memory: Snapshot,
    /// Chunks on disk by their ids.
    chunks: Vec<(i64, Vec<u8>)>,
}

impl Wanted {
    fn new(group: Arc<Group>) -> Self {
        Self {
            group,
            series: HashMap::new(),
            memory: Snapshot::default(),
            chunks: Vec::new(),
        }
    }

    /// Samples in memory that will be read.
    fn memory_cost(&self) -> u64 {
        let frozen = self.memory.segments.iter().flat_map(|segment| &segment.frames);
        let cost = |frame: &Frame<SeriesId>| {
            let rows = frame
                .series
                .iter()
                .filter(|id| self.series.contains_key(id))
                .count();
            (rows * frame.times_ms.len()) as u64
        };
        frozen.chain(&self.memory.live).map(cost).sum()
    }
}

/// Reads the chunks that memory does not have. Blobs are paid for as they come, so that no query gathers more than it may.
async fn read_chunks(
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
        .map_err(failed)?;
        for (group, id, series, samples, data) in rows {
            let Some(group) = wanted.get_mut(&GroupId(group)) else {
                continue;
            };
            if group.memory.segments.iter().any(|segment| segment.chunk == id) {
                continue;
            }
            let share = (samples as u64)
                .saturating_mul(group.series.len() as u64)
                .div_ceil(series.max(1) as u64);
            budget.take(0, share.min(samples as u64))?;
            group.chunks.push((id, data));
        }
    }
    Ok(())
}

// === merging ===

fn merge(
    groups: Vec<Wanted>,
    start_ms: TimestampMs,
    end_ms: TimestampMs,
    cancelled: &AtomicBool,
) -> Result<SeriesSet, SelectError> {
    let mut set = SeriesSet::default();
    let mut axes: HashSet<Axis> = HashSet::new();
    for group in groups {
        if cancelled.load(Ordering::Relaxed) {
            return Err(BudgetExceeded::Cancelled.into());
        }
        merge_group(group, start_ms, end_ms, &mut axes, &mut set.series)?;
    }
    set.series.sort_unstable_by(|a, b| a.labels.cmp(&b.labels));
    Ok(set)
}

fn merge_group(
    group: Wanted,
    start_ms: TimestampMs,
    end_ms: TimestampMs,
    axes: &mut HashSet<Axis>,
    out: &mut Vec<Series>,
) -> Result<(), SelectError> {
    let decoded = decode(&group)?;
    // Oldest chunk first: where two have the same time, the older one is right.
    let mut frames: Vec<(i64, &Frame<SeriesId>)> = decoded.iter().map(|(id, frame)| (*id, frame)).collect();
    frames.extend(
        group
            .memory
            .segments
            .iter()
            .flat_map(|segment| segment.frames.iter().map(|frame| (segment.chunk, frame))),
    );
    frames.sort_by_key(|(id, _)| *id);
    let frames: Vec<&Frame<SeriesId>> = frames
        .into_iter()
        .map(|(_, frame)| frame)
        .chain(&group.memory.live)
        .collect();
    let ranges: Vec<Range<usize>> = frames
        .iter()
        .map(|frame| range_of(&frame.times_ms, start_ms, end_ms))
        .collect();
    let mut rows: HashMap<SeriesId, Vec<(usize, usize)>> = HashMap::new();
    for (at, frame) in frames
        .iter()
        .enumerate()
        .filter(|(at, _)| !ranges[*at].is_empty())
    {
        for (row, id) in frame
            .series
            .iter()
            .enumerate()
            .filter(|(_, id)| group.series.contains_key(id))
        {
            rows.entry(*id).or_default().push((at, row));
        }
    }
    let mut merged: HashMap<Vec<usize>, Option<Axis>> = HashMap::new();
    for (id, mut places) in rows {
        places.sort_by_key(|(at, _)| frames[*at].times_ms[ranges[*at].start]);
        let key: Vec<usize> = places.iter().map(|(at, _)| *at).collect();
        let axis = merged
            .entry(key)
            .or_insert_with_key(|key| concatenated(key, &frames, &ranges).map(|axis| shared(axes, axis)));
        let cells = places
            .iter()
            .map(|(at, row)| &frames[*at].row(*row)[ranges[*at].clone()]);
        let (times_ms, values) = match axis {
            Some(axis) => (Arc::clone(axis), cells.flatten().copied().collect::<Arc<[f64]>>()),
            None => {
                let (times, values) = interleaved(&mut places, &frames, &ranges);
                (shared(axes, times), values)
            }
        };
        if values.iter().any(|value| !is_absent(*value)) {
            out.push(Series {
                labels: group.series[&id].clone(),
                times_ms,
                values,
            });
        }
    }
    Ok(())
}

fn decode(group: &Wanted) -> Result<Vec<(i64, Frame<SeriesId>)>, SelectError> {
    let mut decoded = Vec::new();
    for (id, data) in &group.chunks {
        let frames = chunk::decode(data, |id| group.series.contains_key(&id))
            .map_err(|error| SelectError::Store(Box::new(error)))?;
        decoded.extend(frames.into_iter().map(|frame| (*id, frame)));
    }
    Ok(decoded)
}

/// The axes one after the other, when each begins after the one before has ended.
fn concatenated(key: &[usize], frames: &[&Frame<SeriesId>], ranges: &[Range<usize>]) -> Option<Axis> {
    let parts: Vec<&[TimestampMs]> = key
        .iter()
        .map(|at| &frames[*at].times_ms[ranges[*at].clone()])
        .collect();
    let apart = parts.windows(2).all(|pair| pair[0].last() < pair[1].first());
    apart.then(|| parts.concat().into())
}

/// Samples of pieces that overlap, sorted; of those at one time the one of the oldest piece.
fn interleaved(
    places: &mut [(usize, usize)],
    frames: &[&Frame<SeriesId>],
    ranges: &[Range<usize>],
) -> (Axis, Arc<[f64]>) {
    places.sort_unstable();
    let mut samples: Vec<(TimestampMs, f64)> = Vec::new();
    for (at, row) in places {
        let (frame, range) = (frames[*at], &ranges[*at]);
        let values = &frame.row(*row)[range.clone()];
        let cells = frame.times_ms[range.clone()]
            .iter()
            .copied()
            .zip(values.iter().copied());
        samples.extend(cells.filter(|(_, value)| !is_absent(*value)));
    }
    samples.sort_by_key(|(time_ms, _)| *time_ms);
    samples.dedup_by_key(|(time_ms, _)| *time_ms);
    let (times_ms, values): (Vec<_>, Vec<_>) = samples.into_iter().unzip();
    (times_ms.into(), values.into())
}

/// The one allocation of an axis.
fn shared(axes: &mut HashSet<Axis>, axis: Axis) -> Axis {
    if let Some(known) = axes.get(&axis) {
        return Arc::clone(known);
    }
    axes.insert(Arc::clone(&axis));
    axis
}
