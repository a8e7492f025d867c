//! Which chunks of a group are merged next.
//!
//! ```text
//! id      1─────┐ 2────┐ 3────┐ 4────┐ 5───┐        unmerged, by id; newer ones have higher ids
//!         └──── run: until a row is full ──┘ 6 …    what is still being written stays
//! merged  M1 ───────── M2 ────────                  a merged row that the run overlaps is written anew with it
//! ```
//! Where two chunks have a sample at the same time, the one with the lower id is right, and the merged row takes the lowest
//! id of its set. So for a chunk outside of the set nothing may change: it must not lie, by its id, between the set's lowest
//! and a member that it overlaps in time. Such a chunk joins the set. As ids rise with age this is rare: chunks that overlap
//! their neighbours by a late second are no chain through all of history.

use domain::time::TimestampMs;

/// Samples in a full row: an hour of eight series at 1 Hz, about 40 kB.
pub(crate) const ROW_SAMPLES: u64 = 8 * 3_600;
/// Buckets in a full row of a roll-up: six columns, each smaller than that of samples.
pub(crate) const ROW_BUCKETS: u64 = ROW_SAMPLES / 5;
/// Samples this close to the newest may still get late company.
const MOVED_ON_MS: i64 = 10 * 60_000;
/// The longest stretch in one row, and how long a small run waits to grow: eight series a minute apart fill a row in 60 hours.
pub(crate) const SPAN_MS_MAX: i64 = 72 * 3_600_000;
/// Overlaps up to this long are no reason to write a merged row anew; readers pass over them.
const OVERLAP_MS_MAX: i64 = 60_000;
/// The most a merge may hold, in full rows: bounds its memory (about 4 MB) and its transaction.
const FOLD_ROWS_MAX: u64 = 16;

/// A chunk as the index knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) id: i64,
    pub(crate) min_ms: TimestampMs,
    pub(crate) max_ms: TimestampMs,
    pub(crate) samples: u64,
    pub(crate) merged: bool,
}

/// When a run is worth a merge.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    /// Samples or buckets in a full row.
    pub(crate) row: u64,
    /// The longest stretch in one row.
    pub(crate) span_ms: i64,
    /// Runs that end before this are merged as small as they are.
    pub(crate) aged_before_ms: TimestampMs,
    /// Everything now, complete or not.
    pub(crate) everything: bool,
}

/// Chunks to be merged, by id, and how many of their ids the outcome may use.
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
            // Three days of eight series fill a row of samples at 72 s.
            span_ms: if samples {
                SPAN_MS_MAX
            } else {
                resolution_ms.saturating_mul(10_000)
            },
            // Roll-ups are old from the beginning, and wait until they fill a row.
            aged_before_ms: if samples {
                now_ms.saturating_sub(SPAN_MS_MAX)
            } else {
                TimestampMs::MIN
            },
            everything,
        }
    }
}

/// The next set of a group whose rows, all of one resolution, are sorted by id. `None` when nothing is worth a merge.
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

/// The oldest unmerged chunks that fill a row, or that will not grow any more.
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

/// The merged rows that a run reaches into.
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

/// Adds the chunks for which the merge would change who is right.
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

    /// Five minutes a chunk, as eight series at 1 Hz make them.
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
        // A node that is gone sends no more: its rest is merged when it is as old.
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
    fn what_came_late_is_merged_into_what_it_overlaps() {
        let mut rows = vec![row(1, 0, 60, 28_800, true), row(13, 60, 120, 28_800, true)];
        rows.push(row(30, 30, 55, 12_000, false));
        rows.extend((0..14).map(|n| row(31 + n, 120 + n * 5, 125 + n * 5, 2_400, false)));
        let (merged, ids_max) = ids(&rows, 200, false).unwrap_or_default();
        assert_eq!((merged[0], merged[1], merged.contains(&13)), (1, 30, false));
        assert_eq!(ids_max, merged.len());
    }

    #[test]
    fn a_chunk_that_would_lose_its_right_joins() {
        // 5 overlaps 9 and is older; with 9 under the id 1 it would be younger.
        let rows = [
            row(1, 0, 60, 28_800, true),
            row(5, 60, 120, 28_800, true),
            row(9, 50, 62, 28_800, false),
        ];
        assert_eq!(ids(&rows, 5_000, true), Some((vec![1, 5, 9], 3)));
        // 12 is younger than all that it overlaps and stays; but then only ids below its own may be used.
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
