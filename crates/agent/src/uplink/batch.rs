//! Converts samples, as readers push them, to frames, as they are sent. Series with the same times share one matrix.

use std::collections::HashMap;

use domain::series::Frame;
use domain::time::TimestampMs;

/// One sample of a series, which is given by its index.
pub(crate) type Indexed = (u32, TimestampMs, f64);

/// Groups samples into frames. If a series has several samples at one time, the last one pushed is kept.
pub(crate) fn frames(samples: impl IntoIterator<Item = Indexed>) -> Vec<Frame> {
    let mut sorted: Vec<Indexed> = samples.into_iter().collect();
    // The sort is stable, so the last sample pushed stays the last one of its time.
    sorted.sort_by_key(|(series, at_ms, _)| (*series, *at_ms));
    let (mut frames, mut by_axis) = (Vec::<Frame>::new(), HashMap::<Vec<TimestampMs>, usize>::new());
    let (mut times_ms, mut values, mut recent) = (Vec::new(), Vec::new(), 0);
    for of_series in sorted.chunk_by(|a, b| a.0 == b.0) {
        times_ms.clear();
        values.clear();
        for (_, at_ms, value) in of_series.chunk_by(|a, b| a.1 == b.1).filter_map(<[_]>::last) {
            times_ms.push(*at_ms);
            values.push(*value);
        }
        // Most series of one second have the same single time, so the most recent frame usually matches.
        if frames.get(recent).is_none_or(|frame| frame.times_ms != times_ms) {
            recent = by_axis.get(&times_ms).copied().unwrap_or(frames.len());
        }
        if recent == frames.len() {
            by_axis.insert(times_ms.clone(), recent);
            frames.push(Frame {
                times_ms: times_ms.clone(),
                ..Frame::default()
            });
        }
        frames[recent].series.push(of_series[0].0);
        frames[recent].values.append(&mut values);
    }
    frames.sort_by(|a, b| a.times_ms.cmp(&b.times_ms));
    frames
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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
