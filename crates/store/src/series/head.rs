//! The head: samples in memory, by group (one node's series of one metric).
//!
//! ```text
//! Group   lanes      samples not sealed yet        times    t0 t1 t2 …     one axis,
//!                                                  column   v0 v1 v2 …     a column a series
//!         segments   frozen lanes: on their way into a chunk, or already there and kept for recent queries
//! ```
//! Series that tick together share a lane. A sample older than its lane's end that finds no place there goes to a late lane,
//! so that an agent's backfill, in order itself, is as cheap as live data.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use domain::series::{Frame, is_absent};
use domain::time::TimestampMs;

use super::SeriesId;
use super::lane::{Lane, Put, range_of};

/// Number of a group; the key of its rows on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct GroupId(pub(crate) i64);

/// One node's series of one metric.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) id: GroupId,
    pub(crate) node: Arc<str>,
    pub(crate) metric: Arc<str>,
    samples: Mutex<GroupSamples>,
}

/// What a group holds in memory.
#[derive(Debug, Default)]
pub(crate) struct GroupSamples {
    rows: Vec<Row>,
    lanes: Vec<Lane>,
    segments: VecDeque<Arc<Segment>>,
    /// The first and last write-ahead batch with samples in the lanes.
    batches: Option<(u64, u64)>,
    unsealed_since: Option<Instant>,
    /// Samples of batches up to this one are in committed chunks.
    sealed_batch: u64,
    /// The latest sample that is on disk only.
    on_disk_max_ms: Option<TimestampMs>,
}

/// One series of a group.
#[derive(Debug, Clone)]
struct Row {
    series: SeriesId,
    /// The earliest and latest sample; a wide guess for series read from disk.
    span: Option<(TimestampMs, TimestampMs)>,
    lane: Option<Place>,
    late: Option<Place>,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    lane: usize,
    column: usize,
}

/// Frozen samples of a group: what becomes a chunk.
#[derive(Debug)]
pub(crate) struct Segment {
    /// The chunk's id, given when frozen: older ones win over younger ones.
    pub(crate) chunk: i64,
    pub(crate) frames: Vec<Frame<SeriesId>>,
    pub(crate) min_ms: TimestampMs,
    pub(crate) max_ms: TimestampMs,
    pub(crate) samples: u64,
    pub(crate) first_batch: u64,
    pub(crate) last_batch: u64,
    pub(crate) sealed: AtomicBool,
}

/// What became of samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) accepted: u64,
    pub(crate) duplicates: u64,
    pub(crate) conflicts: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.accepted += other.accepted;
        self.duplicates += other.duplicates;
        self.conflicts += other.conflicts;
    }
}

/// What a query gets of a group's memory.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    /// Frozen parts, oldest first.
    pub(crate) segments: Vec<Arc<Segment>>,
    /// Copies of the live parts within the range, the wanted series only.
    pub(crate) live: Vec<Frame<SeriesId>>,
    /// Whether chunks on disk may hold more.
    pub(crate) disk: bool,
}

impl Group {
    pub(crate) fn new(id: GroupId, node: Arc<str>, metric: Arc<str>) -> Self {
        Self {
            id,
            node,
            metric,
            samples: Mutex::default(),
        }
    }

    /// The samples. A panic while they were held is a bug that one query or batch pays for, not the whole store.
    pub(crate) fn lock(&self) -> MutexGuard<'_, GroupSamples> {
        self.samples
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

// === impl GroupSamples: filling ===

impl GroupSamples {
    /// Adds a series that has no samples yet; returns its row.
    pub(crate) fn add_row(&mut self, series: SeriesId) -> u32 {
        self.rows.push(Row {
            series,
            span: None,
            lane: None,
            late: None,
        });
        u32::try_from(self.rows.len() - 1).expect("a group has at most 64 rows")
    }

    /// Adds a series read from disk: it may have samples wherever its group has.
    pub(crate) fn restore_row(&mut self, series: SeriesId) -> u32 {
        let row = self.add_row(series);
        self.rows[row as usize].span = self.on_disk_max_ms.map(|max_ms| (TimestampMs::MIN, max_ms));
        row
    }

    /// What the database knows of a group, said before its rows are added.
    pub(crate) fn restore(&mut self, sealed_batch: u64, on_disk_max_ms: Option<TimestampMs>) {
        self.sealed_batch = sealed_batch;
        self.on_disk_max_ms = on_disk_max_ms;
    }

    /// Takes the samples of one series out of a batch. A batch whose samples are in chunks is passed over.
    pub(crate) fn append(
        &mut self,
        row: u32,
        times_ms: &[TimestampMs],
        values: &[f64],
        batch: u64,
    ) -> Counts {
        let mut counts = Counts::default();
        if batch <= self.sealed_batch {
            return counts;
        }
        let mut late = Vec::new();
        let mut place = self.rows[row as usize].lane;
        for (n, (&time_ms, &value)) in times_ms.iter().zip(values).enumerate() {
            if is_absent(value) {
                continue;
            }
            let at =
                *place.get_or_insert_with(|| self.join(row, false, &present(&times_ms[n..], &values[n..])));
            match self.lanes[at.lane].put(at.column, time_ms, value) {
                Put::Stored => counts.accepted += 1,
                Put::Same => counts.duplicates += 1,
                Put::Other => counts.conflicts += 1,
                Put::Late => late.push((time_ms, value)),
            }
        }
        if !late.is_empty() {
            counts += self.append_late(row, &late);
        }
        if counts.accepted > 0 {
            self.note(row, times_ms, batch);
        }
        counts
    }

    fn append_late(&mut self, row: u32, samples: &[(TimestampMs, f64)]) -> Counts {
        let mut counts = Counts::default();
        let place = match self.rows[row as usize].late {
            Some(place) => place,
            None => self.join(
                row,
                true,
                &samples.iter().map(|(time_ms, _)| *time_ms).collect::<Vec<_>>(),
            ),
        };
        for &(time_ms, value) in samples {
            let lane = &mut self.lanes[place.lane];
            let put = match lane.put(place.column, time_ms, value) {
                Put::Late => lane.squeeze_in(place.column, time_ms, value),
                put => put,
            };
            match put {
                Put::Same => counts.duplicates += 1,
                Put::Other => counts.conflicts += 1,
                Put::Stored | Put::Late => counts.accepted += 1,
            }
        }
        counts
    }

    /// Finds the lane that ends with just these times, or opens one.
    fn join(&mut self, row: u32, late: bool, times_ms: &[TimestampMs]) -> Place {
        let fits = |lane: &Lane| lane.late == late && lane.times_ms.ends_with(times_ms);
        let at = self.lanes.iter().position(fits).unwrap_or_else(|| {
            self.lanes.push(Lane {
                late,
                ..Lane::default()
            });
            self.lanes.len() - 1
        });
        let lane = &mut self.lanes[at];
        lane.columns.push(Vec::new());
        lane.series.push(self.rows[row as usize].series);
        let place = Place {
            lane: at,
            column: lane.columns.len() - 1,
        };
        let row = &mut self.rows[row as usize];
        *(if late { &mut row.late } else { &mut row.lane }) = Some(place);
        place
    }

    fn note(&mut self, row: u32, times_ms: &[TimestampMs], batch: u64) {
        self.batches = Some((self.batches.map_or(batch, |(first, _)| first), batch));
        self.unsealed_since.get_or_insert_with(Instant::now);
        if let (Some(&first), Some(&last)) = (times_ms.first(), times_ms.last()) {
            let span = &mut self.rows[row as usize].span;
            *span = Some(span.map_or((first, last), |(min, max)| (min.min(first), max.max(last))));
        }
    }
}

fn present(times_ms: &[TimestampMs], values: &[f64]) -> Vec<TimestampMs> {
    times_ms
        .iter()
        .zip(values)
        .filter(|(_, value)| !is_absent(**value))
        .map(|(time_ms, _)| *time_ms)
        .collect()
}

// === impl GroupSamples: sealing ===

impl GroupSamples {
    /// How long the longest lane is, in samples a series.
    pub(crate) fn ticks_max(&self) -> usize {
        self.lanes
            .iter()
            .map(|lane| lane.times_ms.len())
            .max()
            .unwrap_or(0)
    }

    /// Since when samples wait to be sealed.
    pub(crate) fn unsealed_since(&self) -> Option<Instant> {
        self.unsealed_since
    }

    /// The oldest batch with samples that are not in a committed chunk.
    pub(crate) fn first_unsealed_batch(&self) -> Option<u64> {
        let frozen = self
            .segments
            .iter()
            .filter(|segment| !segment.is_sealed())
            .map(|segment| segment.first_batch);
        frozen.chain(self.batches.map(|(first, _)| first)).min()
    }

    /// Turns the lanes into a segment. To be called between batches only: a batch's samples go into one segment as a whole,
    /// or a replay would pass over those that came after the freeze.
    pub(crate) fn freeze(&mut self, chunk: i64) -> Option<Arc<Segment>> {
        let (first_batch, last_batch) = self.batches.take()?;
        self.unsealed_since = None;
        for row in &mut self.rows {
            (row.lane, row.late) = (None, None);
        }
        let lanes = std::mem::take(&mut self.lanes);
        let frames: Vec<_> = lanes
            .iter()
            .map(|lane| lane.frame(0..lane.times_ms.len(), |_| true))
            .collect();
        let min_ms = frames
            .iter()
            .filter_map(|frame| frame.times_ms.first())
            .min()
            .copied()?;
        let max_ms = frames
            .iter()
            .filter_map(|frame| frame.times_ms.last())
            .max()
            .copied()?;
        let samples = frames.iter().map(|frame| frame.samples() as u64).sum();
        let sealed = AtomicBool::new(false);
        let segment = Arc::new(Segment {
            chunk,
            frames,
            min_ms,
            max_ms,
            samples,
            first_batch,
            last_batch,
            sealed,
        });
        self.segments.push_back(Arc::clone(&segment));
        Some(segment)
    }

    /// Segments frozen earlier whose chunk could not be written then.
    pub(crate) fn unsealed_segments(&self) -> impl Iterator<Item = &Arc<Segment>> {
        self.segments.iter().filter(|segment| !segment.is_sealed())
    }

    /// Lets go of sealed segments that end before a time.
    pub(crate) fn evict(&mut self, before_ms: TimestampMs) {
        while let Some(segment) = self.segments.front()
            && segment.is_sealed()
            && segment.max_ms < before_ms
        {
            self.on_disk_max_ms = self.on_disk_max_ms.max(Some(segment.max_ms));
            self.segments.pop_front();
        }
    }

    /// Samples in memory.
    pub(crate) fn samples(&self) -> u64 {
        let live: usize = self
            .lanes
            .iter()
            .flat_map(|lane| &lane.columns)
            .map(Vec::len)
            .sum();
        live as u64 + self.segments.iter().map(|segment| segment.samples).sum::<u64>()
    }
}

impl Segment {
    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    /// How many series have samples in it.
    pub(crate) fn series(&self) -> usize {
        let mut series: Vec<_> = self.frames.iter().flat_map(|frame| &frame.series).collect();
        series.sort_unstable();
        series.dedup();
        series.len()
    }
}

// === impl GroupSamples: reading ===

impl GroupSamples {
    /// Whether a series may have samples within a range.
    pub(crate) fn overlaps(&self, row: u32, start_ms: TimestampMs, end_ms: TimestampMs) -> bool {
        self.rows[row as usize]
            .span
            .is_some_and(|(min, max)| min <= end_ms && max >= start_ms)
    }

    /// The latest sample of a series.
    pub(crate) fn last_ms(&self, row: u32) -> Option<TimestampMs> {
        self.rows[row as usize].span.map(|(_, max)| max)
    }

    /// What memory holds of some series within a range.
    pub(crate) fn snapshot(
        &self,
        start_ms: TimestampMs,
        end_ms: TimestampMs,
        wanted: impl Fn(SeriesId) -> bool,
    ) -> Snapshot {
        let within = |segment: &&Arc<Segment>| segment.min_ms <= end_ms && segment.max_ms >= start_ms;
        let segments = self.segments.iter().filter(within).cloned().collect();
        let mut live = Vec::new();
        for lane in &self.lanes {
            let range = range_of(&lane.times_ms, start_ms, end_ms);
            if !range.is_empty() {
                live.push(lane.frame(range, &wanted));
            }
        }
        Snapshot {
            segments,
            live,
            disk: self.on_disk_max_ms.is_some_and(|max_ms| max_ms >= start_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::series::ABSENT;

    use super::*;

    fn group(rows: u32) -> GroupSamples {
        let mut group = GroupSamples::default();
        for n in 0..rows {
            group.add_row(SeriesId(n));
        }
        group
    }

    fn all(group: &GroupSamples) -> Vec<Frame<SeriesId>> {
        group.snapshot(i64::MIN, i64::MAX, |_| true).live
    }

    #[test]
    fn series_that_tick_together_share_an_axis() {
        let mut group = group(3);
        for tick in 0..5 {
            group.append(0, &[tick * 1_000], &[1.0], 1);
            group.append(1, &[tick * 1_000], &[2.0], 1);
            group.append(2, &[tick * 1_000 + 7], &[3.0], 1);
        }
        let frames = all(&group);
        assert_eq!(
            frames.iter().map(|frame| frame.series.len()).collect::<Vec<_>>(),
            [2, 1]
        );
        assert_eq!(group.ticks_max(), 5);
    }

    #[test]
    fn the_first_value_at_a_time_wins() {
        let mut group = group(1);
        let counts = |accepted, duplicates, conflicts| Counts {
            accepted,
            duplicates,
            conflicts,
        };
        assert_eq!(group.append(0, &[10, 20], &[1.0, 2.0], 1), counts(2, 0, 0));
        assert_eq!(group.append(0, &[10, 20], &[1.0, 9.0], 1), counts(0, 1, 1));
        // Late, and late among the late; then each once more.
        assert_eq!(group.append(0, &[5, 15], &[3.0, 4.0], 2), counts(2, 0, 0));
        assert_eq!(group.append(0, &[7], &[5.0], 2), counts(1, 0, 0));
        assert_eq!(group.append(0, &[5, 7, 15], &[3.0, 5.0, 0.0], 2), counts(0, 2, 1));
        assert_eq!(all(&group).iter().map(Frame::samples).sum::<usize>(), 5);
    }

    #[test]
    fn backfill_has_a_lane_of_its_own() {
        let mut group = group(2);
        for row in 0..2 {
            group.append(row, &[100_000], &[1.0], 1);
        }
        for tick in 0..50 {
            for row in 0..2 {
                group.append(row, &[tick * 1_000], &[1.0], 2);
            }
        }
        let frames = all(&group);
        assert_eq!(frames.len(), 2);
        assert_eq!((frames[1].series.len(), frames[1].times_ms.len()), (2, 50));
    }

    #[test]
    fn a_frozen_group_starts_afresh_and_passes_over_what_is_sealed() {
        let mut group = group(1);
        group.append(0, &[1, 2], &[1.0, ABSENT], 7);
        let segment = group.freeze(1).expect("there are samples");
        assert_eq!(
            (
                segment.min_ms,
                segment.max_ms,
                segment.samples,
                segment.last_batch
            ),
            (1, 1, 1, 7)
        );
        assert_eq!(group.first_unsealed_batch(), Some(7));
        segment.sealed.store(true, Ordering::Release);
        assert_eq!(group.first_unsealed_batch(), None);
        group.evict(100);
        assert!(group.snapshot(0, 10, |_| true).disk);
        group.restore(7, Some(2));
        assert_eq!(group.append(0, &[3], &[1.0], 7), Counts::default());
        assert_eq!(group.append(0, &[3], &[1.0], 8).accepted, 1);
    }

    #[test]
    fn a_snapshot_has_the_asked_for_range_only() {
        let mut group = group(2);
        group.append(0, &[10, 20, 30], &[1.0, 2.0, 3.0], 1);
        group.append(1, &[30], &[4.0], 1);
        let live = group.snapshot(20, 30, |series| series == SeriesId(1)).live;
        assert_eq!(live[0].times_ms, [20, 30]);
        assert!(is_absent(live[0].values[0]));
        assert_eq!(live[0].values[1].to_bits(), 4.0_f64.to_bits());
    }
}
