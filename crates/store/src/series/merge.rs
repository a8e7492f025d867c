//! Merges pieces from chunks and memory into whole series: times ascend and are unique; the value of the oldest chunk wins.

use std::sync::{Arc, Mutex};

use domain::series::is_absent;
use domain::time::TimestampMs;
use hashbrown::HashSet;

use super::SeriesId;
use super::cut::Cut;
use super::fetch::GroupSelection;
use super::lock;
use super::piece::Piece;

/// Times that several series share.
pub(crate) type Axis = Arc<[TimestampMs]>;

/// A series with samples.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) id: SeriesId,
    pub(crate) times_ms: Axis,
    pub(crate) values: Arc<[f64]>,
}

/// The shared allocation of each axis.
#[derive(Debug, Default)]
pub(crate) struct Axes {
    known: HashSet<Axis>,
    /// The last axis, because the next group often has the same one.
    last: Option<Axis>,
}

/// The position of a part of a series: the piece, and the row in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    piece: usize,
    row: usize,
}

/// Returns the series of a group, merged from pieces within the cut.
pub(crate) fn merge(selection: GroupSelection, cut: &Cut, axes: &Mutex<Axes>) -> Vec<Found> {
    let mut pieces = selection.pieces;
    // The oldest chunk comes first.
    pieces.sort_by_key(|piece| piece.chunk);
    let mut places: Vec<Vec<Place>> = vec![Vec::new(); selection.members.len()];
    for (piece, Piece { series, .. }) in pieces.iter().enumerate() {
        for (row, id) in series.iter().enumerate() {
            if let Some(member) = selection.members.place(*id) {
                places[member].push(Place { piece, row });
            }
        }
    }
    let mut merger = Merger {
        pieces: &pieces,
        axes,
        joined: Vec::new(),
    };
    let known = selection.latest.into_iter();
    let mut all: Vec<Found> = {
        let mut axes = lock(axes);
        known
            .map(|(id, time_ms, value)| axes.sample(id, time_ms, value))
            .collect()
    };
    let series = selection.members.iter().zip(places);
    all.extend(series.filter_map(|((id, _), places)| {
        let (times_ms, values) = merger.series(places);
        if cut.latest {
            merger.last(id, &times_ms, &values)
        } else {
            found(id, times_ms, values)
        }
    }));
    all
}

fn found(id: SeriesId, times_ms: Axis, values: Arc<[f64]>) -> Option<Found> {
    let is_there = values.iter().any(|value| !is_absent(*value));
    is_there.then_some(Found { id, times_ms, values })
}

/// Concatenates parts of some pieces. `put` writes each part to its final position.
fn joined<T: Copy + Default, P: Copy>(
    parts: impl Iterator<Item = (P, usize)> + Clone,
    put: impl Fn(P, &mut [T]),
) -> Arc<[T]> {
    let length = parts.clone().map(|(_, length)| length).sum();
    let mut all: Arc<[T]> = std::iter::repeat_n(T::default(), length).collect();
    let mut rest = Arc::get_mut(&mut all).expect("no other owner yet");
    for (part, length) in parts {
        let here;
        (here, rest) = rest.split_at_mut(length);
        put(part, here);
    }
    all
}

/// Merges the pieces of each series. Series in the same pieces share one axis.
struct Merger<'a> {
    pieces: &'a [Piece],
    axes: &'a Mutex<Axes>,
    /// Keyed by the indices of the pieces in time order: their concatenated axis, or `None` if two of them overlap.
    joined: Vec<(Vec<usize>, Option<Axis>)>,
}

impl Merger<'_> {
    fn series(&mut self, mut places: Vec<Place>) -> (Axis, Arc<[f64]>) {
        places.sort_by_key(|place| self.piece(*place).range());
        if let Some(axis) = self.joined_axis(&places) {
            let parts = places.iter().map(|place| (*place, self.piece(*place).len()));
            return (
                axis,
                joined(parts, |place, out| self.piece(place).put_values(place.row, out)),
            );
        }
        let (times, values) = self.interleaved(places);
        (lock(self.axes).of_times(times.into()), values.into())
    }

    fn joined_axis(&mut self, places: &[Place]) -> Option<Axis> {
        let is_this = |key: &[usize]| key.iter().copied().eq(places.iter().map(|place| place.piece));
        if let Some((_, axis)) = self.joined.iter().find(|(key, _)| is_this(key)) {
            return axis.clone();
        }
        let parts = places.iter().map(|place| self.piece(*place));
        let ranges = parts.clone().filter_map(Piece::range);
        let mut pairs = ranges.clone().zip(ranges.skip(1));
        let apart = pairs.all(|((_, last), (next, _))| last < next);
        let axis = apart.then(|| lock(self.axes).shared(parts));
        let key = places.iter().map(|place| place.piece).collect();
        self.joined.push((key, axis.clone()));
        axis
    }

    /// Merges samples of overlapping pieces by time. Of several samples at one time, the one from the oldest piece wins.
    fn interleaved(&self, mut places: Vec<Place>) -> (Vec<TimestampMs>, Vec<f64>) {
        places.sort_unstable();
        let mut samples: Vec<(TimestampMs, f64)> = Vec::new();
        for place in places {
            let piece = self.piece(place);
            let (mut times_ms, mut values) = (vec![0; piece.len()], vec![0.0; piece.len()]);
            piece.put_times(&mut times_ms);
            piece.put_values(place.row, &mut values);
            let cells = times_ms.into_iter().zip(values);
            samples.extend(cells.filter(|(_, value)| !is_absent(*value)));
        }
        samples.sort_by_key(|(time_ms, _)| *time_ms);
        samples.dedup_by_key(|(time_ms, _)| *time_ms);
        samples.into_iter().unzip()
    }

    /// Returns only the newest sample.
    fn last(&self, id: SeriesId, times_ms: &[TimestampMs], values: &[f64]) -> Option<Found> {
        let at = values.iter().rposition(|value| !is_absent(*value))?;
        Some(lock(self.axes).sample(id, times_ms[at], values[at]))
    }

    fn piece(&self, place: Place) -> &Piece {
        &self.pieces[place.piece]
    }
}

impl Axes {
    /// Returns the shared axis of these pieces, which do not overlap and are in time order.
    fn shared<'a>(&mut self, pieces: impl Iterator<Item = &'a Piece> + Clone) -> Axis {
        if let Some(last) = self.last.as_ref().filter(|last| is_of(last, pieces.clone())) {
            return Arc::clone(last);
        }
        let parts = pieces.map(|piece| (piece, piece.len()));
        self.of_times(joined(parts, Piece::put_times))
    }

    /// Returns the shared axis with these times.
    fn of_times(&mut self, axis: Axis) -> Axis {
        if let Some(last) = self.last.as_ref().filter(|last| **last == axis) {
            return Arc::clone(last);
        }
        // Most queries have only one axis, which then needs no lookup in the set.
        if let Some(last) = self.last.take() {
            self.known.insert(last);
        }
        let axis = self.known.get(&axis).map_or(axis, Arc::clone);
        self.last = Some(Arc::clone(&axis));
        axis
    }

    /// Returns a series of one sample.
    pub(crate) fn sample(&mut self, id: SeriesId, time_ms: TimestampMs, value: f64) -> Found {
        Found {
            id,
            times_ms: match &self.last {
                Some(last) if **last == [time_ms] => Arc::clone(last),
                _ => self.of_times([time_ms].into()),
            },
            values: [value].into(),
        }
    }
}

fn is_of<'a>(axis: &[TimestampMs], pieces: impl Iterator<Item = &'a Piece>) -> bool {
    let mut rest = axis;
    for piece in pieces {
        match rest.split_at_checked(piece.len()) {
            Some((times_ms, behind)) if piece.has_times(times_ms) => rest = behind,
            _ => return false,
        }
    }
    rest.is_empty()
}

#[cfg(test)]
mod tests {
    use domain::series::{ABSENT, Frame};

    use super::super::group_id::GroupId;
    use super::super::head::Group;
    use super::super::members::Members;
    use super::*;

    fn piece(chunk: i64, ids: &[u32], times_ms: &[i64], values: &[f64]) -> Piece {
        let frame = Frame {
            series: ids.iter().map(|id| SeriesId(*id)).collect(),
            times_ms: times_ms.to_vec(),
            values: values.to_vec(),
        };
        Piece::new(chunk, frame)
    }

    fn merged(pieces: Vec<Piece>, latest: bool) -> Vec<Found> {
        let group = Arc::new(Group::new(GroupId(1), "n".into(), "m".into()));
        let members = Members::new([1, 2, 3].map(|id| (SeriesId(id), 0)).into_iter());
        let selection = GroupSelection {
            pieces,
            ..GroupSelection::new(group, members)
        };
        let cut = Cut {
            latest,
            ..Cut::within(i64::MIN, i64::MAX)
        };
        merge(selection, &cut, &Mutex::default())
    }

    #[test]
    fn pieces_are_joined_and_the_oldest_wins() {
        let pieces = || {
            vec![
                piece(i64::MAX, &[1, 2], &[5, 6], &[1.5, 1.6, 2.5, ABSENT]),
                piece(7, &[2, 1], &[3, 4], &[2.3, 2.4, 1.3, 1.4]),
                piece(8, &[2], &[4, 7], &[9.0, 2.7]),
            ]
        };
        let found = merged(pieces(), false);
        assert_eq!(found.len(), 2, "the third has no samples");
        assert_eq!(
            (&*found[0].times_ms, &*found[0].values),
            (&[3, 4, 5, 6][..], &[1.3, 1.4, 1.5, 1.6][..])
        );
        assert_eq!(
            (&*found[1].times_ms, &*found[1].values),
            (&[3, 4, 5, 7][..], &[2.3, 2.4, 2.5, 2.7][..])
        );
        let last: Vec<_> = merged(pieces(), true)
            .iter()
            .map(|found| (found.times_ms[0], found.values[0]))
            .collect();
        assert_eq!(last, [(6, 1.6), (7, 2.7)]);
    }

    #[test]
    fn equal_axes_are_shared_even_with_others_between_them() {
        let mut axes = Axes::default();
        let mut axis = |parts: &[&[TimestampMs]]| {
            let part = |times_ms: &&[TimestampMs]| piece(1, &[], times_ms, &[]);
            let pieces: Vec<Piece> = parts.iter().map(part).collect();
            axes.shared(pieces.iter())
        };
        let one = axis(&[&[1, 2, 3]]);
        let again = axis(&[&[1], &[2, 3]]);
        let other = axis(&[&[1, 2]]);
        let third = axis(&[&[1], &[2, 3]]);
        let fourth = axis(&[&[1, 2]]);
        assert_eq!((&*one, &*other), (&[1, 2, 3][..], &[1, 2][..]));
        assert!(Arc::ptr_eq(&one, &again) && Arc::ptr_eq(&one, &third) && Arc::ptr_eq(&other, &fourth));
    }

    #[test]
    fn series_of_the_same_pieces_share_their_axis() {
        let found = merged(
            vec![
                piece(1, &[1, 2, 3], &[1, 2], &[1.0; 6]),
                piece(2, &[1, 2], &[3], &[1.0; 2]),
                piece(3, &[3], &[3], &[1.0]),
            ],
            false,
        );
        assert!(
            found
                .iter()
                .all(|series| Arc::ptr_eq(&series.times_ms, &found[0].times_ms))
        );
    }
}
