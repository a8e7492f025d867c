//! Pieces of series from chunks and memory become whole ones: ascending, each time once, the first value wins.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use domain::series::{BudgetExceeded, Frame, SelectError, Series, SeriesSet, is_absent};
use domain::time::TimestampMs;

use super::fetch::Wanted;
use super::lane::range_of;
use super::{SeriesId, chunk};

type Axis = Arc<[TimestampMs]>;

pub(crate) fn merge(
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
    for segment in &group.memory.segments {
        let frames = segment.frames(|id| group.series.contains_key(&id));
        let frames = frames.map_err(|error| SelectError::Store(Box::new(error)))?;
        decoded.extend(frames.into_iter().map(|frame| (segment.chunk, frame)));
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
