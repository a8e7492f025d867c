//! From samples as readers push them to frames as they travel: series that share their times share a matrix.

use std::collections::BTreeMap;

use domain::series::Frame;
use domain::time::TimestampMs;

/// One sample of a series known by its index.
pub(crate) type Indexed = (u32, TimestampMs, f64);

/// Groups samples into frames. Of several samples of a series at one time the last one pushed wins.
pub(crate) fn frames(samples: impl IntoIterator<Item = Indexed>) -> Vec<Frame> {
    let mut by_series: BTreeMap<u32, BTreeMap<TimestampMs, f64>> = BTreeMap::new();
    for (series, at_ms, value) in samples {
        by_series.entry(series).or_default().insert(at_ms, value);
    }
    let mut by_axis: BTreeMap<Vec<TimestampMs>, Frame> = BTreeMap::new();
    for (series, points) in by_series {
        let axis: Vec<TimestampMs> = points.keys().copied().collect();
        let frame = by_axis.entry(axis).or_default();
        frame.series.push(series);
        frame.values.extend(points.into_values());
    }
    let mut frames: Vec<Frame> = by_axis
        .into_iter()
        .map(|(times_ms, frame)| Frame { times_ms, ..frame })
        .collect();
    frames.sort_by(|a, b| a.times_ms.cmp(&b.times_ms));
    frames
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn series_with_the_same_times_share_a_frame() {
        let samples = [
            (1, 10, 1.0),
            (2, 10, 2.0),
            (3, 10, 3.0),
            (3, 5, 0.5),
            (1, 10, 1.5),
        ];
        let expected = [
            Frame {
                series: vec![3],
                times_ms: vec![5, 10],
                values: vec![0.5, 3.0],
            },
            Frame {
                series: vec![1, 2],
                times_ms: vec![10],
                values: vec![1.5, 2.0],
            },
        ];
        assert_eq!(frames(samples), expected);
    }

    proptest! {
        #[test]
        fn no_sample_is_lost_and_frames_are_well_formed(samples in proptest::collection::vec((0_u32..6, 0_i64..6, 0.0..9.0), 0..60)) {
            let frames = frames(samples.clone());
            let mut expected = BTreeMap::new();
            expected.extend(samples.iter().map(|(series, at, value)| ((*series, *at), *value)));
            let mut found = BTreeMap::new();
            for frame in &frames {
                prop_assert_eq!(frame.check(), Ok(()));
                for (s, series) in frame.series.iter().enumerate() {
                    for (at, value) in frame.times_ms.iter().zip(frame.row(s)) {
                        prop_assert!(found.insert((*series, *at), *value).is_none());
                    }
                }
            }
            prop_assert_eq!(found, expected);
        }
    }
}
