//! The head: samples in memory, by group (the series of one metric on one node).
//!
//! ```text
//! Group   lanes      samples not sealed yet: a matrix of ticks × series, see lane.rs
//!         segments   frozen lanes that are being sealed; afterwards the bytes of the chunk, kept for recent queries
//! ```
//! Series with samples at the same times share a lane. A sample that is older than the end of its lane, and has no place there,
//! goes to a late lane. So an agent's backfill, which is in order itself, is as cheap as live data. A series has at most one
//! place in a lane and one in a late lane, so a duplicate sample is detected.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use domain::series::{Frame, is_absent};
use domain::time::{TimeRange, TimestampMs};

use super::SeriesId;
use super::counts::Counts;
use super::group_id::GroupId;
use super::lane::{Cells, Lane, Put, range_of};
use super::row::{Place, Row};
use super::segment::Segment;

/// The series of one metric on one node.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) id: GroupId,
    pub(crate) node: Arc<str>,
    pub(crate) metric: Arc<str>,
    samples: Mutex<GroupSamples>,
}

/// The samples of a group in memory.
#[derive(Debug, Default)]
pub(crate) struct GroupSamples {
    /// The number of this group among all groups.
    nth: usize,
    rows: Vec<Row>,
    lanes: Vec<Lane>,
    segments: VecDeque<Arc<Segment>>,
    /// The first and the last write-ahead batch with samples in the lanes.
    batches: Option<(u64, u64)>,
    unsealed_since: Option<Instant>,
    freezes: u32,
    /// Samples of batches up to this one are in committed chunks.
    sealed_batch: u64,
    /// The time of the latest sample that is only on disk.
    on_disk_max_ms: Option<TimestampMs>,
}

/// What a query reads of a group's memory.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    /// Frozen segments, oldest first.
    pub(crate) segments: Vec<Arc<Segment>>,
    /// Copies of the lanes within the range, with the wanted series only.
    pub(crate) live: Vec<Frame<SeriesId>>,
    /// True if chunks on disk may contain more samples.
    pub(crate) disk: bool,
    /// No chunk on disk has a sample after this time.
    pub(crate) chunks_end_ms: TimestampMs,
}

/// The newest sample of a series at or before a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Latest {
    /// Known without reading segments or chunks. `None` if the series has no sample.
    Known(Option<(TimestampMs, f64)>),
    /// Segments or chunks have to be read.
    Unknown,
}

impl Group {
    pub(crate) fn new(id: GroupId, node: Arc<str>, metric: Arc<str>) -> Self {
        Self {
            id,
            node,
            metric,
            samples: Mutex::new(GroupSamples {
                nth: id.0.unsigned_abs() as usize,
                ..GroupSamples::default()
            }),
        }
    }

    /// Locks the samples. A panic while they are locked fails one query or batch, not the whole store.
    pub(crate) fn lock(&self) -> MutexGuard<'_, GroupSamples> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl GroupSamples: filling ===

impl GroupSamples {
    /// Adds a series that has no samples yet. Returns its row.
    pub(crate) fn add_row(&mut self, series: SeriesId) -> u32 {
        self.rows.push(Row::new(series));
        u32::try_from(self.rows.len() - 1).expect("a group has at most 64 rows")
    }

    /// Adds a series read from the database. It may have samples wherever its group has samples.
    pub(crate) fn restore_row(&mut self, series: SeriesId) -> u32 {
        let row = self.add_row(series);
        if let Some(max_ms) = self.on_disk_max_ms {
            self.rows[row as usize].may_be_on_disk(max_ms);
        }
        row
    }

    /// Restores a group from the database. Call it before its rows are added.
    pub(crate) fn restore(&mut self, sealed_batch: u64, on_disk_max_ms: Option<TimestampMs>) {
        self.sealed_batch = sealed_batch;
        self.on_disk_max_ms = on_disk_max_ms;
    }

    /// Adds the samples of some rows from a batch; the columns of `cells` are in the order of `rows`. Skips a batch whose
    /// samples are already in chunks.
    pub(crate) fn append(&mut self, rows: &[u32], cells: Cells<'_>, batch: u64) -> Counts {
        let (Some(first_ms), Some(last_ms)) = (cells.times_ms.first(), cells.times_ms.last()) else {
            return Counts::default();
        };
        if batch <= self.sealed_batch {
            return Counts::default();
        }
        let counts = match self.lane_to_extend(rows, *first_ms, *last_ms) {
            Some(lane) => self.lanes[lane].extend(cells),
            None => self.put(rows, cells),
        };
        if counts.accepted > 0 {
            self.batches = Some((self.batches.map_or(batch, |(first, _)| first), batch));
            self.unsealed_since.get_or_insert_with(Instant::now);
        }
        counts
    }

    /// Returns the lane that has exactly these rows and ends before these times, if nothing else in the group can have their
    /// samples at these times. Opens a lane for rows that have none and cannot join another.
    fn lane_to_extend(&mut self, rows: &[u32], first_ms: TimestampMs, last_ms: TimestampMs) -> Option<usize> {
        let Some(at) = self.lane_of(rows, false) else {
            return self.open_lane(rows, false, first_ms);
        };
        let lane = &self.lanes[at];
        if lane.last_ms().is_none_or(|last| last < first_ms) {
            return Some(at);
        }
        if lane.has_within(TimeRange::new(first_ms, last_ms))
            || lane.last_ms().is_none_or(|last| last < last_ms)
        {
            return None;
        }
        let Some(late) = self.lane_of(rows, true) else {
            return self.open_lane(rows, true, first_ms);
        };
        let behind = self.lanes[late].last_ms().is_none_or(|last| last < first_ms);
        behind.then_some(late)
    }

    fn lane_of(&self, rows: &[u32], late: bool) -> Option<usize> {
        let just_these = |lane: &Lane| lane.late == late && *lane.rows == *rows;
        self.lanes.iter().position(just_these)
    }

    fn open_lane(&mut self, rows: &[u32], late: bool, first_ms: TimestampMs) -> Option<usize> {
        let placed = |row: &u32| self.rows[*row as usize].place(late).is_some();
        if rows.iter().any(placed) || self.lane_with(late, first_ms).is_some() {
            return None;
        }
        // There is nearly always only one lane.
        self.lanes.reserve_exact(1);
        self.lanes.push(Lane::new(late, rows, self.nth));
        let lane = self.lanes.len() - 1;
        for (column, row) in rows.iter().enumerate() {
            self.rows[*row as usize].set_place(late, Place::new(lane, column));
        }
        Some(lane)
    }

    fn lane_with(&self, late: bool, time_ms: TimestampMs) -> Option<usize> {
        let ticks = |lane: &Lane| lane.late == late && lane.has_within(TimeRange::new(time_ms, time_ms));
        self.lanes.iter().position(ticks)
    }

    /// The slow path: adds samples one by one.
    fn put(&mut self, rows: &[u32], cells: Cells<'_>) -> Counts {
        let mut counts = Counts::default();
        for (column, &row) in rows.iter().enumerate() {
            for (tick, &time_ms) in cells.times_ms.iter().enumerate() {
                let value = cells.value(column, tick);
                if is_absent(value) {
                    continue;
                }
                match self.put_sample(row, time_ms, value, &mut counts) {
                    Put::Same => counts.duplicates += 1,
                    Put::Other => counts.conflicts += 1,
                    Put::Stored | Put::Late => counts.accepted += 1,
                }
            }
        }
        counts
    }

    fn put_sample(&mut self, row: u32, time_ms: TimestampMs, value: f64, counts: &mut Counts) -> Put {
        let place = self.place(row, false, time_ms, counts);
        match self.lanes[place.lane()].put(place.column(), time_ms, value, counts) {
            Put::Late => {}
            done => return done,
        }
        let place = self.place(row, true, time_ms, counts);
        let lane = &mut self.lanes[place.lane()];
        match lane.put(place.column(), time_ms, value, counts) {
            Put::Late => lane.insert_late(place.column(), time_ms, value, counts),
            done => done,
        }
    }

    /// Returns the place of a row. A row without a place gets one in a lane with a tick at this time, or in a new lane.
    fn place(&mut self, row: u32, late: bool, time_ms: TimestampMs, counts: &mut Counts) -> Place {
        if let Some(place) = self.rows[row as usize].place(late) {
            return place;
        }
        let place = match self.lane_with(late, time_ms) {
            Some(lane) => Place::new(lane, self.lanes[lane].add_column(row, counts)),
            None => {
                self.lanes.push(Lane::new(late, &[row], self.nth));
                Place::new(self.lanes.len() - 1, 0)
            }
        };
        self.rows[row as usize].set_place(late, place);
        place
    }
}

// === impl GroupSamples: sealing ===

impl GroupSamples {
    /// Returns the length of the longest lane, in samples per series.
    pub(crate) fn ticks_max(&self) -> usize {
        self.lanes
            .iter()
            .map(|lane| lane.times_ms.len())
            .max()
            .unwrap_or(0)
    }

    /// Returns the time since which samples wait to be sealed.
    pub(crate) fn unsealed_since(&self) -> Option<Instant> {
        self.unsealed_since
    }

    /// Returns the oldest batch with samples that are not in a committed chunk.
    pub(crate) fn first_unsealed_batch(&self) -> Option<u64> {
        let frozen = self
            .segments
            .iter()
            .filter(|segment| !segment.is_sealed())
            .map(|segment| segment.first_batch);
        frozen.chain(self.batches.map(|(first, _)| first)).min()
    }

    /// Turns the lanes into a segment. Call it between batches only: all samples of a batch must go into one segment, otherwise
    /// a replay would skip those that were added after the freeze.
    pub(crate) fn freeze(&mut self, chunk: i64) -> Option<Arc<Segment>> {
        let (first_batch, last_batch) = self.batches.take()?;
        self.unsealed_since = None;
        self.freezes += 1;
        let mut lanes = std::mem::take(&mut self.lanes);
        lanes.retain(|lane| !lane.times_ms.is_empty());
        self.leave_lanes(&lanes);
        let rows = &self.rows;
        let segment = Segment::of_lanes(chunk, (first_batch, last_batch), lanes, |row| {
            rows[row as usize].series
        });
        let segment = Arc::new(segment?);
        self.segments.push_back(Arc::clone(&segment));
        Some(segment)
    }

    fn leave_lanes(&mut self, lanes: &[Lane]) {
        self.rows.iter_mut().for_each(Row::leave_lanes);
        for lane in lanes {
            for (column, row) in lane.rows.iter().enumerate() {
                let span = lane.span(column, 0..lane.times_ms.len());
                let latest = lane.latest(column, TimestampMs::MAX);
                if let Some(((first, last), (_, value))) = span.zip(latest) {
                    self.rows[*row as usize].left(first, last, value);
                }
            }
        }
    }

    /// Returns earlier segments whose chunk could not be written yet.
    pub(crate) fn unsealed_segments(&self) -> impl Iterator<Item = &Arc<Segment>> {
        self.segments.iter().filter(|segment| !segment.is_sealed())
    }

    /// Removes sealed segments that end before a time. Returns the bytes they took.
    pub(crate) fn evict(&mut self, before_ms: TimestampMs) -> usize {
        let mut bytes = 0;
        while let Some(segment) = self.segments.front()
            && let Some(data) = segment.data()
            && segment.max_ms < before_ms
        {
            bytes += data.len();
            self.on_disk_max_ms = self.on_disk_max_ms.max(Some(segment.max_ms));
            self.segments.pop_front();
        }
        bytes
    }

    /// Returns the end of the oldest chunk in memory.
    pub(crate) fn oldest_chunk_ms(&self) -> Option<TimestampMs> {
        let sealed = self.segments.front().filter(|segment| segment.is_sealed());
        sealed.map(|segment| segment.max_ms)
    }

    /// Removes segments whose chunks were merged: queries read the merged chunk and would read these as well. Returns the bytes
    /// they took.
    pub(crate) fn remove_merged(&mut self, chunks: &[i64]) -> usize {
        let mut bytes = 0;
        let on_disk_max_ms = &mut self.on_disk_max_ms;
        self.segments.retain(|segment| {
            let data = segment.data().filter(|_| chunks.contains(&segment.chunk));
            if let Some(data) = data {
                bytes += data.len();
                *on_disk_max_ms = (*on_disk_max_ms).max(Some(segment.max_ms));
            }
            data.is_none()
        });
        bytes
    }

    /// Returns how often the lanes were frozen.
    pub(crate) fn freezes(&self) -> u32 {
        self.freezes
    }
}

impl GroupSamples {
    /// Returns the times of the earliest and the latest sample in memory.
    pub(crate) fn span(&self) -> Option<(TimestampMs, TimestampMs)> {
        let frozen = self
            .segments
            .iter()
            .map(|segment| (segment.min_ms, segment.max_ms));
        let live = self
            .lanes
            .iter()
            .filter_map(|lane| lane.times_ms.first().copied().zip(lane.last_ms()));
        frozen
            .chain(live)
            .reduce(|(min, max), (from, to)| (min.min(from), max.max(to)))
    }
}

// === impl GroupSamples: reading ===

impl GroupSamples {
    /// Returns true if a series may have samples within a range.
    pub(crate) fn overlaps(&self, row: u32, range: TimeRange) -> bool {
        let row = &self.rows[row as usize];
        row.span()
            .is_some_and(|(min, max)| TimeRange::new(min, max).overlaps(range))
            || self
                .places(row)
                .any(|(lane, column)| lane.span(column, range_of(&lane.times_ms, range)).is_some())
    }

    /// Returns the time of the latest sample of a series.
    pub(crate) fn last_ms(&self, row: u32) -> Option<TimestampMs> {
        let row = &self.rows[row as usize];
        let in_lanes = self
            .places(row)
            .filter_map(|(lane, column)| lane.latest(column, TimestampMs::MAX))
            .map(|(time, _)| time);
        in_lanes.chain(row.span().map(|(_, max)| max)).max()
    }

    /// Returns the newest sample of a series at or before a time, if memory has it.
    pub(crate) fn latest(&self, row: u32, end_ms: TimestampMs) -> Latest {
        let row = &self.rows[row as usize];
        let in_lanes = self
            .places(row)
            .filter_map(|(lane, column)| lane.latest(column, end_ms))
            .max_by_key(|(time, _)| *time);
        match (in_lanes, row.span(), row.latest()) {
            // Nothing outside the lanes is newer.
            (Some(found), None, _) => Latest::Known(Some(found)),
            (Some(found), Some((_, max)), _) if found.0 > max => Latest::Known(Some(found)),
            (None, None, _) => Latest::Known(None),
            (found, _, Some(latest)) if latest.0 <= end_ms => {
                Latest::Known(Some(found.filter(|found| found.0 > latest.0).unwrap_or(latest)))
            }
            _ => Latest::Unknown,
        }
    }

    fn places(&self, row: &Row) -> impl Iterator<Item = (&Lane, usize)> {
        let places = row.places();
        places.map(|place| (&self.lanes[place.lane()], place.column()))
    }

    /// Records that chunks lost samples of a series; `all` if they have none left. Samples in lanes still count.
    pub(crate) fn forget(&mut self, row: u32, all: bool) {
        self.rows[row as usize].forget(all);
    }

    /// Returns what memory has of some series within a range.
    pub(crate) fn snapshot(&self, range: TimeRange, wanted: impl Fn(SeriesId) -> bool) -> Snapshot {
        let within = |segment: &&Arc<Segment>| TimeRange::new(segment.min_ms, segment.max_ms).overlaps(range);
        let segments = self.segments.iter().filter(within).cloned().collect();
        let ends = self.segments.iter().map(|segment| segment.max_ms);
        let mut live = Vec::new();
        for lane in &self.lanes {
            let ticks = range_of(&lane.times_ms, range);
            if !ticks.is_empty() {
                let series = lane.rows.iter().map(|row| self.rows[*row as usize].series);
                live.push(lane.frame(ticks, series, &wanted));
            }
        }
        Snapshot {
            segments,
            live,
            disk: self.on_disk_max_ms.is_some_and(|max_ms| max_ms >= range.start_ms),
            chunks_end_ms: ends.chain(self.on_disk_max_ms).max().unwrap_or(TimestampMs::MIN),
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::series::ABSENT;

    use super::*;
    use crate::series::chunk;
    use crate::series::chunk_data::ChunkData;
    use crate::series::cut::Cut;
    use crate::series::members::Members;
    use crate::series::piece::Piece;

    fn group(rows: u32) -> GroupSamples {
        let mut group = GroupSamples::default();
        for n in 0..rows {
            group.add_row(SeriesId(n));
        }
        group
    }

    /// Appends the same number of values to each of the rows.
    fn append(
        group: &mut GroupSamples,
        rows: &[u32],
        times_ms: &[i64],
        values: &[f64],
        batch: u64,
    ) -> Counts {
        let columns: Vec<u32> = (0..rows.len() as u32).collect();
        let cells = Cells {
            times_ms,
            values,
            columns: &columns,
        };
        group.append(rows, cells, batch)
    }

    fn counts(accepted: u64, duplicates: u64, conflicts: u64, cells: i64) -> Counts {
        Counts {
            accepted,
            duplicates,
            conflicts,
            cells,
        }
    }

    fn all(group: &GroupSamples) -> Vec<Frame<SeriesId>> {
        group.snapshot(TimeRange::ALL, |_| true).live
    }

    #[test]
    fn series_that_tick_together_share_an_axis() {
        let mut group = group(3);
        for tick in 0..5 {
            append(&mut group, &[0], &[tick * 1_000], &[1.0], 1);
            append(&mut group, &[1], &[tick * 1_000], &[2.0], 1);
            append(&mut group, &[2], &[tick * 1_000 + 7], &[3.0], 1);
        }
        let frames = all(&group);
        assert_eq!(
            frames.iter().map(|frame| frame.series.len()).collect::<Vec<_>>(),
            [2, 1]
        );
        assert_eq!(frames[0].row(1), [2.0; 5]);
        assert_eq!(group.ticks_max(), 5);
    }

    #[test]
    fn a_tick_cut_in_two_is_one_tick() {
        let mut group = group(3);
        for tick in 0..4_i64 {
            let cut = (tick % 3) as usize;
            append(&mut group, &[0, 1, 2][..cut], &[tick], &[1.0, 2.0, 3.0][..cut], 1);
            append(&mut group, &[0, 1, 2][cut..], &[tick], &[1.0, 2.0, 3.0][cut..], 1);
        }
        let frames = all(&group);
        assert_eq!(frames.len(), 1);
        let mut rows: Vec<_> = (0..3)
            .map(|row| (frames[0].series[row], frames[0].row(row).to_vec()))
            .collect();
        rows.sort_by_key(|(id, _)| *id);
        let expected = [1.0, 2.0, 3.0].map(|value| vec![value; 4]);
        assert_eq!(
            rows.into_iter().map(|(_, values)| values).collect::<Vec<_>>(),
            expected
        );
    }

    #[test]
    fn the_first_value_at_a_time_wins() {
        let mut group = group(1);
        let mut put = |times_ms: &[i64], values: &[f64]| append(&mut group, &[0], times_ms, values, 1);
        assert_eq!(put(&[10, 20], &[1.0, 2.0]), counts(2, 0, 0, 2));
        assert_eq!(put(&[10, 20], &[1.0, 9.0]), counts(0, 1, 1, 0));
        // Late samples, then samples that are late even in the late lane; then each of them again.
        assert_eq!(put(&[5, 15], &[3.0, 4.0]), counts(2, 0, 0, 2));
        assert_eq!(put(&[7], &[5.0]), counts(1, 0, 0, 1));
        assert_eq!(put(&[5, 7, 15], &[3.0, 5.0, 0.0]), counts(0, 2, 1, 0));
        assert_eq!(put(&[15, 30], &[4.0, 6.0]), counts(1, 1, 0, 1));
        assert_eq!(all(&group).iter().map(Frame::samples).sum::<usize>(), 6);
    }

    #[test]
    fn backfill_has_a_lane_of_its_own() {
        let mut group = group(2);
        append(&mut group, &[0, 1], &[100_000], &[1.0, 1.0], 1);
        for tick in 0..50 {
            append(&mut group, &[0, 1], &[tick * 1_000], &[1.0, 2.0], 2);
        }
        let frames = all(&group);
        assert_eq!(frames.len(), 2);
        assert_eq!((frames[1].series.len(), frames[1].times_ms.len()), (2, 50));
    }

    #[test]
    fn a_tick_without_any_sample_is_none() {
        let mut group = group(2);
        append(&mut group, &[0, 1], &[1], &[ABSENT, ABSENT], 1);
        assert_eq!(
            append(&mut group, &[0, 1], &[2, 3], &[1.0, ABSENT, ABSENT, ABSENT], 1),
            counts(1, 0, 0, 2)
        );
        assert_eq!(all(&group)[0].times_ms, [2]);
    }

    #[test]
    fn a_frozen_group_starts_afresh_and_passes_over_what_is_sealed() {
        let mut group = group(1);
        append(&mut group, &[0], &[1, 2], &[1.0, ABSENT], 7);
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
        segment.sealed(ChunkData::new(chunk::encode(&segment.unsealed_frames())).into());
        assert_eq!(group.first_unsealed_batch(), None);
        let (members, cut) = (Members::new([(SeriesId(0), 0)].into_iter()), Cut::within(0, 10));
        let pieces = segment.pieces(&members, &cut).expect("it is sound");
        let frames: Vec<_> = pieces.iter().map(Piece::frame).collect();
        assert_eq!(frames[0].values, [1.0]);
        assert!(group.evict(100) > 0);
        assert!(group.snapshot(TimeRange::new(0, 10), |_| true).disk);
        group.restore(7, Some(2));
        assert_eq!(append(&mut group, &[0], &[3], &[1.0], 7), Counts::default());
        assert_eq!(append(&mut group, &[0], &[3], &[1.0], 8).accepted, 1);
    }

    #[test]
    fn a_group_lets_go_of_what_was_merged() {
        let mut group = group(1);
        for (chunk, time_ms) in [(1, 10), (2, 20), (3, 30)] {
            append(&mut group, &[0], &[time_ms], &[1.0], chunk);
            let segment = group.freeze(chunk.cast_signed()).expect("there are samples");
            segment.sealed(ChunkData::new(chunk::encode(&segment.unsealed_frames())).into());
        }
        assert!(group.remove_merged(&[2, 9]) > 0);
        let left = group.snapshot(TimeRange::new(0, 100), |_| true).segments;
        assert_eq!(
            left.iter().map(|segment| segment.chunk).collect::<Vec<_>>(),
            [1, 3]
        );
        assert!(
            group.snapshot(TimeRange::new(20, 100), |_| true).disk
                && !group.snapshot(TimeRange::new(21, 100), |_| true).disk
        );
    }

    #[test]
    fn a_snapshot_contains_only_the_requested_range() {
        let mut group = group(2);
        append(
            &mut group,
            &[0, 1],
            &[10, 20, 30],
            &[1.0, 2.0, 3.0, ABSENT, ABSENT, 4.0],
            1,
        );
        let live = group
            .snapshot(TimeRange::new(20, 30), |series| series == SeriesId(1))
            .live;
        assert_eq!(live[0].times_ms, [20, 30]);
        assert!(is_absent(live[0].values[0]));
        assert_eq!(live[0].values[1].to_bits(), 4.0_f64.to_bits());
    }

    #[test]
    fn the_latest_sample_is_known_unless_it_is_older_than_the_head() {
        let mut group = group(2);
        append(&mut group, &[0], &[10, 20], &[1.0, 2.0], 1);
        assert_eq!(group.latest(0, 15), Latest::Known(Some((10, 1.0))));
        assert_eq!(group.latest(0, 5), Latest::Known(None));
        assert_eq!(group.latest(1, 15), Latest::Known(None));
        group.freeze(1);
        assert_eq!(group.latest(0, 25), Latest::Known(Some((20, 2.0))));
        assert_eq!(group.latest(0, 15), Latest::Unknown);
        append(&mut group, &[0], &[15, 30], &[9.0, 3.0], 2);
        assert_eq!(group.latest(0, 40), Latest::Known(Some((30, 3.0))));
        assert_eq!(group.latest(0, 25), Latest::Known(Some((20, 2.0))));
        let restored = group.restore_row(SeriesId(9));
        assert_eq!(
            group.latest(restored, 40),
            Latest::Known(None),
            "nothing is on disk"
        );
    }
}
