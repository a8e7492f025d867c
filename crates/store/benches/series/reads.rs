//! Reads by shape, from chunks and from memory.

use domain::series::{Budget, MatchOp, Matcher, Selection, SeriesSource};
use store::series::SeriesId;
use store::{SeriesStore, Store, StoreConfig};

use crate::feed::{self, GPUS, METRICS};
use crate::ms;

const START_MS: i64 = 1_790_000_000_000;
const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;
/// The ticks in one append; below, the appends in one chunk.
const TICKS: i64 = 60;
const APPENDS_PER_CHUNK: i64 = 4;
const RUNS: usize = 15;

/// A kind of data: metrics of the GPUs of some nodes, over a period at an interval.
struct Data {
    first_node: usize,
    nodes: usize,
    metrics: usize,
    span_ms: i64,
    interval_ms: i64,
}

const CLUSTER_HOUR: Data = Data {
    first_node: 0,
    nodes: 32,
    metrics: 4,
    span_ms: HOUR_MS,
    interval_ms: 1_000,
};
/// What a dashboard queries repeatedly, still in memory.
const LIVE: Data = Data {
    first_node: 0,
    nodes: 32,
    metrics: METRICS,
    span_ms: 14 * 60_000,
    interval_ms: 1_000,
};
const NODE_SIX_HOURS: Data = Data {
    first_node: 100,
    nodes: 1,
    metrics: METRICS,
    span_ms: 6 * HOUR_MS,
    interval_ms: 1_000,
};
const NODE_MONTH: Data = Data {
    first_node: 200,
    nodes: 1,
    metrics: 1,
    span_ms: 30 * DAY_MS,
    interval_ms: 15_000,
};

/// Live data: sealed every few minutes, merged later.
async fn live() {
    let folder = tempfile::tempdir().unwrap();
    let config = StoreConfig {
        gather_ms: 0,
        ..StoreConfig::new(folder.path())
    };
    let store = Store::open(config).await.unwrap();
    fill(&store.series, &LIVE).await;
    let stats = store.series.stats();
    println!(
        "live, {} kB of chunks in memory, {:.4} bytes a sample:",
        stats.recent_chunk_bytes / 1_000,
        stats.sealed_bytes_total as f64 / stats.sealed_samples_total as f64
    );
    let selection = |matchers: &[(&str, &str)], step_ms, function: Option<&str>| Selection {
        matchers: matchers
            .iter()
            .map(|(name, value)| Matcher::equal(*name, *value))
            .collect(),
        start_ms: START_MS,
        end_ms: START_MS + LIVE.span_ms,
        step_ms,
        function: function.map(str::to_owned),
        latest: false,
    };
    let metric = [("__name__", "gpu_metric_7")];
    let gpu = [("node", "node-0003"), ("gpu", "3")];
    let one = [metric[0], gpu[0], gpu[1]];
    for (what, matchers) in [
        ("1 metric × 256 GPUs", &metric[..]),
        ("1 GPU × 30 metrics", &gpu),
        ("1 series", &one),
    ] {
        read(
            &store.series,
            &format!("{what}, all samples"),
            selection(matchers, 15_000, Some("rate")),
        )
        .await;
        read(
            &store.series,
            &format!("{what}, steps of 15 s"),
            selection(matchers, 15_000, None),
        )
        .await;
    }
    store.close().await;
}

pub(crate) async fn run() {
    live().await;
    let folder = tempfile::tempdir().unwrap();
    let config = StoreConfig {
        gather_ms: 0,
        retention_ms: i64::MAX / 4,
        ..StoreConfig::new(folder.path())
    };
    let store = Store::open(config.clone()).await.unwrap();
    for data in [NODE_MONTH, NODE_SIX_HOURS, CLUSTER_HOUR] {
        fill(&store.series, &data).await;
    }
    let end_ms = START_MS + HOUR_MS;
    let metric = |at: i64, step_ms, function: Option<&str>, latest| Selection {
        matchers: vec![
            Matcher::equal("__name__", "gpu_metric_0"),
            Matcher {
                name: "node".into(),
                op: MatchOp::Regex,
                value: "node-00.*".into(),
            },
        ],
        start_ms: at,
        end_ms,
        step_ms,
        function: function.map(str::to_owned),
        latest,
    };
    read(
        &store.series,
        "instant, 1 metric × 256 GPUs, in memory",
        metric(end_ms - 300_000, 0, None, true),
    )
    .await;
    let sealed = store.series.stats();
    println!(
        "{:.4} bytes a sample, as sealed",
        sealed.sealed_bytes_total as f64 / sealed.sealed_samples_total as f64
    );
    store.close().await;

    let store = Store::open(config.clone()).await.unwrap();
    println!("opened again, all in chunks:");
    read_chunks(&store, metric).await;
    store.series.compact_now(START_MS + 31 * DAY_MS).await.unwrap();
    store.close().await;

    let store = Store::open(config.clone()).await.unwrap();
    println!(
        "merged, {:.4} bytes of file a sample:",
        store.series.stats().chunk_file_bytes as f64 / sealed.sealed_samples_total as f64
    );
    read_chunks(&store, metric).await;
    store.close().await;

    let forgetful = StoreConfig {
        chunk_cache_bytes_max: Some(0),
        ..config
    };
    let store = Store::open(forgetful).await.unwrap();
    println!("merged, each read as if it were the first:");
    read_chunks(&store, metric).await;
    store.close().await;
}

async fn read_chunks(store: &Store, metric: impl Fn(i64, i64, Option<&str>, bool) -> Selection) {
    let end_ms = START_MS + HOUR_MS;
    let rate = Some("rate");
    read(
        &store.series,
        "1 metric × 256 GPUs × 1 h",
        metric(START_MS, 15_000, rate, false),
    )
    .await;
    read(
        &store.series,
        "the same, an instant selector in steps of 15 s",
        metric(START_MS, 15_000, None, false),
    )
    .await;
    read(
        &store.series,
        "the same, the latest alone",
        metric(end_ms - 300_000, 0, None, true),
    )
    .await;
    let gpu = Selection {
        matchers: vec![Matcher::equal("node", "node-0100"), Matcher::equal("gpu", "3")],
        start_ms: START_MS,
        end_ms: START_MS + 6 * HOUR_MS,
        ..metric(0, 60_000, rate, false)
    };
    read(&store.series, "1 GPU × 30 metrics × 6 h", gpu.clone()).await;
    let recent = Selection {
        start_ms: START_MS + 5 * HOUR_MS,
        end_ms: START_MS + 5 * HOUR_MS + 14 * 60_000,
        ..gpu
    };
    read(&store.series, "the same, 14 min", recent.clone()).await;
    let thin = Selection {
        step_ms: 15_000,
        function: None,
        ..recent.clone()
    };
    read(
        &store.series,
        "the same, an instant selector in steps of 15 s",
        thin,
    )
    .await;
    let one = Selection {
        matchers: vec![
            Matcher::equal("__name__", "gpu_metric_7"),
            Matcher::equal("node", "node-0100"),
            Matcher::equal("gpu", "3"),
        ],
        ..recent
    };
    read(&store.series, "1 series × 14 min", one.clone()).await;
    let none = Selection {
        start_ms: 0,
        end_ms: 1_000,
        ..one
    };
    read(&store.series, "1 series, nothing of it", none).await;
    let month = |days: i64| Selection {
        matchers: vec![Matcher::equal("node", "node-0200"), Matcher::equal("gpu", "3")],
        start_ms: START_MS + (30 - days) * DAY_MS,
        end_ms: START_MS + 30 * DAY_MS,
        ..metric(0, 60_000, rate, false)
    };
    read(&store.series, "1 series × 30 days at 15 s", month(30)).await;
    let hours = Selection {
        end_ms: START_MS + 8 * HOUR_MS,
        start_ms: START_MS,
        ..month(30)
    };
    read(&store.series, "1 series × 8 h at 15 s, 30 days ago", hours).await;
}

async fn fill(store: &SeriesStore, data: &Data) {
    let began = std::time::Instant::now();
    let names = (data.first_node..data.first_node + data.nodes).flat_map(|node| {
        (0..data.metrics).flat_map(move |metric| (0..GPUS).map(move |gpu| feed::labels(metric, node, gpu)))
    });
    let ids: Vec<SeriesId> = names.map(|labels| store.resolve(&labels).unwrap()).collect();
    let mut random = 0x2545_f491_4f6c_dd1d;
    let ticks = data.span_ms / data.interval_ms;
    for (part, first) in (0..ticks).step_by(TICKS as usize).enumerate() {
        let times: Vec<i64> = (first..(first + TICKS).min(ticks))
            .map(|tick| START_MS + tick * data.interval_ms)
            .collect();
        for ids in ids.chunks(8_192) {
            let values = feed::values(ids.len(), times.len(), &mut random);
            feed::append(store, ids, &times, values).await;
        }
        if part as i64 % APPENDS_PER_CHUNK == APPENDS_PER_CHUNK - 1 {
            store.seal_now().await.unwrap();
        }
    }
    store.seal_now().await.unwrap();
    println!(
        "{} samples of {} series stored in {:.1} s",
        ticks * ids.len() as i64,
        ids.len(),
        began.elapsed().as_secs_f64()
    );
}

async fn read(store: &SeriesStore, what: &str, selection: Selection) {
    let mut took = Vec::new();
    let (mut series, mut samples, mut paid) = (0, 0, 0);
    for _ in 0..RUNS {
        let budget = Budget::new(u64::MAX, u64::MAX);
        let began = std::time::Instant::now();
        let prefetched = store
            .prefetch(std::slice::from_ref(&selection), &budget)
            .await
            .unwrap();
        took.push(began.elapsed());
        let set = prefetched.select(&selection, &budget).unwrap();
        series = set.series.len();
        samples = set.series.iter().map(|series| series.values.len()).sum();
        paid = budget.samples_spent();
    }
    let first = took[0];
    took.sort_unstable();
    println!(
        "  {:>8.2} ms (first {:.2}, best {:.2}), {:>6.1} M samples/s  {what}: {series} series, {samples} samples of {paid} read",
        ms(took[RUNS / 2]),
        ms(first),
        ms(took[0]),
        paid as f64 / took[RUNS / 2].as_secs_f64() / 1e6
    );
}
