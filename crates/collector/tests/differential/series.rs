//! The series that both servers get: gauges, counters with resets, gaps, staleness markers, odd numbers, classic histograms.
//!
//! Values are multiples of 1/4096, so that sums are exact in any order. No sample lies within the first 400 ms of a second, where the edges
//! of all windows are (see `grammar`). Counters start far above zero: how far a rate is extrapolated towards zero is one of the changes
//! from Prometheus 2 to 3.

use prost::Message;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// The time that the samples span, in milliseconds.
pub(crate) const SPAN_MS: i64 = 50 * 60_000;
const HOUR_MS: i64 = 3_600_000;
const STALE: f64 = f64::from_bits(0x7ff0_0000_0000_0002);
/// Requests are cut by time: Prometheus accepts no sample that is an hour older than the newest.
const REQUEST_MS: i64 = 10 * 60_000;

pub(crate) struct Written {
    pub(crate) base_ms: i64,
    /// Bodies of remote write, in order of time.
    pub(crate) requests: Vec<Vec<u8>>,
}

/// The beginning of the full hour before the last: the steps of sub-queries, which are multiples since 1970, are the same in each run.
pub(crate) fn base_ms(now_ms: i64) -> i64 {
    (now_ms / HOUR_MS - 2) * HOUR_MS
}

type Series = (Vec<(String, String)>, Vec<(i64, f64)>);

pub(crate) fn written(seed: u64, base_ms: i64) -> Written {
    let mut maker = Maker {
        rng: StdRng::seed_from_u64(seed),
        base_ms,
        made: 0,
    };
    let all = maker.all();
    let slices = (0..SPAN_MS / REQUEST_MS).map(|n| base_ms + n * REQUEST_MS);
    let requests = slices
        .map(|from| request(&all, from..from + REQUEST_MS))
        .collect();
    Written { base_ms, requests }
}

struct Maker {
    rng: StdRng,
    base_ms: i64,
    made: u32,
}

impl Maker {
    fn all(&mut self) -> Vec<Series> {
        let mut all = Vec::new();
        for node in ["a", "b", "c"] {
            for gpu in ["0", "1", "2"] {
                let labels = [("node", node), ("gpu", gpu)];
                all.push(self.gauge("power_watts", &labels, 15_000, 400));
                all.push(self.gauge(
                    "temp_celsius",
                    &labels,
                    if node == "c" { 60_000 } else { 30_000 },
                    50,
                ));
                for code in ["200", "500"] {
                    all.push(self.counter("requests_total", &[labels[0], labels[1], ("code", code)], 15_000));
                }
            }
            let racks = if node == "c" { "right" } else { "left" };
            all.push(self.constant("node_info", &[("node", node), ("rack", racks)]));
            all.push(self.gauge("load", &[("node", node)], 20_000, 3));
            all.push(self.sparse("sparse", &[("node", node)]));
            all.push(self.ending("job_up", &[("node", node)]));
            all.push(self.counter("errors_total", &[("node", node)], 30_000));
            self.histogram("latency_seconds", node, &mut all);
        }
        for kind in ["nan", "inf", "mixed"] {
            all.push(self.odd(kind));
        }
        all
    }

    /// Sample times with jitter, some left out, and some gaps of minutes.
    fn times(&mut self, interval_ms: i64) -> Vec<i64> {
        let (mut times, mut at) = (
            Vec::new(),
            self.base_ms + self.rng.random_range(0..interval_ms / 1_000) * 1_000,
        );
        while at < self.base_ms + SPAN_MS - 1_000 {
            times.push(at + self.rng.random_range(400..1_000));
            at += match self.rng.random_range(0..100) {
                0 => self.rng.random_range(2..9) * 60_000,
                1..5 => 2 * interval_ms,
                _ => interval_ms,
            };
        }
        times
    }

    /// A different fraction for each series, so that no two have equal values.
    fn own_share(&mut self) -> f64 {
        self.made += 1;
        f64::from(self.made) / 4_096.0
    }

    fn gauge(&mut self, name: &str, labels: &[(&str, &str)], interval_ms: i64, around: i32) -> Series {
        let share = self.own_share();
        let times = self.times(interval_ms);
        let samples = times.into_iter().map(|time| {
            let value = match self.rng.random_range(0..60) {
                0 => STALE,
                _ => f64::from(self.rng.random_range(-around / 8..around * 2)) + share,
            };
            (time, value)
        });
        (named(name, labels), samples.collect())
    }

    fn counter(&mut self, name: &str, labels: &[(&str, &str)], interval_ms: i64) -> Series {
        let mut value = 1e6 + self.own_share();
        let times = self.times(interval_ms);
        let samples = times.into_iter().map(|time| {
            value = match self.rng.random_range(0..100) {
                0 => value - f64::from(self.rng.random_range(400_000..500_000)),
                1..20 => value,
                _ => value + f64::from(self.rng.random_range(1..500)),
            };
            // High enough that no rate is extrapolated to zero.
            value = if value < 3e5 { value + 7e5 } else { value };
            (time, value)
        });
        (named(name, labels), samples.collect())
    }

    fn constant(&mut self, name: &str, labels: &[(&str, &str)]) -> Series {
        let times = self.times(60_000);
        (
            named(name, labels),
            times.into_iter().map(|time| (time, 1.0)).collect(),
        )
    }

    /// Samples that are sometimes further apart than the lookback.
    fn sparse(&mut self, name: &str, labels: &[(&str, &str)]) -> Series {
        let share = self.own_share();
        let (mut samples, mut at) = (Vec::new(), self.base_ms);
        while at < self.base_ms + SPAN_MS - 1_000 {
            samples.push((
                at + self.rng.random_range(400..1_000),
                f64::from(self.rng.random_range(0..9)) + share,
            ));
            at += self.rng.random_range(60..420) * 1_000;
        }
        (named(name, labels), samples)
    }

    /// Ends with a staleness marker and continues later.
    fn ending(&mut self, name: &str, labels: &[(&str, &str)]) -> Series {
        let mut samples: Vec<(i64, f64)> = self.times(30_000).into_iter().map(|time| (time, 1.0)).collect();
        let (end, back) = (samples.len() / 3, samples.len() / 2);
        samples[end].1 = STALE;
        samples.drain(end + 1..back);
        samples
            .iter_mut()
            .skip(end + 1)
            .step_by(7)
            .for_each(|sample| sample.1 = 0.0);
        (named(name, labels), samples)
    }

    fn odd(&mut self, kind: &str) -> Series {
        let times = self.times(30_000);
        let samples = times.into_iter().map(|time| {
            let value = match (kind, self.rng.random_range(0..4)) {
                ("nan", _) | ("mixed", 0) => f64::NAN,
                ("inf", _) | ("mixed", 1) => f64::INFINITY,
                ("mixed", 2) => f64::NEG_INFINITY,
                _ => 2.0,
            };
            (time, value)
        });
        (named("odd", &[("is", kind)]), samples.collect())
    }

    fn histogram(&mut self, name: &str, node: &str, all: &mut Vec<Series>) {
        let bounds = ["0.1", "0.25", "0.5", "1", "2.5", "+Inf"];
        let mut counts: Vec<f64> = (1..=bounds.len()).map(|n| 20_000.0 * n as f64).collect();
        let (times, mut sum) = (self.times(15_000), 100_000.0);
        let mut rows: Vec<Vec<(i64, f64)>> = vec![Vec::new(); bounds.len() + 1];
        for time in times {
            let mut seen = 0.0;
            for (bucket, count) in counts.iter_mut().enumerate() {
                seen += f64::from(self.rng.random_range(1..20));
                *count += seen;
                rows[bucket].push((time, *count));
            }
            sum += f64::from(self.rng.random_range(1..200)) / 4.0;
            rows[bounds.len()].push((time, sum));
        }
        for (le, row) in bounds.iter().zip(&rows) {
            all.push((
                named(&format!("{name}_bucket"), &[("le", le), ("node", node)]),
                row.clone(),
            ));
        }
        all.push((
            named(&format!("{name}_count"), &[("node", node)]),
            rows[bounds.len() - 1].clone(),
        ));
        all.push((
            named(&format!("{name}_sum"), &[("node", node)]),
            rows[bounds.len()].clone(),
        ));
    }
}

fn named(name: &str, labels: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut labels: Vec<(String, String)> = labels
        .iter()
        .map(|(name, value)| ((*name).into(), (*value).into()))
        .collect();
    labels.push(("__name__".into(), name.into()));
    labels.sort();
    labels
}

// === remote write ===

#[derive(Clone, PartialEq, Message)]
struct WriteRequest {
    #[prost(message, repeated, tag = "1")]
    timeseries: Vec<TimeSeries>,
}

#[derive(Clone, PartialEq, Message)]
struct TimeSeries {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<Label>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(double, tag = "1")]
    value: f64,
    #[prost(int64, tag = "2")]
    timestamp: i64,
}

fn request(all: &[Series], times: std::ops::Range<i64>) -> Vec<u8> {
    let within = |(labels, samples): &Series| TimeSeries {
        labels: labels
            .iter()
            .map(|(name, value)| Label {
                name: name.clone(),
                value: value.clone(),
            })
            .collect(),
        samples: samples
            .iter()
            .filter(|(time, _)| times.contains(time))
            .map(|(timestamp, value)| Sample {
                value: *value,
                timestamp: *timestamp,
            })
            .collect(),
    };
    let timeseries = all
        .iter()
        .map(within)
        .filter(|series| !series.samples.is_empty())
        .collect();
    snap::raw::Encoder::new()
        .compress_vec(&WriteRequest { timeseries }.encode_to_vec())
        .unwrap()
}
