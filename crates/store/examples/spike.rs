//! A thousand agents at 1 Hz into committer and head: what an acknowledgement takes, and what a sample costs.
//!
//! `cargo run --release -p store --example spike -- [SESSIONS] [SECONDS]`; results are kept in
//! `docs/decisions/0002-store-spike.md`. Values look like GPU telemetry: decimals that move a little, counters, constants.
#![allow(clippy::print_stdout, reason = "its output is what it is for")]
#![allow(clippy::unwrap_used, reason = "a measurement that fails shows where")]

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use domain::series::{Budget, Labels, MatchOp, Matcher, Selection, SeriesSource};
use store::series::{Append, Block, SeriesId};
use store::{SeriesStore, Store, StoreConfig};

const GPUS: usize = 8;
const METRICS: usize = 30;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().unwrap());
    let (sessions, seconds) = (arguments.next().unwrap_or(1_000), arguments.next().unwrap_or(20));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(run(sessions, seconds));
}

async fn run(sessions: u64, seconds: u64) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(StoreConfig::new(folder.path())).await.unwrap();
    let began = Instant::now();
    let ids: Vec<Vec<SeriesId>> = (0..sessions).map(|node| resolve(&store.series, node)).collect();
    println!(
        "resolved {} series in {:.2} s",
        store.series.stats().series,
        began.elapsed().as_secs_f64()
    );

    let (cpu, began) = (cpu_seconds(), Instant::now());
    let start_ms = now_ms() / 1_000 * 1_000;
    let first = Block {
        shape: store.series.shape(ids.concat()).unwrap(),
        times_ms: vec![start_ms - 1_000],
        values: vec![0.0; ids.concat().len()],
    };
    store
        .series
        .append(
            Append {
                source: None,
                blocks: vec![first],
            },
            start_ms,
        )
        .await
        .unwrap();
    let (took, spent) = (began.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    println!("first sample of each, names made durable: {took:.2} s, CPU {spent:.2} s");

    let (cpu, began) = (cpu_seconds(), Instant::now());
    let tasks: Vec<_> = ids
        .into_iter()
        .enumerate()
        .map(|(n, ids)| {
            tokio::spawn(send(
                store.series.clone(),
                n as u64,
                sessions,
                ids,
                start_ms,
                seconds,
            ))
        })
        .collect();
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await.unwrap());
    }
    let samples = sessions * seconds * (GPUS * METRICS) as u64;
    let spent = cpu_seconds() - cpu;
    latencies.sort_unstable();
    let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    println!("{samples} samples in {:.1} s", began.elapsed().as_secs_f64());
    println!(
        "ack p50 {:.0} ms, p99 {:.0} ms, max {:.0} ms",
        at(0.5),
        at(0.99),
        at(1.0)
    );
    println!(
        "CPU {:.3} s a million samples, senders included",
        spent / samples as f64 * 1e6
    );
    let stats = store.series.stats();
    println!(
        "write-ahead {:.2} B a sample",
        stats.wal_bytes as f64 / samples as f64
    );
    println!("resident {} MB", resident_bytes() >> 20);

    query(&store.series, "1 metric, all GPUs, from memory").await;
    let (cpu, began) = (cpu_seconds(), Instant::now());
    store.series.seal_now().await.unwrap();
    let stats = store.series.stats();
    println!(
        "sealed at {seconds} ticks in {:.1} s, CPU {:.3} s a million samples, {:.2} B a sample",
        began.elapsed().as_secs_f64(),
        (cpu_seconds() - cpu) / samples as f64 * 1e6,
        stats.sealed_bytes_total as f64 / stats.sealed_samples_total as f64
    );
    store.close().await;
    let began = Instant::now();
    let store = Store::open(StoreConfig::new(folder.path())).await.unwrap();
    println!("opened again in {:.2} s", began.elapsed().as_secs_f64());
    query(&store.series, "1 metric, all GPUs, from chunks").await;
    store.close().await;
}

fn resolve(series: &SeriesStore, node: u64) -> Vec<SeriesId> {
    let pairs = (0..METRICS).flat_map(|metric| (0..GPUS).map(move |gpu| (metric, gpu)));
    let labels = |(metric, gpu): (usize, usize)| {
        let names = [
            ("__name__", format!("gpu_metric_{metric}")),
            ("node", format!("node-{node:04}")),
        ];
        Labels::new(names.into_iter().chain([("gpu", gpu.to_string())])).unwrap()
    };
    pairs.map(|pair| series.resolve(&labels(pair)).unwrap()).collect()
}

/// One agent: a frame a second, at its own phase of the second.
async fn send(
    series: SeriesStore,
    node: u64,
    nodes: u64,
    ids: Vec<SeriesId>,
    start_ms: i64,
    seconds: u64,
) -> Vec<Duration> {
    let first = tokio::time::Instant::now() + Duration::from_micros(1_000_000 * node / nodes);
    let mut random = node.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut levels = vec![0_i64; ids.len()];
    let shape = series.shape(ids).unwrap();
    let mut latencies = Vec::new();
    for tick in 0..seconds {
        tokio::time::sleep_until(first + Duration::from_secs(tick)).await;
        let values = levels
            .iter_mut()
            .enumerate()
            .map(|(n, level)| value(n / GPUS, level, &mut random))
            .collect();
        let block = Block {
            shape: Arc::clone(&shape),
            times_ms: vec![start_ms + tick as i64 * 1_000],
            values,
        };
        let append = Append {
            source: Some((format!("node-{node:04}"), tick + 1)),
            blocks: vec![block],
        };
        let began = Instant::now();
        series.append(append, now_ms()).await.unwrap();
        latencies.push(began.elapsed());
    }
    latencies
}

/// A third constants, a third slow decimals (watts, degrees), a third counters.
fn value(metric: usize, level: &mut i64, random: &mut u64) -> f64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    match metric % 3 {
        0 => metric as f64 * 1e9,
        1 => {
            *level += (*random % 2_001) as i64 - 1_000;
            400.0 + (*level / 10) as f64 / 100.0
        }
        _ => {
            *level += (*random % 1_000_000) as i64;
            *level as f64
        }
    }
}

async fn query(series: &SeriesStore, what: &str) {
    let matchers = vec![Matcher {
        name: "__name__".into(),
        op: MatchOp::Equal,
        value: "gpu_metric_1".into(),
    }];
    let selection = Selection {
        matchers,
        start_ms: 0,
        end_ms: i64::MAX,
        step_ms: 0,
        function: None,
        latest: false,
    };
    let budget = Budget::unlimited();
    let began = Instant::now();
    let prefetched = series
        .prefetch(std::slice::from_ref(&selection), &budget)
        .await
        .unwrap();
    let set = prefetched.select(&selection, &budget).unwrap();
    let samples: usize = set.series.iter().map(|series| series.values.len()).sum();
    println!(
        "{what}: {} series, {samples} samples in {:.1} ms",
        set.series.len(),
        began.elapsed().as_secs_f64() * 1e3
    );
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

/// User and system time of this process, from the kernel.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after_name = stat.rsplit_once(") ").unwrap().1;
    let fields: Vec<&str> = after_name.split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    ticks as f64 / 100.0
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4_096
}
