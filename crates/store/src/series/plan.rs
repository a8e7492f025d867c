//! Chooses which chunks of a group are merged next.
//!
//! ```text
//! id      1─────┐ 2────┐ 3────┐ 4────┐ 5───┐        unmerged, by id; newer ones have higher ids
//!         └──── run: until a row is full ──┘ 6 …    what is still being written stays
//! merged  M1 ───────── M2 ────────                  a merged row that the run overlaps is rewritten with it
//! ```
//! Where two chunks have a sample at the same time, the one with the lower id is right. The merged row takes the lowest id of
//! its set. So the merge must not change the order for a chunk outside of the set: its id must not be between the lowest id of
//! the set and the id of a member that it overlaps in time. Such a chunk joins the set. This is rare because ids ascend with
//! time: chunks that overlap their neighbours by a late second do not form a chain through the whole history.

use domain::time::TimestampMs;

/// The number of samples in a full row: one hour of eight series at 1 Hz, about 40 kB.
pub(crate) const ROW_SAMPLES: u64 = 8 * 3_600;
/// The number of buckets in a full row of a roll-up: six columns, each smaller than a column of samples.
pub(crate) const ROW_BUCKETS: u64 = ROW_SAMPLES / 5;
/// Chunks that end this close to the newest may still get late samples.
const MOVED_ON_MS: i64 = 10 * 60_000;
/// The longest period in one row, and how long a small run waits to grow: eight series with one sample per minute fill a row in
/// 60 hours.
pub(crate) const SPAN_MS_MAX: i64 = 72 * 3_600_000;
/// A shorter overlap is no reason to rewrite a merged row. Readers skip the duplicates.
const OVERLAP_MS_MAX: i64 = 60_000;
/// The maximum size of a merge, in full rows. It bounds memory (about 4 MB) and the transaction.
const FOLD_ROWS_MAX: u64 = 16;

/// The index columns of a chunk row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) id: i64,
    pub(crate) min_ms: TimestampMs,
    pub(crate) max_ms: TimestampMs,
    pub(crate) samples: u64,
    pub(crate) merged: bool,
}

/// The conditions under which a run is merged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    /// The number of samples or buckets in a full row.
    pub(crate) row: u64,
    /// The longest period in one row.
    pub(crate) span_ms: i64,
    /// Runs that end before this time are merged even if they are small.
    pub(crate) aged_before_ms: TimestampMs,
    /// Merge everything now, complete or not.
    pub(crate) everything: bool,
}

/// Chunks to be merged, by id, and how many of their ids the result may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Set {
    pub(crate) rows: Vec<Row>,
    pub(crate) ids_max: usize,
}

impl Terms {
    pub(crate) fn of(resolution_ms: i64, now_ms: TimestampMs, everything: bool) -> Self {
        let samples = resolution_ms == 0;
        Self {
            row: if samples { ROW_SAMPLES } else { ROW_BUCKETS },
            // Eight series at one sample per 72 s fill a row of samples in three days.
            span_ms: if samples {
                SPAN_MS_MAX
            } else {
                resolution_ms.saturating_mul(10_000)
            },
            // Roll-ups are always old, so they wait until they fill a row.
            aged_before_ms: if samples {
                now_ms.saturating_sub(SPAN_MS_MAX)
            } else {
                TimestampMs::MIN
            },
            everything,
        }
    }
}

/// Returns the next set of a group, or `None` if no merge is worthwhile. `rows` has one resolution and is sorted by id.
pub(crate) fn next(rows: &[Row], terms: &Terms) -> Option<Set> {
    let run = run(rows, terms)?;
    let mut set = run.clone();
    set.extend(overlapped(rows, &run, terms));
    close(rows, &mut set);
    if total(&set) > FOLD_ROWS_MAX * terms.row {
        set = run;
        close(rows, &mut set);
    }
    set.sort_unstable_by_key(|row| row.id);
    let low = set[0].id;
    let outside = rows.iter().filter(|row| row.id > low && !set.contains(row));
    let bound = outside
        .filter(|row| set.iter().any(|member| overlap(member, row)))
        .map(|row| row.id)
        .min();
    let ids_max = set
        .iter()
        .filter(|row| bound.is_none_or(|bound| row.id < bound))
        .count();
    Some(Set { rows: set, ids_max })
}

/// Returns the oldest unmerged chunks that fill a row or will not grow any more.
fn run(rows: &[Row], terms: &Terms) -> Option<Vec<Row>> {
    let unmerged = rows.iter().filter(|row| !row.merged);
    let newest_ms = unmerged.clone().map(|row| row.max_ms).max()?;
    let moved_on = |row: &&Row| {
        terms.everything
            || row.max_ms <= newest_ms.saturating_sub(MOVED_ON_MS)
            || row.max_ms < terms.aged_before_ms
    };
    let mut run: Vec<Row> = Vec::new();
    let mut full = false;
    for row in unmerged.take_while(moved_on) {
        full = !run.is_empty() && (total(&run) >= terms.row || span_with(&run, row) > terms.span_ms);
        if full {
            break;
        }
        run.push(*row);
    }
    let first = run.first()?;
    let due = full || terms.everything || total(&run) >= terms.row || first.max_ms < terms.aged_before_ms;
    due.then_some(run)
}

/// Returns the merged rows that a run overlaps.
fn overlapped(rows: &[Row], run: &[Row], terms: &Terms) -> Vec<Row> {
    let least_ms = if terms.everything { 0 } else { OVERLAP_MS_MAX };
    let reaches = |row: &&Row| {
        run.iter().any(|member| {
            overlap(member, row)
                && member
                    .max_ms
                    .min(row.max_ms)
                    .saturating_sub(member.min_ms.max(row.min_ms))
                    >= least_ms
        })
    };
    rows.iter()
        .filter(|row| row.merged)
        .filter(reaches)
        .copied()
        .collect()
}

/// Adds the chunks for which the merge would change which sample is right.
fn close(rows: &[Row], set: &mut Vec<Row>) {
    loop {
        let low = set.iter().map(|row| row.id).min();
        let between = |row: &&Row| {
            Some(row.id) > low
                && !set.contains(row)
                && set
                    .iter()
                    .any(|member| member.id > row.id && overlap(member, row))
        };
        let Some(row) = rows.iter().find(between).copied() else {
            return;
        };
        set.push(row);
    }
}

fn overlap(a: &Row, b: &Row) -> bool {
    a.min_ms <= b.max_ms && b.min_ms <= a.max_ms
}

fn total(rows: &[Row]) -> u64 {
    rows.iter().map(|row| row.samples).sum()
}

fn span_with(rows: &[Row], row: &Row) -> i64 {
    let all = || rows.iter().chain([row]);
    let first = all().map(|row| row.min_ms).min().unwrap_or_default();
    all()
        .map(|row| row.max_ms)
        .max()
        .unwrap_or_default()
        .saturating_sub(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60_000;

    fn row(id: i64, from_min: i64, to_min: i64, samples: u64, merged: bool) -> Row {
        Row {
            id,
            min_ms: from_min * MINUTE,
            max_ms: to_min * MINUTE - 1,
            samples,
            merged,
        }
    }

    fn ids(rows: &[Row], now_min: i64, everything: bool) -> Option<(Vec<i64>, usize)> {
        let set = next(rows, &Terms::of(0, now_min * MINUTE, everything))?;
        Some((set.rows.iter().map(|row| row.id).collect(), set.ids_max))
    }

    /// Chunks of five minutes each, as eight series at 1 Hz make them.
    fn live(from_id: i64, count: i64) -> Vec<Row> {
        (0..count)
            .map(|n| row(from_id + n, n * 5, n * 5 + 5, 2_400, false))
            .collect()
    }

    #[test]
    fn an_hour_is_merged_when_the_newest_has_moved_on() {
        assert_eq!(
            ids(&live(1, 12), 60, false),
            None,
            "the last ten minutes may get company"
        );
        assert_eq!(ids(&live(1, 14), 70, false), Some(((1..=12).collect(), 12)));
        assert_eq!(
            ids(&live(1, 5), 25, true),
            Some(((1..=5).collect(), 5)),
            "when asked for"
        );
    }

    #[test]
    fn slow_series_wait_three_days() {
        let hours = |count: i64| {
            (0..count)
                .map(|n| row(n + 1, n * 60, n * 60 + 60, 160, false))
                .collect::<Vec<_>>()
        };
        assert_eq!(ids(&hours(60), 3_600, false), None);
        let (merged, _) = ids(&hours(80), 4_800, false).unwrap_or_default();
        assert_eq!(merged.len(), 72, "a row spans three days at most");
        // A removed node sends no more samples, so its remaining chunks are merged when they reach the same age.
        assert_eq!(ids(&hours(3), 200, false), None);
        assert_eq!(ids(&hours(3), 4_600, false), Some((vec![1, 2, 3], 3)));
    }

    #[test]
    fn a_late_second_makes_no_chain() {
        let mut rows = vec![row(1, 0, 61, 28_800, true), row(13, 60, 121, 28_800, true)];
        rows.extend((0..14).map(|n| row(30 + n, 120 + n * 5, 126 + n * 5, 2_400, false)));
        assert_eq!(
            ids(&rows, 200, false).map(|(ids, _)| ids),
            Some((30..=41).collect())
        );
    }

    #[test]
    fn late_chunks_are_merged_with_those_they_overlap() {
        let mut rows = vec![row(1, 0, 60, 28_800, true), row(13, 60, 120, 28_800, true)];
        rows.push(row(30, 30, 55, 12_000, false));
        rows.extend((0..14).map(|n| row(31 + n, 120 + n * 5, 125 + n * 5, 2_400, false)));
        let (merged, ids_max) = ids(&rows, 200, false).unwrap_or_default();
        assert_eq!((merged[0], merged[1], merged.contains(&13)), (1, 30, false));
        assert_eq!(ids_max, merged.len());
    }

    #[test]
    fn a_chunk_that_would_lose_its_right_joins() {
        // 5 overlaps 9 and is older. With the id 1, the samples of 9 would be older than those of 5.
        let rows = [
            row(1, 0, 60, 28_800, true),
            row(5, 60, 120, 28_800, true),
            row(9, 50, 62, 28_800, false),
        ];
        assert_eq!(ids(&rows, 5_000, true), Some((vec![1, 5, 9], 3)));
        // 12 is newer than all that it overlaps, so it stays outside. But then only ids below 12 may be used.
        let rows = [
            row(1, 0, 60, 100, true),
            row(9, 50, 58, 40_000, false),
            row(12, 55, 65, 10, false),
        ];
        assert_eq!(ids(&rows, 0, false), None, "9 has not moved on");
        let rows = [
            row(1, 0, 60, 100, true),
            row(9, 50, 58, 40_000, false),
            row(12, 55, 90, 10, false),
        ];
        assert_eq!(ids(&rows, 0, false), Some((vec![1, 9], 2)));
    }

    #[test]
    fn a_merge_is_bounded() {
        let mut rows: Vec<Row> = (0..40)
            .map(|n| row(n + 1, n * 60, n * 60 + 60, 28_800, true))
            .collect();
        rows.push(row(100, 0, 2_400, 30_000, false));
        assert_eq!(
            ids(&rows, 9_000, false),
            Some((vec![100], 1)),
            "a chunk over all of history stays on its own"
        );
    }
}
