//! From series that each bring their own times to frames that share them.

use std::collections::{BTreeMap, HashMap};

use domain::series::{Frame, Labels, is_absent};
use domain::time::TimestampMs;
use store::SeriesStore;
use store::series::{APPEND_SAMPLES_MAX, Metadata, SeriesId};

use super::{MetricMetadata, TimeSeries, WriteRequest};

/// `prompb.MetricMetadata.MetricType`.
const KINDS: [&str; 8] = [
    "unknown",
    "counter",
    "gauge",
    "histogram",
    "gaugehistogram",
    "summary",
    "info",
    "stateset",
];
/// The longest HELP kept.
const HELP_CHARS_MAX: usize = 1_024;

/// Times in one frame: far below what one append takes, so that a frame can always be split by rows.
const TIMES_MAX: usize = APPEND_SAMPLES_MAX / 8;

/// A request, ready for the store.
#[derive(Default)]
pub(super) struct Translated {
    /// Each at most as large as the store takes.
    pub(super) appends: Vec<Vec<Frame<SeriesId>>>,
    /// TYPE and HELP by name.
    pub(super) metadata: BTreeMap<String, Metadata>,
    /// Series whose labels cannot be used, and the first of their problems.
    pub(super) refused: u64,
    pub(super) first_problem: Option<String>,
    /// Series the store takes no more of.
    pub(super) over_limit: u64,
}

pub(super) fn translate(request: &WriteRequest, store: &SeriesStore) -> Translated {
    let mut out = Translated {
        metadata: metadata(&request.metadata),
        ..Translated::default()
    };
    let mut samples: BTreeMap<SeriesId, Vec<(TimestampMs, f64)>> = BTreeMap::new();
    for series in &request.timeseries {
        let labels = match labels(series) {
            Ok(labels) => labels,
            Err(problem) => {
                out.refused += 1;
                out.first_problem.get_or_insert(problem);
                continue;
            }
        };
        match store.resolve(&labels) {
            Ok(id) => samples
                .entry(id)
                .or_default()
                .extend(series.samples.iter().map(|s| (s.timestamp_ms, clean(s.value)))),
            Err(_) => out.over_limit += 1,
        }
    }
    out.appends = pack(frames(samples));
    out
}

/// A value that happens to have the bits of our mark for a hole is any other NaN to its sender.
fn clean(value: f64) -> f64 {
    if is_absent(value) { f64::NAN } else { value }
}

fn labels(series: &TimeSeries) -> Result<Labels, String> {
    let pairs = series
        .labels
        .iter()
        .map(|label| (label.name.as_str(), label.value.as_str()));
    let labels = Labels::new(pairs).map_err(|error| error.to_string())?;
    if labels.metric_name().is_none() {
        return Err(format!("{labels} has no __name__"));
    }
    Ok(labels)
}

/// One frame for all series with the same times: a scrape is one frame.
fn frames(samples: BTreeMap<SeriesId, Vec<(TimestampMs, f64)>>) -> Vec<Frame<SeriesId>> {
    let mut by_times: HashMap<Vec<TimestampMs>, usize> = HashMap::new();
    let mut frames: Vec<Frame<SeriesId>> = Vec::new();
    for (id, mut points) in samples {
        points.sort_by_key(|(time, _)| *time);
        points.dedup_by_key(|(time, _)| *time);
        for points in points.chunks(TIMES_MAX) {
            let times: Vec<TimestampMs> = points.iter().map(|(time, _)| *time).collect();
            let at = *by_times.entry(times).or_insert_with_key(|times| {
                frames.push(Frame {
                    series: vec![],
                    times_ms: times.clone(),
                    values: vec![],
                });
                frames.len() - 1
            });
            frames[at].series.push(id);
            frames[at].values.extend(points.iter().map(|(_, value)| *value));
        }
    }
    frames
}

/// Splits frames into appends the store takes.
fn pack(frames: Vec<Frame<SeriesId>>) -> Vec<Vec<Frame<SeriesId>>> {
    let (mut appends, mut cells) = (vec![vec![]], 0);
    for frame in frames.into_iter().flat_map(split) {
        if cells + frame.values.len() > APPEND_SAMPLES_MAX {
            appends.push(vec![]);
            cells = 0;
        }
        cells += frame.values.len();
        appends.last_mut().expect("there is always one").push(frame);
    }
    appends.retain(|append| !append.is_empty());
    appends
}

fn split(frame: Frame<SeriesId>) -> Vec<Frame<SeriesId>> {
    let times = frame.times_ms.len();
    if frame.values.len() <= APPEND_SAMPLES_MAX {
        return vec![frame];
    }
    let rows = APPEND_SAMPLES_MAX / times;
    let parts = frame.series.chunks(rows).zip(frame.values.chunks(rows * times));
    parts
        .map(|(series, values)| Frame {
            series: series.to_vec(),
            times_ms: frame.times_ms.clone(),
            values: values.to_vec(),
        })
        .collect()
}

fn metadata(entries: &[MetricMetadata]) -> BTreeMap<String, Metadata> {
    let usable = entries
        .iter()
        .filter(|entry| domain::series::labels::is_metric_name(&entry.name));
    let entry = |entry: &MetricMetadata| {
        let kind = usize::try_from(entry.kind)
            .ok()
            .and_then(|kind| KINDS.get(kind))
            .unwrap_or(&KINDS[0]);
        let help = entry.help.chars().take(HELP_CHARS_MAX).collect();
        (
            entry.name.clone(),
            Metadata {
                kind: (*kind).to_owned(),
                help,
            },
        )
    };
    usable.map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrape_is_one_frame_and_late_points_are_sorted() {
        let samples = BTreeMap::from([
            (SeriesId(1), vec![(20, 2.0), (10, 1.0), (20, 9.0)]),
            (SeriesId(2), vec![(10, 3.0), (20, 4.0)]),
            (SeriesId(3), vec![(10, 5.0)]),
        ]);
        let frames = frames(samples);
        assert_eq!(frames.len(), 2);
        assert_eq!(
            (frames[0].series.len(), &frames[0].values),
            (2, &vec![1.0, 2.0, 3.0, 4.0])
        );
        assert!(frames.iter().all(|frame| frame.check().is_ok()));
    }

    #[test]
    fn what_is_too_large_for_one_append_is_split() {
        let times = 1_000;
        let rows = APPEND_SAMPLES_MAX / times + 10;
        let frame = Frame {
            series: (0..rows as u32).map(SeriesId).collect(),
            times_ms: (0..times as i64).collect(),
            values: vec![1.0; rows * times],
        };
        let appends = pack(vec![frame]);
        let cells = |append: &[Frame<SeriesId>]| append.iter().map(|frame| frame.values.len()).sum::<usize>();
        assert_eq!(appends.len(), 2);
        assert!(appends.iter().all(|append| cells(append) <= APPEND_SAMPLES_MAX));
        assert_eq!(
            appends.iter().map(|append| cells(append)).sum::<usize>(),
            rows * times
        );
        assert!(appends.iter().flatten().all(|frame| frame.check().is_ok()));
    }
}
