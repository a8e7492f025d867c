//! The state of one series in the head. There may be millions, so it is packed into forty bytes.

use domain::series::{ABSENT, is_absent};
use domain::time::TimestampMs;

use super::SeriesId;

/// One series of a group.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) series: SeriesId,
    lane: Place,
    late: Place,
    /// The times of the earliest and the latest sample that is not in a lane. Inverted if there is none.
    span: (TimestampMs, TimestampMs),
    /// The value of that latest sample, if this process has seen it.
    latest: f64,
}

/// The position of a series in the lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    lane: u16,
    column: u16,
}

impl Place {
    const NONE: Self = Self {
        lane: u16::MAX,
        column: u16::MAX,
    };

    /// # Panics
    /// Never panics: a group has 64 rows, and each opens at most two lanes.
    pub(super) fn new(lane: usize, column: usize) -> Self {
        let narrow = |n: usize| u16::try_from(n).expect("a group has at most 64 rows and 128 lanes");
        Self {
            lane: narrow(lane),
            column: narrow(column),
        }
    }

    pub(super) fn lane(self) -> usize {
        self.lane.into()
    }

    pub(super) fn column(self) -> usize {
        self.column.into()
    }
}

impl Row {
    /// Creates a series without samples.
    pub(super) fn new(series: SeriesId) -> Self {
        Self {
            series,
            lane: Place::NONE,
            late: Place::NONE,
            span: (TimestampMs::MAX, TimestampMs::MIN),
            latest: ABSENT,
        }
    }

    /// Returns the place of samples in order, or of late samples.
    pub(super) fn place(&self, late: bool) -> Option<Place> {
        let place = if late { self.late } else { self.lane };
        (place != Place::NONE).then_some(place)
    }

    /// Returns both places.
    pub(super) fn places(&self) -> impl Iterator<Item = Place> {
        self.place(false).into_iter().chain(self.place(true))
    }

    pub(super) fn set_place(&mut self, late: bool, place: Place) {
        *(if late { &mut self.late } else { &mut self.lane }) = place;
    }

    pub(super) fn leave_lanes(&mut self) {
        (self.lane, self.late) = (Place::NONE, Place::NONE);
    }

    /// Returns the times of the earliest and the latest sample that is not in a lane. A wide estimate for a series read from
    /// disk.
    pub(super) fn span(&self) -> Option<(TimestampMs, TimestampMs)> {
        (self.span.0 <= self.span.1).then_some(self.span)
    }

    /// Returns the latest sample that is not in a lane, if this process has seen it.
    pub(super) fn latest(&self) -> Option<(TimestampMs, f64)> {
        (!is_absent(self.latest)).then_some((self.span.1, self.latest))
    }

    /// Records that the series may have samples on disk up to a time.
    pub(super) fn may_be_on_disk(&mut self, until_ms: TimestampMs) {
        self.span = (TimestampMs::MIN, until_ms);
    }

    /// Records that samples left a lane; `latest` is the value of the last one.
    pub(super) fn left(&mut self, first_ms: TimestampMs, last_ms: TimestampMs, latest: f64) {
        // Only if it is newer than all before: where a time is taken, the sample of the older chunk is right.
        if last_ms > self.span.1 {
            self.latest = latest;
        }
        self.span = (self.span.0.min(first_ms), self.span.1.max(last_ms));
    }

    /// Records that chunks lost samples of the series; `all` if no sample is left.
    pub(super) fn forget(&mut self, all: bool) {
        self.latest = ABSENT;
        if all {
            self.span = (TimestampMs::MAX, TimestampMs::MIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_stays_small() {
        assert_eq!(size_of::<Row>(), 40);
    }

    #[test]
    fn what_left_the_lanes_is_remembered_with_its_latest_value() {
        let mut row = Row::new(SeriesId(7));
        assert_eq!((row.span(), row.latest(), row.places().count()), (None, None, 0));
        row.left(10, 20, 2.0);
        row.left(5, 15, 9.0);
        assert_eq!((row.span(), row.latest()), (Some((5, 20)), Some((20, 2.0))));
        row.forget(false);
        assert_eq!((row.span(), row.latest()), (Some((5, 20)), None));
        row.may_be_on_disk(30);
        row.left(25, 30, 1.0);
        assert_eq!(row.latest(), None, "the disk may know another value of that time");
    }

    #[test]
    fn a_place_reads_back() {
        let mut row = Row::new(SeriesId(7));
        row.set_place(true, Place::new(3, 63));
        assert_eq!(row.place(false), None);
        let late = row.place(true).map(|place| (place.lane(), place.column()));
        assert_eq!(late, Some((3, 63)));
        row.leave_lanes();
        assert_eq!(row.place(true), None);
    }
}
