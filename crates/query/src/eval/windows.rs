//! Which samples lie in the window of each step: two pointers over a time axis, once an axis.

use std::collections::HashMap;
use std::sync::Arc;

use domain::time::TimestampMs;

use crate::plan::Grid;

/// For each step the half-open range of indices whose times lie in `(step - width, step]`.
pub(super) type Windows = Vec<(u32, u32)>;

/// Windows of the axes met so far. Series of one node share their axis, so this is computed once a node.
#[derive(Default)]
pub(super) struct WindowCache {
    by_axis: HashMap<(*const TimestampMs, usize), Arc<Windows>>,
}

impl WindowCache {
    /// The windows of an axis. The caller keeps the axis alive as long as the cache.
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
    let first_after = |mut at: usize, time: TimestampMs| {
        // Far ahead at the start, one or two samples on from step to step.
        if at == 0 {
            at = times.partition_point(|sample| *sample <= time);
        }
        while times.get(at).is_some_and(|sample| *sample <= time) {
            at += 1;
        }
        at
    };
    grid.times()
        .map(|time| {
            low = first_after(low, time - width_ms);
            high = first_after(high, time);
            (low as u32, high as u32)
        })
        .collect()
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
}
