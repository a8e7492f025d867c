//! The places of entries on the time axis.

use domain::time::TimestampMs;

use super::item::{End, Item};
use crate::language::tr_with;
use crate::live::Keyed;
use crate::ui::sorted;

/// Moments that are closer than this, in percent of the period, are one mark.
const NEAR: f64 = 1.5;
/// Maximum number of rows of a lane. Further entries that overlap are drawn over each other; the list contains all.
const ROWS_MAX: usize = 3;
/// The shortest period, so that a run that has just begun is not a division by zero.
const PERIOD_MS_MIN: i64 = 10_000;
/// The end of an active run's period moves on in steps of about this part of the period.
const PARTS: i64 = 256;

/// The period of the axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Period {
    pub(super) start_ms: TimestampMs,
    pub(super) end_ms: TimestampMs,
}

/// An entry with its place. Positions are percents of the period.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Placed {
    /// Unique on the axis.
    pub(super) id: String,
    pub(super) item: Item,
    pub(super) left: f64,
    pub(super) width: f64,
    pub(super) row: usize,
    /// Number of entries that this mark also stands for.
    pub(super) more: usize,
}

impl Keyed for Placed {
    fn key(&self) -> String {
        self.id.clone()
    }
}

impl Placed {
    /// Returns the whole text.
    pub(super) fn words(&self) -> String {
        match self.more {
            0 => self.item.text.clone(),
            more => tr_with(
                "{text} (and {more} more)",
                &[("text", &self.item.text), ("more", &more)],
            ),
        }
    }

    /// Returns the text inside the mark.
    pub(super) fn label(&self) -> String {
        match self.more {
            0 => self.item.label.clone(),
            more => format!("{}{}", self.item.label, more + 1),
        }
    }
}

impl Period {
    /// Returns the period from a start to an end, or to now.
    pub(super) fn of(start_ms: TimestampMs, ended_ms: Option<TimestampMs>, now_ms: TimestampMs) -> Self {
        let end_ms = ended_ms.unwrap_or_else(|| stepwise(start_ms, now_ms));
        Self {
            start_ms,
            end_ms: end_ms.max(start_ms + PERIOD_MS_MIN),
        }
    }

    /// Returns the place of a time in percent, within the period.
    fn percent(self, at_ms: TimestampMs) -> f64 {
        let (at_ms, length_ms) = (at_ms - self.start_ms, self.end_ms - self.start_ms);
        #[expect(clippy::cast_precision_loss, reason = "milliseconds of a run fit 53 bits")]
        let share = at_ms as f64 / length_ms as f64;
        (share * 100.0).clamp(0.0, 100.0)
    }
}

/// Returns a time at or after now that changes only from time to time: each change moves all entries.
fn stepwise(start_ms: TimestampMs, now_ms: TimestampMs) -> TimestampMs {
    let seconds = (now_ms - start_ms).max(0) / PARTS / 1_000;
    let seconds = u64::try_from(seconds).unwrap_or_default().next_power_of_two();
    let step_ms = i64::try_from(seconds).unwrap_or(i64::MAX / 1_000) * 1_000;
    let steps = (now_ms - start_ms + step_ms - 1).div_euclid(step_ms);
    start_ms + steps * step_ms
}

/// Returns the places of the entries of one lane, from left to right. Entries outside the period are left out.
pub(super) fn arranged(items: Vec<Item>, period: Period) -> Vec<Placed> {
    let mut placed: Vec<Placed> = Vec::new();
    let mut ends: Vec<f64> = Vec::new();
    let mut same_start = 0_usize;
    for item in sorted(items, |a, b| a.start_ms.cmp(&b.start_ms)) {
        let end_ms = match item.end {
            End::Moment => item.start_ms,
            End::At(at_ms) => at_ms,
            End::Open => period.end_ms,
        };
        if end_ms < period.start_ms || item.start_ms > period.end_ms {
            continue;
        }
        let (left, right) = (period.percent(item.start_ms), period.percent(end_ms));
        if item.end == End::Moment
            && let Some(last) = placed.last_mut()
            && last.item.end == End::Moment
            && left - last.left < NEAR
        {
            last.more += 1;
            last.item.severity = last.item.severity.max(item.severity);
            continue;
        }
        let is_same = placed
            .last()
            .is_some_and(|last| last.item.start_ms == item.start_ms);
        same_start = if is_same { same_start + 1 } else { 0 };
        placed.push(Placed {
            id: format!("{}-{}-{same_start}", item.lane.name(), item.start_ms),
            item,
            left,
            width: right - left,
            row: free_row(&mut ends, left, right),
            more: 0,
        });
    }
    placed
}

/// Returns the first row that is free at `left`, and occupies it up to `right`.
fn free_row(ends: &mut Vec<f64>, left: f64, right: f64) -> usize {
    let free = ends.iter().position(|end| *end <= left);
    let row = match free {
        Some(row) => row,
        None if ends.len() < ROWS_MAX => {
            ends.push(right);
            ends.len() - 1
        }
        None => ROWS_MAX - 1,
    };
    ends[row] = ends[row].max(right);
    row
}

#[cfg(test)]
mod tests {
    use domain::event::Severity;

    use super::super::item::Lane;
    use super::*;

    const PERIOD: Period = Period {
        start_ms: 0,
        end_ms: 100_000,
    };

    fn item(start_ms: TimestampMs, end: End) -> Item {
        Item {
            lane: Lane::Diagnoses,
            start_ms,
            end,
            lang: None,
            label: "▲".to_owned(),
            text: format!("at {start_ms}"),
            href: "/".to_owned(),
            severity: None,
        }
    }

    #[test]
    fn entries_are_at_their_times_and_cut_off_at_the_ends() {
        let items = vec![
            item(50_000, End::Open),
            item(-20_000, End::At(10_000)),
            item(-20_000, End::At(-10_000)),
            item(200_000, End::Moment),
        ];
        let places: Vec<_> = arranged(items, PERIOD)
            .iter()
            .map(|one| (one.left, one.width, one.row))
            .collect();
        assert_eq!(places, [(0.0, 10.0, 0), (50.0, 50.0, 0)]);
    }

    #[test]
    fn entries_at_the_same_time_are_in_rows() {
        let spans = [10, 20, 30, 40, 60].map(|at| item(at * 1_000, End::At(at * 1_000 + 35_000)));
        let rows: Vec<usize> = arranged(spans.to_vec(), PERIOD)
            .iter()
            .map(|one| one.row)
            .collect();
        assert_eq!(rows, [0, 1, 2, 2, 0]);
        let twins = arranged(vec![item(0, End::Open), item(0, End::Open)], PERIOD);
        assert_ne!(twins[0].id, twins[1].id);
    }

    #[test]
    fn moments_that_are_close_are_one_mark_with_the_worst_severity() {
        let mut items = [0, 1_000, 1_400, 50_000].map(|at_ms| item(at_ms, End::Moment));
        items[1].severity = Some(Severity::Warning);
        items[2].severity = Some(Severity::Critical);
        let placed = arranged(items.to_vec(), PERIOD);
        let told: Vec<_> = placed
            .iter()
            .map(|one| (one.words(), one.label(), one.item.severity))
            .collect();
        assert_eq!(
            told,
            [
                (
                    "at 0 (and 2 more)".to_owned(),
                    "▲3".to_owned(),
                    Some(Severity::Critical)
                ),
                ("at 50000".to_owned(), "▲".to_owned(), None),
            ]
        );
    }

    #[test]
    fn the_end_of_an_active_run_moves_on_in_steps() {
        let end = |now_ms| Period::of(0, None, now_ms).end_ms;
        assert_eq!(end(0), PERIOD_MS_MIN);
        assert_eq!(end(20_500), 21_000);
        // A day: 86,400 s / 256 = 337 s, so 512 s.
        assert_eq!(end(86_400_000), 86_528_000);
        assert_eq!(end(86_500_000), 86_528_000);
        assert_eq!(Period::of(0, Some(60_000), 90_000).end_ms, 60_000);
    }
}
