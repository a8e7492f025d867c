//! Measures evaluating queries and writing the results, without a store: `cargo bench -p query --bench eval -- [word]`. With a word, only
//! queries that contain it are measured.
//!
//! Other processes may use the machine too: compare ratios, and the best of several runs.
#![allow(clippy::disallowed_methods, reason = "it measures time")]
#![allow(clippy::print_stdout, reason = "its output is what it is for")]
#![allow(clippy::unwrap_used, reason = "a measurement that fails shows where")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::series::{Budget, Labels, SelectError, Selection, Series, SeriesSet, SeriesSource};
use query::Params;

const START_MS: i64 = 1_790_000_000_000;
const HOUR_MS: i64 = 3_600_000;
const GPUS: usize = 8;
const RUNS: usize = 41;

/// `nodes` × 8 GPUs, one sample per second. The GPUs of a node share their time axis.
struct Cluster {
    series: Vec<Series>,
}

impl Cluster {
    fn new(metric: &str, nodes: usize, counter: bool) -> Self {
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        let mut series = Vec::new();
        for node in 0..nodes {
            let first = START_MS - HOUR_MS / 6 + node as i64 * 7;
            let times_ms: Arc<[i64]> = (0..4_200).map(|tick| first + tick * 1_000).collect();
            for gpu in 0..GPUS {
                let mut level = 40_000_i64;
                let step = |_: &i64| {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    level += if counter {
                        (random % 400_000) as i64
                    } else {
                        (random % 201) as i64 - 100
                    };
                    level as f64 / 100.0
                };
                let values: Arc<[f64]> = times_ms.iter().map(step).collect();
                let labels = Labels::new([
                    ("__name__", metric.to_owned()),
                    ("node", format!("node-{node:04}")),
                    ("gpu", gpu.to_string()),
                    ("uuid", format!("GPU-{node:016x}-{gpu:04x}")),
                    ("model", "H100 80GB HBM3".to_owned()),
                ]);
                series.push(Series {
                    labels: labels.unwrap(),
                    times_ms: Arc::clone(&times_ms),
                    values,
                });
            }
        }
        series.sort_by(|a, b| a.labels.cmp(&b.labels));
        Self { series }
    }

    /// Returns one series with 30 days of samples at intervals of 15 s.
    fn month() -> Self {
        let mut cluster = Self::new("x_total", 1, true);
        cluster.series.truncate(1);
        let ticks = 30 * 24 * HOUR_MS / 15_000;
        cluster.series[0].times_ms = (0..ticks).map(|tick| START_MS + tick * 15_000).collect();
        cluster.series[0].values = (0..ticks)
            .map(|tick| (tick * 7 % 1_000_003) as f64 / 100.0)
            .collect();
        cluster
    }
}

impl SeriesSource for Cluster {
    fn select(&self, _: &Selection, _: &Budget) -> Result<SeriesSet, SelectError> {
        Ok(SeriesSet {
            series: self.series.clone(),
            resolution_ms: None,
        })
    }
}

fn main() {
    let word = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    let gauges = Cluster::new("x", 32, false);
    let counters = Cluster::new("x_total", 32, true);
    let month = Cluster::month();
    let hour = Params::range(START_MS, START_MS + HOUR_MS, 15_000);
    let seconds = Params::range(START_MS, START_MS + HOUR_MS, 1_000);
    let days = Params::range(START_MS, START_MS + 30 * 24 * HOUR_MS, HOUR_MS / 4);
    let cases: [(&Cluster, &str, Params); 16] = [
        (&gauges, "x", Params::instant(START_MS)),
        (&gauges, "x", hour),
        (&gauges, "max by (node) (x)", hour),
        (&gauges, "max by (node) (x)", seconds),
        (&gauges, "topk(10, x)", hour),
        (&gauges, "quantile by (node) (0.9, x)", hour),
        (&gauges, "quantile(0.99, x)", hour),
        (&gauges, "sum(x) / count(x)", hour),
        (&gauges, "x > 400", hour),
        (&counters, "rate(x_total[5m])", hour),
        (&counters, "sum by (node) (rate(x_total[5m]))", hour),
        (&gauges, "max_over_time(x[5m])", hour),
        (&gauges, "avg_over_time(x[5m])", hour),
        (&gauges, "quantile_over_time(0.9, x[5m])", hour),
        (&month, "rate(x_total[1h])", days),
        (&month, "x_total", days),
    ];
    for (source, text, params) in cases {
        if word.as_ref().is_none_or(|word| text.contains(word.as_str())) {
            measure(source, text, params);
        }
    }
}

fn measure(source: &Cluster, text: &str, params: Params) {
    let query = query::parse(text).unwrap();
    let (mut evaluated, mut written) = (Vec::new(), Vec::new());
    let mut bytes = 0;
    for _ in 0..RUNS {
        let began = Instant::now();
        let output = query.evaluate(source, &params, &Budget::unlimited()).unwrap();
        evaluated.push(began.elapsed());
        let began = Instant::now();
        bytes = write(&output.value);
        written.push(began.elapsed());
    }
    let steps = if params.step_ms == 0 {
        1
    } else {
        (params.end_ms - params.start_ms) / params.step_ms + 1
    };
    println!(
        "{:>8.3} ms evaluated, {:>8.3} ms written ({:>5} kB)  {text}, {} series × {steps} steps",
        best(evaluated),
        best(written),
        bytes / 1_000,
        source.series.len(),
    );
}

/// Returns the shortest of all durations, in milliseconds: other processes can only add time.
fn best(took: Vec<Duration>) -> f64 {
    took.into_iter().min().unwrap().as_secs_f64() * 1e3
}

fn write(value: &query::Value) -> usize {
    let mut out = Vec::new();
    query::format::write(&mut out, value);
    out.len()
}
