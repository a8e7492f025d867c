//! Roll-ups: samples that age out become one bucket per minute, and later one bucket per hour.
//!
//! ```text
//! samples ──15 d──▶ one-minute buckets ──90 d──▶ one-hour buckets ──2 y──▶ deleted
//!
//! bucket   count, sum, min, max   of its samples, without staleness markers
//!          last                   the last sample, also a staleness marker, so that an ended series stays ended
//!          resets                 counters only: the sum of the values right before each fall, as `increase` adds them
//! ```
//! A bucket is computed once, from all of its samples. Samples of a chunk after the last whole bucket stay as they are. A query
//! gets one sample per bucket, at its last millisecond: the aggregate that serves the query's function best.

use domain::series::{ABSENT, Frame, STALE, is_absent, is_stale};
use domain::time::TimestampMs;

use super::chunk::{self, AGGREGATES, Stored};
use super::codec::Corrupt;
use super::{SeriesId, StoreConfig, column};

/// The bucket lengths: one minute and one hour.
pub(crate) const MINUTE_MS: i64 = 60_000;
pub(crate) const HOUR_MS: i64 = 3_600_000;

// The indices of the aggregates in a chunk.
const COUNT: usize = 0;
const SUM: usize = 1;
const MIN: usize = 2;
const MAX: usize = 3;
const LAST: usize = 4;
const RESETS: usize = 5;

type Bucket = [f64; AGGREGATES];

/// A resolution and how long it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tier {
    /// 0 for samples.
    pub(crate) resolution_ms: i64,
    pub(crate) retention_ms: i64,
}

/// Returns the tiers, samples first. A roll-up that is not kept longer than its source is left out.
pub(crate) fn tiers(config: &StoreConfig) -> Vec<Tier> {
    // A bucket is computed once, so no sample may arrive for it later: neither a late one nor an unsealed one of the head.
    let settled_ms = config.out_of_order_ms.saturating_add(HOUR_MS);
    let mut tiers = vec![Tier {
        resolution_ms: 0,
        retention_ms: config.retention_ms,
    }];
    for (resolution_ms, retention_ms) in [(MINUTE_MS, config.rollup_1m_ms), (HOUR_MS, config.rollup_1h_ms)] {
        if retention_ms > settled_ms && tiers.iter().all(|tier| tier.retention_ms < retention_ms) {
            tiers[0].retention_ms = config.retention_ms.max(settled_ms);
            tiers.push(Tier {
                resolution_ms,
                retention_ms,
            });
        }
    }
    tiers
}

/// Returns true if a fall of the metric is a reset. Decided by its type, or else by the end of its name.
pub(crate) fn is_counter(metric: &str, kind: Option<&str>) -> bool {
    match kind {
        Some("counter" | "histogram" | "summary") => true,
        Some("gauge" | "info" | "stateset" | "gaugehistogram") => false,
        _ => ["_total", "_sum", "_count", "_bucket"]
            .iter()
            .any(|end| metric.ends_with(end)),
    }
}

/// Rolls up samples or smaller buckets. Each series must be in one frame, as `union` leaves them.
pub(crate) fn roll_up(stored: &Stored, resolution_ms: i64, counter: bool) -> Stored {
    let mut sets = vec![Vec::new(); AGGREGATES];
    for (at, frame) in stored.sets[0].iter().enumerate() {
        let times_ms = buckets(&frame.times_ms, resolution_ms);
        let mut columns: [Vec<f64>; AGGREGATES] = Default::default();
        for row in 0..frame.series.len() {
            let cells: Vec<Bucket> = if stored.resolution_ms == 0 {
                of_samples(&frame.times_ms, frame.row(row), &times_ms, resolution_ms, counter)
            } else {
                let parts: [&[f64]; AGGREGATES] = std::array::from_fn(|set| stored.sets[set][at].row(row));
                of_buckets(&frame.times_ms, &parts, &times_ms, resolution_ms, counter)
            };
            for (aggregate, column) in columns.iter_mut().enumerate() {
                column.extend(cells.iter().map(|bucket| bucket[aggregate]));
            }
        }
        for (set, values) in sets.iter_mut().zip(columns) {
            set.push(Frame {
                series: frame.series.clone(),
                times_ms: times_ms.clone(),
                values,
            });
        }
    }
    Stored { resolution_ms, sets }
}

fn buckets(times_ms: &[TimestampMs], resolution_ms: i64) -> Vec<TimestampMs> {
    let mut buckets: Vec<_> = times_ms
        .iter()
        .map(|time_ms| floor(*time_ms, resolution_ms))
        .collect();
    buckets.dedup();
    buckets
}

/// Returns the first millisecond of a bucket.
pub(crate) fn floor(time_ms: TimestampMs, resolution_ms: i64) -> TimestampMs {
    time_ms.saturating_sub(time_ms.rem_euclid(resolution_ms))
}

fn of_samples(
    times_ms: &[TimestampMs],
    values: &[f64],
    buckets: &[TimestampMs],
    resolution_ms: i64,
    counter: bool,
) -> Vec<Bucket> {
    let sum = Sum::of(values);
    let mut cells = vec![[ABSENT; AGGREGATES]; buckets.len()];
    let (mut before, mut at) = (None, 0);
    for (&time_ms, &value) in times_ms
        .iter()
        .zip(values)
        .filter(|(_, value)| !is_absent(**value))
    {
        while buckets[at] < floor(time_ms, resolution_ms) {
            at += 1;
        }
        let cell = &mut cells[at];
        if is_absent(cell[LAST]) {
            *cell = [0.0, 0.0, STALE, STALE, STALE, 0.0];
        }
        cell[LAST] = value;
        if is_stale(value) {
            continue;
        }
        let fell = before.filter(|before| counter && value < *before);
        let first = cell[COUNT] == 0.0;
        cell[COUNT] += 1.0;
        cell[SUM] = sum.add(cell[SUM], value);
        cell[MIN] = if first { value } else { lesser(cell[MIN], value) };
        cell[MAX] = if first { value } else { greater(cell[MAX], value) };
        cell[RESETS] += fell.unwrap_or(0.0);
        before = Some(value);
    }
    cells
}

fn of_buckets(
    times_ms: &[TimestampMs],
    parts: &[&[f64]; AGGREGATES],
    buckets: &[TimestampMs],
    resolution_ms: i64,
    counter: bool,
) -> Vec<Bucket> {
    let sum = Sum::of(parts[SUM]);
    let mut cells = vec![[ABSENT; AGGREGATES]; buckets.len()];
    let (mut before, mut at) = (None, 0);
    for (n, &time_ms) in times_ms
        .iter()
        .enumerate()
        .filter(|(n, _)| !is_absent(parts[LAST][*n]))
    {
        while buckets[at] < floor(time_ms, resolution_ms) {
            at += 1;
        }
        let part: Bucket = std::array::from_fn(|aggregate| parts[aggregate][n]);
        let cell = &mut cells[at];
        if is_absent(cell[LAST]) {
            *cell = [0.0, 0.0, STALE, STALE, STALE, 0.0];
        }
        cell[LAST] = part[LAST];
        if part[COUNT] == 0.0 {
            continue;
        }
        let fell = before.filter(|before| counter && fell_before(&part, *before));
        let first = cell[COUNT] == 0.0;
        cell[COUNT] += part[COUNT];
        cell[SUM] = sum.add(cell[SUM], part[SUM]);
        cell[MIN] = if first {
            part[MIN]
        } else {
            lesser(cell[MIN], part[MIN])
        };
        cell[MAX] = if first {
            part[MAX]
        } else {
            greater(cell[MAX], part[MAX])
        };
        cell[RESETS] += part[RESETS] + fell.unwrap_or(0.0);
        before = (!is_stale(part[LAST])).then_some(part[LAST]).or(before);
    }
    cells
}

/// Returns true if a counter fell between two buckets; `before` is the last value of the earlier one. A bucket without resets
/// only rose, so it began with its minimum.
fn fell_before(bucket: &Bucket, before: f64) -> bool {
    bucket[RESETS] == 0.0 && bucket[MIN] < before
}

/// Like `max_over_time`: a NaN counts only if there is no other value.
fn greater(a: f64, b: f64) -> f64 {
    if b > a || a.is_nan() { b } else { a }
}

fn lesser(a: f64, b: f64) -> f64 {
    if b < a || a.is_nan() { b } else { a }
}

/// Adds decimals without the rounding errors of binary fractions, which would dominate the compressed size.
struct Sum {
    power: Option<f64>,
}

impl Sum {
    fn of(values: &[f64]) -> Self {
        Self {
            power: column::power_of(values),
        }
    }

    fn add(&self, sum: f64, value: f64) -> f64 {
        match self.power {
            Some(power) => ((sum * power).round() + (value * power).round()) / power,
            None => sum + value,
        }
    }
}

// === reading ===

/// The value that a query gets for a bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum View {
    /// The last sample: the result of an instant selector at the end of the bucket.
    #[default]
    Last,
    Min,
    Max,
    Sum,
    Mean,
    /// The last sample, and samples before it that represent the resets in the bucket.
    Counter,
}

/// Returns the aggregate that serves a function over a range: the maximum of maxima is the maximum, the sum of sums is the sum.
/// `avg_over_time` gets means, which is exact if the samples are regular. Other functions get last values, and count buckets.
pub(crate) fn view(function: Option<&str>) -> View {
    match function {
        Some("min_over_time") => View::Min,
        Some("max_over_time") => View::Max,
        Some("sum_over_time") => View::Sum,
        Some("avg_over_time") => View::Mean,
        Some("rate" | "increase" | "resets") => View::Counter,
        _ => View::Last,
    }
}

/// Returns a roll-up as samples at the ends of its buckets, and its resolution.
pub(crate) fn read(
    bytes: &[u8],
    view: View,
    wanted: impl Fn(SeriesId) -> bool,
) -> Result<(i64, Vec<Frame<SeriesId>>), Corrupt> {
    let aggregates: &[usize] = match view {
        View::Last => &[LAST],
        View::Min => &[MIN],
        View::Max => &[MAX],
        View::Sum => &[LAST, COUNT, SUM],
        View::Mean => &[LAST, COUNT, SUM],
        View::Counter => &[LAST, COUNT, MIN, RESETS],
    };
    let Stored { resolution_ms, sets } = chunk::decode_rollup(bytes, aggregates, wanted)?;
    let end = |frame: &Frame<SeriesId>| -> Vec<TimestampMs> {
        frame
            .times_ms
            .iter()
            .map(|first| first.saturating_add(resolution_ms - 1))
            .collect()
    };
    let mut frames = sets[0].clone();
    for (at, frame) in frames.iter_mut().enumerate() {
        let column = |set: usize| &sets[set][at].values;
        match view {
            View::Last | View::Min | View::Max => frame.times_ms = end(frame),
            View::Sum | View::Mean => {
                let of = |n: usize, last: f64| match column(1)[n] {
                    _ if is_absent(last) => ABSENT,
                    0.0 => STALE,
                    count if view == View::Mean => column(2)[n] / count,
                    _ => column(2)[n],
                };
                frame.values = column(0)
                    .iter()
                    .enumerate()
                    .map(|(n, last)| of(n, *last))
                    .collect();
                frame.times_ms = end(frame);
            }
            View::Counter => *frame = counter_samples(&sets, at, &end(frame)),
        }
    }
    Ok((resolution_ms, frames))
}

/// Returns three samples per bucket, so that `increase` over them equals `increase` over the original samples:
///
/// ```text
/// end-2   peak    if the bucket has resets: their sum, as if the counter had risen to it and restarted once
/// end-1   floor   0, if otherwise the last value would not show the reset;
///                 the minimum, if the bucket before may have ended higher
/// end     last
/// ```
fn counter_samples(sets: &[Vec<Frame<SeriesId>>], at: usize, ends_ms: &[TimestampMs]) -> Frame<SeriesId> {
    let series = sets[0][at].series.clone();
    let ticks = ends_ms.len();
    let mut values = Vec::with_capacity(3 * ticks * series.len());
    for row in 0..series.len() {
        let [last, count, min, resets] = [0, 1, 2, 3].map(|set| sets[set][at].row(row));
        let mut before = None;
        for n in 0..ticks {
            let samples = match (last[n], resets[n]) {
                (last, _) if is_absent(last) || count[n] == 0.0 => [ABSENT, ABSENT, last],
                (last, resets) if resets > 0.0 => [resets, if last < resets { ABSENT } else { 0.0 }, last],
                (last, _) => {
                    let fell = before.is_none_or(|before| min[n] < before) && min[n] < last;
                    [ABSENT, if fell { min[n] } else { ABSENT }, last]
                }
            };
            if count[n] > 0.0 && !is_stale(last[n]) {
                before = Some(last[n]);
            }
            values.extend(samples);
        }
    }
    let times_ms = ends_ms.iter().flat_map(|end| [end - 2, end - 1, *end]).collect();
    Frame {
        series,
        times_ms,
        values,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    const ID: SeriesId = SeriesId(1);

    fn samples(values: &[f64], every_ms: i64) -> Stored {
        let times_ms = (0..values.len() as i64).map(|n| n * every_ms).collect();
        Stored::samples(vec![Frame {
            series: vec![ID],
            times_ms,
            values: values.to_vec(),
        }])
    }

    fn seen(stored: &Stored, view: View) -> Vec<(i64, f64)> {
        let (_, frames) = read(&stored.encode(), view, |_| true).unwrap();
        let cells = frames
            .iter()
            .flat_map(|frame| frame.times_ms.iter().copied().zip(frame.values.iter().copied()));
        cells.filter(|(_, value)| !is_absent(*value)).collect()
    }

    #[test]
    fn each_view_has_its_aggregate_at_the_buckets_end() {
        let minutes = roll_up(&samples(&[0.1, 0.7, 0.2, 9.0], 20_000), MINUTE_MS, false);
        assert_eq!(seen(&minutes, View::Last), [(59_999, 0.2), (119_999, 9.0)]);
        assert_eq!(seen(&minutes, View::Min), [(59_999, 0.1), (119_999, 9.0)]);
        assert_eq!(seen(&minutes, View::Max), [(59_999, 0.7), (119_999, 9.0)]);
        assert_eq!(
            seen(&minutes, View::Sum),
            [(59_999, 1.0), (119_999, 9.0)],
            "decimals add up as decimals"
        );
        assert_eq!(seen(&minutes, View::Mean), [(59_999, 1.0 / 3.0), (119_999, 9.0)]);
        let hours = roll_up(&minutes, HOUR_MS, false);
        assert_eq!(seen(&hours, View::Sum), [(3_599_999, 10.0)]);
        assert_eq!(seen(&hours, View::Mean), [(3_599_999, 2.5)]);
        assert_eq!(seen(&hours, View::Min), [(3_599_999, 0.1)]);
    }

    #[test]
    fn markers_and_nans_are_what_they_were() {
        let nan = f64::NAN;
        let minutes = roll_up(
            &samples(
                &[1.0, STALE, ABSENT, STALE, STALE, STALE, nan, 2.0, nan, nan],
                20_000,
            ),
            MINUTE_MS,
            false,
        );
        let bits = |view| {
            seen(&minutes, view)
                .iter()
                .map(|(_, value)| value.to_bits())
                .collect::<Vec<_>>()
        };
        assert_eq!(bits(View::Last), [STALE, STALE, nan, nan].map(f64::to_bits));
        assert_eq!(bits(View::Max)[..3], [1.0, STALE, 2.0].map(f64::to_bits));
        assert_eq!(bits(View::Min)[..3], [1.0, STALE, 2.0].map(f64::to_bits));
        assert!(f64::from_bits(bits(View::Max)[3]).is_nan() && f64::from_bits(bits(View::Sum)[2]).is_nan());
        assert_eq!(bits(View::Sum)[..2], [1.0, STALE].map(f64::to_bits));
    }

    /// As in PromQL: the difference of the ends, plus the value before each fall.
    fn increase(samples: &[(i64, f64)]) -> f64 {
        let values: Vec<f64> = samples
            .iter()
            .map(|(_, value)| *value)
            .filter(|value| !is_stale(*value))
            .collect();
        let falls = values
            .windows(2)
            .filter(|pair| pair[1] < pair[0])
            .map(|pair| pair[0]);
        values.last().unwrap() - values[0] + falls.sum::<f64>()
    }

    /// Checks that the increase from the end of the first bucket on equals that of the samples.
    fn check_counter(values: &[f64]) {
        let all = samples(values, 10_000);
        let frame = &all.sets[0][0];
        let truth: Vec<_> = frame
            .times_ms
            .iter()
            .copied()
            .zip(values.iter().copied())
            .collect();
        let minutes = roll_up(&all, MINUTE_MS, true);
        let from = |samples: &[(i64, f64)], from_ms: i64| {
            let (early, late): (Vec<_>, Vec<_>) =
                samples.iter().partition(|(time_ms, _)| *time_ms <= from_ms);
            increase(&[&early[early.len() - 1..], &late].concat())
        };
        assert_eq!(
            from(&seen(&minutes, View::Counter), 59_999),
            from(&truth, 59_999),
            "{values:?}"
        );
        if values.len() > 720 {
            let hours = roll_up(&minutes, HOUR_MS, true);
            assert_eq!(
                from(&seen(&hours, View::Counter), 3_599_999),
                from(&truth, 3_599_999),
                "{values:?}"
            );
        }
    }

    #[test]
    fn counters_have_the_same_increase_after_the_roll_up() {
        let rising: Vec<f64> = (0..24).map(f64::from).collect();
        check_counter(&rising);
        // A reset within a bucket, visible or hidden by later values; at the edge of two buckets; two resets in one bucket.
        for (reset_at, step) in [(9, 1.0), (9, 100.0), (12, 1.0), (12, 100.0), (17, 5.0)] {
            let mut values = rising.clone();
            for (n, value) in values.iter_mut().enumerate().skip(reset_at) {
                *value = (n - reset_at) as f64 * step;
            }
            check_counter(&values);
            values[reset_at + 2] = 0.0;
            check_counter(&values);
        }
        let hours: Vec<f64> = (0..1_500)
            .map(|n| f64::from(n % 37) * f64::from(1 + n / 37))
            .collect();
        check_counter(&hours);
    }

    #[test]
    fn a_reset_between_two_passes_is_seen() {
        let [first, second] =
            [[1.0, 50.0], [10.0, 70.0]].map(|values| roll_up(&samples(&values, 10_000), MINUTE_MS, true));
        let both = [seen(&first, View::Counter), seen(&second, View::Counter)].concat();
        assert_eq!(increase(&both), 49.0 + 70.0);
    }

    #[test]
    fn a_gauge_has_no_resets() {
        assert!(is_counter("gpu_energy_joules_total", None) && !is_counter("gpu_power_watts", None));
        assert!(is_counter("x", Some("counter")) && !is_counter("x_total", Some("gauge")));
        let minutes = roll_up(&samples(&[5.0, 1.0, 4.0], 1_000), MINUTE_MS, false);
        assert_eq!(minutes.sets[RESETS][0].values, [0.0]);
    }

    #[test]
    fn tiers_that_outlive_nothing_are_left_out() {
        let mut config = StoreConfig::new("x");
        let resolutions = |config: &StoreConfig| {
            tiers(config)
                .iter()
                .map(|tier| tier.resolution_ms)
                .collect::<Vec<_>>()
        };
        assert_eq!(resolutions(&config), [0, MINUTE_MS, HOUR_MS]);
        (config.rollup_1m_ms, config.rollup_1h_ms) = (0, HOUR_MS);
        assert_eq!(resolutions(&config), [0]);
        config.retention_ms = 1;
        assert_eq!(
            tiers(&config),
            [Tier {
                resolution_ms: 0,
                retention_ms: 1
            }]
        );
        config.rollup_1m_ms = 24 * HOUR_MS;
        assert_eq!(tiers(&config)[0].retention_ms, config.out_of_order_ms + HOUR_MS);
    }
}
