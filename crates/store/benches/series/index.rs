//! One million series: memory, naming, searching, opening.

use std::time::Instant;

use domain::series::{MatchOp, Matcher};
use store::series::SeriesId;
use store::{SeriesStore, Store, StoreConfig};

use crate::feed::{self, GPUS, METRICS};
use crate::{median, ms, resident_bytes};

const NODES: usize = 4_167;
const SERIES: usize = NODES * GPUS * METRICS;

pub(crate) async fn run() {
    let folder = tempfile::tempdir().unwrap();
    let config = StoreConfig {
        series_max: 2_000_000,
        ..StoreConfig::new(folder.path())
    };
    let store = Store::open(config.clone()).await.unwrap();
    let before = resident_bytes();
    let began = Instant::now();
    let ids = resolve_all(&store.series);
    let per_series = began.elapsed().as_secs_f64() * 1e9 / SERIES as f64;
    println!("{SERIES} new series: {per_series:.0} ns each, making their labels included");
    println!(
        "  {} bytes a series of index and {} bytes in all, groups of the head included",
        store.series.stats().index_bytes / SERIES as u64,
        (resident_bytes() - before) / SERIES as u64
    );
    let some: Vec<_> = (0..10_000)
        .map(|n| feed::labels(n % METRICS, n * 7 % NODES, n % GPUS))
        .collect();
    let (took, _) = median(21, || {
        some.iter()
            .filter(|labels| store.series.resolve(labels).is_ok())
            .count()
    });
    println!(
        "known series: {:.0} ns each",
        took.as_secs_f64() * 1e9 / some.len() as f64
    );
    search(&store.series);

    let began = Instant::now();
    for ids in ids.chunks(1 << 19) {
        feed::append(&store.series, ids, &[1_790_000_000_000], vec![1.0; ids.len()]).await;
    }
    println!(
        "names made durable with a first sample each: {:.1} s",
        began.elapsed().as_secs_f64()
    );
    store.series.seal_now().await.unwrap();
    store.close().await;
    let began = Instant::now();
    let store = Store::open(config).await.unwrap();
    println!("opened again: {:.0} ms", ms(began.elapsed()));
    assert_eq!(store.series.stats().series, SERIES as u64);
    store.close().await;
}

fn resolve_all(store: &SeriesStore) -> Vec<SeriesId> {
    let names = (0..NODES).flat_map(|node| {
        (0..METRICS).flat_map(move |metric| (0..GPUS).map(move |gpu| feed::labels(metric, node, gpu)))
    });
    names.map(|labels| store.resolve(&labels).unwrap()).collect()
}

fn search(store: &SeriesStore) {
    use MatchOp::{Equal, NotEqual, NotRegex, Regex};
    type Selector = &'static [(&'static str, MatchOp, &'static str)];
    let selectors: [Selector; 12] = [
        &[("__name__", Equal, "gpu_metric_7")],
        &[("node", Equal, "node-0042"), ("gpu", Equal, "3")],
        &[
            ("__name__", Equal, "gpu_metric_7"),
            ("node", Regex, "node-0042|node-1042|node-2042"),
        ],
        &[("__name__", Equal, "gpu_metric_7"), ("node", Regex, "node-1.*")],
        &[("__name__", Equal, "gpu_metric_7"), ("node", Regex, ".*42")],
        &[("__name__", Equal, "gpu_metric_7"), ("gpu", NotEqual, "0")],
        &[
            ("__name__", Equal, "gpu_metric_7"),
            ("node", NotRegex, "node-1.*"),
        ],
        &[("__name__", Equal, "gpu_metric_7"), ("absent", Equal, "")],
        &[("node", Equal, "node-0042"), ("uuid", Regex, ".*0003")],
        &[("uuid", Regex, ".*0003")],
        &[("node", NotEqual, "")],
        &[("__name__", Regex, "gpu_.+"), ("node", Regex, ".+")],
    ];
    for selector in selectors {
        let matchers: Vec<Matcher> = selector
            .iter()
            .map(|(name, op, value)| Matcher {
                name: (*name).into(),
                op: *op,
                value: (*value).into(),
            })
            .collect();
        let words: Vec<String> = matchers.iter().map(ToString::to_string).collect();
        let (took, found) = median(21, || store.count(&matchers).unwrap());
        println!("  {:>9.3} ms  {found:>8} of {{{}}}", ms(took), words.join(", "));
    }
}
