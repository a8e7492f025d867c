//! Computes which samples are in the window of each step: two pointers that move along a time axis, once per axis.

use std::collections::HashMap;
use std::sync::Arc;

use domain::time::TimestampMs;

use crate::plan::Grid;

/// For each step, the half-open range of indexes whose times are in `(step - width, step]`.
pub(super) type Windows = Vec<(u32, u32)>;

/// Windows of the time axes computed so far. Series of one node share their time axis, so windows are computed once per node.
#[derive(Default)]
pub(super) struct WindowCache {
    by_axis: HashMap<(*const TimestampMs, usize), Arc<Windows>>,
}

impl WindowCache {
    /// Returns the windows of a time axis. The caller must keep the axis allocated as long as the cache.
    pub(super) fn of(&mut self, times: &Arc<[TimestampMs]>, grid: Grid, width_ms: i64) -> Arc<Windows> {
        let axis = (times.as_ptr(), times.len());
        Arc::clone(
            self.by_axis
                .entry(axis)
                .or_insert_with(|| Arc::new(windows(times, grid, width_ms))),
        )
    }
}

pub(super) fn windows(times: &[TimestampMs], grid: Grid, width_ms: i64) -> Windows {
    let (mut low, mut high) = (0, 0);
    grid.times()
        .map(|time| {
            low = first_after(times, low, time - width_ms);
            high = first_after(times, high, time);
            (low as u32, high as u32)
        })
        .collect()
}

/// Returns the index of the first sample after `time`, starting at `from`. If samples are as far apart as steps it is one or two indexes
/// further; otherwise it is searched with strides that double.
fn first_after(times: &[TimestampMs], from: usize, time: TimestampMs) -> usize {
    let is_before = |at: usize| times.get(at).is_some_and(|sample| *sample <= time);
    let (mut low, mut stride) = (from, 1);
    while is_before(low + stride - 1) {
        low += stride;
        stride *= 2;
    }
    let end = times.len().min(low + stride - 1).max(low);
    low + times[low..end].partition_point(|sample| *sample <= time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_open_on_the_left() {
        let grid = Grid {
            start_ms: 20,
            step_ms: 10,
            count: 4,
        };
        assert_eq!(
            windows(&[0, 10, 20, 30, 35], grid, 20),
            [(1, 3), (2, 4), (3, 5), (4, 5)]
        );
        assert_eq!(windows(&[], grid, 20), [(0, 0); 4]);
    }

    #[test]
    fn the_first_sample_after_a_time_is_found_however_far() {
        let times: Vec<TimestampMs> = (0..200).map(|n| n * 10).collect();
        for from in 0..=times.len() {
            for time in (-15..2_015).step_by(5) {
                let behind = times[from..].iter().position(|sample| *sample > time);
                let expected = behind.map_or(times.len(), |behind| from + behind);
                assert_eq!(first_after(&times, from, time), expected, "{time} from {from}");
            }
        }
    }
}
