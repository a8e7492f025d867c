//! Tests how chunks are merged, rolled up, dropped and deleted, and what is read afterwards.

use std::collections::BTreeMap;
use std::path::Path;

use domain::series::{ABSENT, Budget, Labels, MatchOp, Matcher, STALE, SeriesSource, is_absent};
use domain::time::TimeRange;
use proptest::prelude::*;
use store::series::{DeleteError, Deleted};
use store::{SeriesStore, Store, StoreConfig};

use crate::harness::{NOW_MS, append, config, gpu, open, read, read_all, samples_in_chunks, selection};

const SECOND: i64 = 1_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// Returns the number that a query over the database returns.
async fn number(folder: &Path, sql: &'static str) -> i64 {
    use sqlx::Connection;
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(folder.join("lockstep.db"));
    let mut connection = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
    sqlx::query_scalar(sql).fetch_one(&mut connection).await.unwrap()
}

async fn chunks(folder: &Path) -> i64 {
    number(folder, "SELECT count(*) FROM chunks").await
}

/// Returns the size of all used pages in bytes.
async fn used_bytes(folder: &Path) -> i64 {
    let pages = "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size";
    number(folder, pages).await
}

fn write_ahead_files(folder: &Path) -> usize {
    let files = std::fs::read_dir(folder).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("wal-")).count()
}

/// Returns values like those of GPUs: random walks of decimals, counters, levels that rarely change.
fn telemetry(metric: usize, series: usize, ticks: usize) -> Vec<f64> {
    let mut state = ((metric * 64 + series) as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut level = 40_000 + series as i64 * 1_300;
    let mut value = |_| match metric % 6 {
        0 => 85_899_345_920.0,
        1 => {
            level += random(601) as i64 - 300;
            level as f64 / 100.0
        }
        2 => {
            level += 400_000 + random(60_001) as i64;
            level as f64
        }
        3 => {
            level += i64::from(random(4) == 0) * (random(3) as i64 - 1);
            level as f64
        }
        4 => (85 + random(15)) as f64,
        _ => (800 + random(200)) as f64 / 1_000.0,
    };
    (0..ticks).map(&mut value).collect()
}

/// Sends some hours of a node's GPUs at 1 Hz, and seals after every `seal_ticks`. Returns the number of samples.
async fn send_hours(store: &SeriesStore, gpus: usize, metrics: usize, hours: i64, seal_ticks: i64) -> u64 {
    let ticks = hours * 3_600;
    let columns: Vec<Vec<Vec<f64>>> = (0..metrics)
        .map(|metric| (0..gpus).map(|n| telemetry(metric, n, ticks as usize)).collect())
        .collect();
    let ids: Vec<Vec<_>> = (0..metrics)
        .map(|metric| {
            let names = (0..gpus).map(|n| gpu(&format!("metric_{metric}"), "a", n));
            names.map(|labels| store.resolve(&labels).unwrap()).collect()
        })
        .collect();
    for start in (0..ticks).step_by(seal_ticks as usize) {
        let end = (start + seal_ticks).min(ticks);
        let times: Vec<i64> = (start..end).map(|n| NOW_MS + n * SECOND).collect();
        for (ids, columns) in ids.iter().zip(&columns) {
            let values: Vec<f64> = columns
                .iter()
                .flat_map(|column| &column[start as usize..end as usize])
                .copied()
                .collect();
            let sent = append(store, ids, &times, &values);
            store.append(sent, NOW_MS + end * SECOND).await.unwrap();
        }
        store.seal_now().await.unwrap();
    }
    ticks as u64 * (gpus * metrics) as u64
}

#[tokio::test]
async fn an_hour_of_chunks_becomes_one_large_row() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let (gpus, metrics, hours) = (8, 6, 2);
    let samples = send_hours(&store.series, gpus, metrics, hours, 200).await;
    let before = read_all(&store.series).await;
    assert_eq!(chunks(folder.path()).await, metrics as i64 * hours * 18);
    assert!(write_ahead_files(folder.path()) > 0);
    store.series.compact_now(NOW_MS + hours * HOUR).await.unwrap();
    assert_eq!(
        write_ahead_files(folder.path()),
        0,
        "chunks hold all that was in it"
    );
    assert_eq!(chunks(folder.path()).await, metrics as i64 * hours);
    assert_eq!(samples_in_chunks(folder.path()).await, samples as i64);
    let bytes = used_bytes(folder.path()).await as f64 / samples as f64;
    assert!(bytes < 1.1, "{bytes} B a sample");
    assert!(
        read_all(&store.series).await == before,
        "what is read stays the same"
    );
    store.close().await;
    let store = open(folder.path()).await;
    assert!(read_all(&store.series).await == before, "also after a restart");
    // A second compaction has nothing to do.
    store.series.compact_now(NOW_MS + hours * HOUR).await.unwrap();
    assert_eq!(chunks(folder.path()).await, metrics as i64 * hours);
}

#[tokio::test]
async fn late_and_repeated_samples_are_stored_once_after_a_merge() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let ids = [0, 1].map(|n| store.series.resolve(&gpu("power", "a", n)).unwrap());
    let send = async |times: Vec<i64>, value: f64| {
        let values = vec![value; 2 * times.len()];
        store
            .series
            .append(append(&store.series, &ids, &times, &values), NOW_MS)
            .await
            .unwrap();
        store.series.seal_now().await.unwrap();
    };
    let ticks = |step: i64, from: i64| {
        (from..600)
            .step_by(step as usize)
            .map(|n| NOW_MS + n * SECOND)
            .collect::<Vec<_>>()
    };
    send(ticks(2, 0), 1.0).await;
    send(ticks(3, 0), 2.0).await;
    store.series.compact_now(NOW_MS).await.unwrap();
    send(ticks(1, 0), 3.0).await;
    assert!(
        samples_in_chunks(folder.path()).await > 1_200,
        "stored more than once until merged"
    );
    store.series.compact_now(NOW_MS).await.unwrap();
    assert_eq!(
        (
            samples_in_chunks(folder.path()).await,
            chunks(folder.path()).await
        ),
        (1_200, 1)
    );
    store.close().await;
    let store = open(folder.path()).await;
    for (_, samples) in read_all(&store.series).await {
        let expected = (0..600).map(|n| {
            let value = if n % 2 == 0 {
                1.0_f64
            } else if n % 3 == 0 {
                2.0
            } else {
                3.0
            };
            (NOW_MS + n * SECOND, value.to_bits())
        });
        assert_eq!(samples, expected.collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_see_everything_while_chunks_are_merged() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    send_hours(&store.series, 2, 4, 1, 100).await;
    let before = read_all(&store.series).await;
    let series = store.series.clone();
    let merging = tokio::spawn(async move { series.compact_now(NOW_MS + HOUR).await });
    let mut reads = 0;
    while !merging.is_finished() || reads < 3 {
        assert!(read_all(&store.series).await == before, "read {reads}");
        reads += 1;
    }
    merging.await.unwrap().unwrap();
    assert_eq!(chunks(folder.path()).await, 4);
}

/// Returns the samples that a function gets of the only series, and the resolution.
async fn seen(store: &SeriesStore, function: Option<&str>) -> (Option<i64>, Vec<(i64, f64)>) {
    let mut all = selection(&[("__name__", MatchOp::NotEqual, "")], i64::MIN, i64::MAX);
    all.function = function.map(str::to_owned);
    let budget = Budget::unlimited();
    let prefetched = store.prefetch(std::slice::from_ref(&all), &budget).await.unwrap();
    let set = prefetched.select(&all, &budget).unwrap();
    let cells = set
        .series
        .iter()
        .flat_map(|series| series.times_ms.iter().zip(series.values.iter()));
    let samples = cells
        .filter(|(_, value)| !is_absent(**value))
        .map(|(time_ms, value)| (*time_ms, *value));
    (set.resolution_ms, samples.collect())
}

#[tokio::test]
async fn what_ages_out_is_rolled_up_by_the_minute_then_by_the_hour_then_goes() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let start_ms = NOW_MS - NOW_MS % HOUR;
    let id = store.series.resolve(&gpu("requests_total", "a", 0)).unwrap();
    // Two hours at 10 s: rises by one each tick, restarts after 100 ticks, and one chunk ends in the middle of a minute.
    let times: Vec<i64> = (0..720).map(|n| start_ms + n * 10 * SECOND).collect();
    let values: Vec<f64> = (0..720).map(|n| f64::from(n % 100)).collect();
    for range in [0..233, 233..500, 500..720] {
        let sent = append(
            &store.series,
            &[id],
            &times[range.clone()],
            &values[range.clone()],
        );
        store.series.append(sent, times[range.end - 1]).await.unwrap();
        store.series.seal_now().await.unwrap();
    }
    store.series.retain_now(start_ms + 10 * DAY).await.unwrap();
    assert_eq!(seen(&store.series, None).await.0, None, "too young");
    // The first hour is old, but the chunk in which it ends is not.
    store.series.retain_now(start_ms + 15 * DAY + HOUR).await.unwrap();
    let (resolution_ms, samples) = seen(&store.series, None).await;
    assert_eq!(
        (resolution_ms, samples[0]),
        (Some(MINUTE), (start_ms + MINUTE - 1, 5.0))
    );
    assert_eq!(
        samples.len(),
        38 + 720 - 38 * 6,
        "38 whole minutes of the first chunk, and the rest as it was"
    );
    store
        .series
        .retain_now(start_ms + 15 * DAY + 3 * HOUR)
        .await
        .unwrap();
    store.close().await;

    let store = open(folder.path()).await;
    let check = async |store: &SeriesStore, bucket_ms: i64| {
        let ticks = (bucket_ms / 10 / SECOND) as usize;
        let of = |each: fn(&[f64]) -> f64| -> Vec<(i64, f64)> {
            let bucket =
                |(n, values): (usize, &[f64])| (start_ms + (n as i64 + 1) * bucket_ms - 1, each(values));
            values.chunks(ticks).enumerate().map(bucket).collect()
        };
        let expected = [
            (None, of(|values| values[values.len() - 1])),
            (
                Some("max_over_time"),
                of(|values| values.iter().copied().fold(f64::MIN, f64::max)),
            ),
            (
                Some("min_over_time"),
                of(|values| values.iter().copied().fold(f64::MAX, f64::min)),
            ),
            (Some("sum_over_time"), of(|values| values.iter().sum())),
            (
                Some("avg_over_time"),
                of(|values| values.iter().sum::<f64>() / values.len() as f64),
            ),
        ];
        for (function, expected) in expected {
            assert_eq!(
                seen(store, function).await,
                (Some(bucket_ms), expected),
                "{function:?}"
            );
        }
        // The increase equals that of the samples from the end of the first bucket on.
        let increase = |values: &mut dyn Iterator<Item = f64>| {
            let values: Vec<f64> = values.collect();
            let rises = values.windows(2).map(|pair| {
                if pair[1] < pair[0] {
                    pair[1]
                } else {
                    pair[1] - pair[0]
                }
            });
            rises.sum::<f64>()
        };
        let (_, counted) = seen(store, Some("increase")).await;
        let from = counted
            .iter()
            .filter(|(time_ms, _)| *time_ms >= start_ms + bucket_ms - 1);
        assert_eq!(
            increase(&mut from.map(|(_, value)| *value)),
            increase(&mut values[ticks - 1..].iter().copied())
        );
    };
    check(&store.series, MINUTE).await;
    store.series.compact_now(start_ms + 16 * DAY).await.unwrap();
    assert_eq!(chunks(folder.path()).await, 1);
    check(&store.series, MINUTE).await;
    store.series.retain_now(start_ms + 91 * DAY).await.unwrap();
    check(&store.series, HOUR).await;
    drop(store);

    let store = open(folder.path()).await;
    check(&store.series, HOUR).await;
    for _ in 0..2 {
        store.series.retain_now(start_ms + 731 * DAY).await.unwrap();
    }
    assert_eq!((chunks(folder.path()).await, store.series.stats().series), (0, 0));
}

#[tokio::test]
async fn without_rollups_what_ages_out_goes() {
    let folder = tempfile::tempdir().unwrap();
    let config = StoreConfig {
        rollup_1m_ms: 0,
        rollup_1h_ms: 0,
        ..config(folder.path())
    };
    let store = Store::open(config).await.unwrap();
    send_hours(&store.series, 1, 2, 1, 600).await;
    store
        .series
        .retain_now(NOW_MS + 15 * DAY + 30 * MINUTE)
        .await
        .unwrap();
    assert_eq!(
        samples_in_chunks(folder.path()).await,
        2 * 1_800,
        "chunks that ended in the first half hour"
    );
    store.series.retain_now(NOW_MS + 16 * DAY).await.unwrap();
    assert_eq!(chunks(folder.path()).await, 0);
}

#[tokio::test]
async fn the_oldest_go_when_the_file_is_too_large() {
    let folder = tempfile::tempdir().unwrap();
    let size_max = 400 << 10;
    let config = StoreConfig {
        size_max_bytes: Some(size_max),
        ..config(folder.path())
    };
    let store = Store::open(config).await.unwrap();
    // Twelve metrics, most of which compress little.
    send_hours(&store.series, 8, 12, 2, 60).await;
    assert!(used_bytes(folder.path()).await > size_max as i64);
    let oldest = number(folder.path(), "SELECT min(max_ms) FROM chunks").await;
    store.series.retain_now(NOW_MS + 2 * HOUR).await.unwrap();
    let used = used_bytes(folder.path()).await;
    assert!(used <= size_max as i64 / 20 * 19, "{used}");
    assert!(used > size_max as i64 / 4, "{used}: no more than needed");
    assert!(number(folder.path(), "SELECT min(max_ms) FROM chunks").await > oldest + 10 * MINUTE);
    assert_eq!(
        number(folder.path(), "SELECT max(max_ms) FROM chunks").await,
        NOW_MS + 2 * HOUR - SECOND
    );
}

#[tokio::test]
async fn a_chunk_is_read_from_disk_once_until_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    send_hours(&store.series, 8, 2, 1, 200).await;
    store.series.compact_now(NOW_MS + HOUR).await.unwrap();
    let lookups = || {
        let stats = store.series.stats();
        (stats.chunk_cache_hits_total, stats.chunk_cache_misses_total)
    };
    let all = read_all(&store.series).await;
    assert_eq!(lookups(), (0, 2));
    assert!(read_all(&store.series).await == all);
    assert_eq!(lookups(), (2, 2));
    let cached = store.series.stats().cached_chunk_bytes;
    assert!((1..=64 << 20).contains(&cached), "{cached} bytes");
    let gpus = [matching(&[("gpu", MatchOp::Equal, "0")])];
    store.series.delete(&gpus, TimeRange::ALL).await.unwrap();
    let left = read_all(&store.series).await;
    assert_eq!(left.len(), all.len() / 8 * 7);
    assert!(left.iter().all(|series| all.contains(series)));
    // Samples that were sealed and removed from memory since then are found as well.
    send_hours(&store.series, 8, 2, 2, 200).await;
    let before = read_all(&store.series).await;
    store.series.compact_now(NOW_MS + 2 * HOUR).await.unwrap();
    assert!(read_all(&store.series).await == before);
    assert!(before.len() > left.len());
}

fn matching(pairs: &[(&str, MatchOp, &str)]) -> Vec<Matcher> {
    selection(pairs, 0, 0).matchers
}

#[tokio::test]
async fn what_is_deleted_stays_away() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let names = [gpu("power", "a", 0), gpu("power", "a", 1), gpu("power", "b", 0)];
    let ids: Vec<_> = names
        .iter()
        .map(|labels| store.series.resolve(labels).unwrap())
        .collect();
    let send = async |from: i64| {
        let times: Vec<i64> = (from..from + 100).map(|n| NOW_MS + n * SECOND).collect();
        let sent = append(&store.series, &ids, &times, &[1.0; 300]);
        store.series.append(sent, NOW_MS).await.unwrap();
    };
    send(0).await;
    store.series.seal_now().await.unwrap();
    store.series.compact_now(NOW_MS).await.unwrap();
    send(100).await;
    store.series.seal_now().await.unwrap();
    // These samples are only in memory and in the write-ahead log.
    send(200).await;
    let node_a = [matching(&[
        ("node", MatchOp::Equal, "a"),
        ("gpu", MatchOp::Regex, "1|2"),
    ])];
    let deleted = store.series.delete(&node_a, TimeRange::ALL).await.unwrap();
    assert_eq!(
        deleted,
        Deleted {
            series: 1,
            samples: 300
        }
    );
    let middle = [matching(&[("node", MatchOp::Equal, "b")])];
    let deleted = store
        .series
        .delete(
            &middle,
            TimeRange::new(NOW_MS + 50 * SECOND, NOW_MS + 249 * SECOND),
        )
        .await
        .unwrap();
    assert_eq!(
        deleted,
        Deleted {
            series: 1,
            samples: 200
        }
    );
    let check = async |store: &SeriesStore| {
        let read = read_all(store).await;
        assert_eq!(
            read.iter().map(|(labels, _)| labels.clone()).collect::<Vec<_>>(),
            [names[0].clone(), names[2].clone()]
        );
        assert_eq!((read[0].1.len(), read[1].1.len()), (300, 100));
        assert_eq!(read[1].1[50].0, NOW_MS + 250 * SECOND);
        let listed = store.series(&node_a, TimeRange::ALL, 10).unwrap();
        assert!(listed.is_empty(), "{listed:?}");
    };
    check(&store.series).await;
    assert_eq!(
        store.series.delete(&node_a, TimeRange::ALL).await.unwrap(),
        Deleted::default()
    );
    // Without closing, so that the write-ahead log is replayed.
    drop(store);
    let store = open(folder.path()).await;
    assert_eq!(read_all(&store.series).await.len(), 2);
    assert_eq!(samples_in_chunks(folder.path()).await, 400);
    // A name is removed when no client has sent it for two passes. If a whole group is deleted, its name is removed at once.
    let all = [matching(&[("__name__", MatchOp::Equal, "power")])];
    store.series.delete(&all, TimeRange::ALL).await.unwrap();
    for _ in 0..2 {
        store.series.retain_now(NOW_MS).await.unwrap();
    }
    assert_eq!((store.series.stats().series, chunks(folder.path()).await), (0, 0));
}

#[tokio::test]
async fn to_delete_everything_takes_more_than_an_empty_matcher() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    for sets in [
        vec![],
        vec![vec![]],
        vec![
            matching(&[("node", MatchOp::Equal, "a")]),
            matching(&[("gpu", MatchOp::Regex, ".*")]),
        ],
    ] {
        let refused = store.series.delete(&sets, TimeRange::ALL).await;
        assert!(matches!(refused, Err(DeleteError::Everything)), "{sets:?}");
    }
    let bad = [matching(&[("node", MatchOp::Regex, "(")])];
    assert!(matches!(
        store.series.delete(&bad, TimeRange::new(0, 1)).await,
        Err(DeleteError::Matcher(_))
    ));
}

#[tokio::test]
async fn a_chunk_that_cannot_be_read_delays_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    send_hours(&store.series, 1, 2, 1, 600).await;
    number(
        folder.path(),
        "UPDATE chunks SET data = zeroblob(9) WHERE id = (SELECT min(id) + 2 FROM chunks) RETURNING id",
    )
    .await;
    store.series.compact_now(NOW_MS + HOUR).await.unwrap();
    assert_eq!(
        number(folder.path(), "SELECT count(*) FROM chunks WHERE level < 0").await,
        1
    );
    assert_eq!(
        number(folder.path(), "SELECT count(*) FROM chunks WHERE level = 0").await,
        0
    );
    assert_eq!(samples_in_chunks(folder.path()).await, 2 * 3_600);
    let other = selection(&[("__name__", MatchOp::Equal, "metric_1")], i64::MIN, i64::MAX);
    assert_eq!(read(&store.series, &other).await[0].1.len(), 3_600);
}

/// A merge counts the samples itself. A wrong count in one row must not stop the merges of all groups.
#[tokio::test]
async fn a_chunk_row_with_a_negative_count_delays_no_merge() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    send_hours(&store.series, 1, 2, 1, 600).await;
    number(
        folder.path(),
        "UPDATE chunks SET samples = -samples WHERE id = (SELECT min(id) FROM chunks) RETURNING samples",
    )
    .await;
    store.series.compact_now(NOW_MS + HOUR).await.unwrap();
    assert_eq!(chunks(folder.path()).await, 2);
    assert_eq!(samples_in_chunks(folder.path()).await, 2 * 3_600);
}

// === against a map ===

#[derive(Debug, Clone)]
enum Step {
    /// Series by index; minutes before now; the interval of the times; values, series-major.
    Append {
        series: Vec<usize>,
        minutes_ago: i64,
        tick_ms: i64,
        values: Vec<f64>,
    },
    Seal,
    Compact,
    Restart,
    /// Deletes a node's samples; `from` and `to` in minutes before now.
    Delete {
        node: &'static str,
        from: i64,
        to: i64,
    },
    /// Four hours pass, and all earlier samples are rolled up.
    Age,
}

const NODES: [&str; 2] = ["a", "b"];
const GPUS: usize = 3;

fn name(number: usize) -> Labels {
    gpu("power", NODES[number % NODES.len()], number / NODES.len())
}

fn step() -> impl Strategy<Value = Step> {
    let count = NODES.len() * GPUS;
    let series = proptest::sample::subsequence((0..count).collect::<Vec<_>>(), 1..=count);
    let value = prop_oneof![
        8 => (0..2_000_i32).prop_map(|n| f64::from(n) / 10.0),
        1 => Just(STALE),
        2 => Just(ABSENT),
        1 => any::<u64>().prop_map(f64::from_bits),
    ];
    let appended = (
        series,
        0..60_i64,
        prop_oneof![Just(SECOND), Just(7_001)],
        1..30_usize,
    )
        .prop_flat_map(move |(series, minutes_ago, tick_ms, ticks)| {
            let values = proptest::collection::vec(value.clone(), series.len() * ticks);
            (Just(series), Just(minutes_ago), Just(tick_ms), values)
        })
        .prop_map(|(series, minutes_ago, tick_ms, values)| Step::Append {
            series,
            minutes_ago,
            tick_ms,
            values,
        });
    let deleted =
        (proptest::sample::select(&NODES), 0..400_i64, 0..400_i64).prop_map(|(node, a, b)| Step::Delete {
            node,
            from: a.max(b),
            to: a.min(b),
        });
    prop_oneof![
        10 => appended,
        4 => Just(Step::Seal),
        3 => Just(Step::Compact),
        1 => Just(Step::Restart),
        2 => deleted,
        1 => Just(Step::Age),
    ]
}

/// The samples; and of rolled-up samples the last one of each minute, at the end of the minute.
#[derive(Debug, Default)]
struct Model {
    samples: BTreeMap<Labels, BTreeMap<i64, u64>>,
    minutes: BTreeMap<Labels, BTreeMap<i64, u64>>,
}

impl Model {
    fn age(&mut self) {
        for (labels, samples) in std::mem::take(&mut self.samples) {
            let minutes = self.minutes.entry(labels).or_default();
            minutes.extend(
                samples
                    .into_iter()
                    .map(|(time_ms, bits)| (time_ms - time_ms.rem_euclid(MINUTE) + MINUTE - 1, bits)),
            );
        }
    }

    fn delete(&mut self, node: &str, start_ms: i64, end_ms: i64) {
        let of_node = |labels: &Labels| labels.get("node") == Some(node);
        for (_, samples) in self.samples.iter_mut().filter(|(labels, _)| of_node(labels)) {
            samples.retain(|time_ms, _| !(start_ms..=end_ms).contains(time_ms));
        }
        for (_, minutes) in self.minutes.iter_mut().filter(|(labels, _)| of_node(labels)) {
            minutes.retain(|last_ms, _| *last_ms < start_ms || *last_ms - MINUTE + 1 > end_ms);
        }
    }

    fn all(&self) -> Vec<(Labels, Vec<(i64, u64)>)> {
        let mut all: BTreeMap<Labels, BTreeMap<i64, u64>> = self.minutes.clone();
        for (labels, samples) in &self.samples {
            all.entry(labels.clone()).or_default().extend(samples);
        }
        let series = all.into_iter().filter(|(_, samples)| !samples.is_empty());
        series
            .map(|(labels, samples)| (labels, samples.into_iter().collect()))
            .collect()
    }
}

async fn run(steps: Vec<Step>) {
    let folder = tempfile::tempdir().unwrap();
    let config = StoreConfig {
        retention_ms: 2 * HOUR,
        ..config(folder.path())
    };
    let mut store = Store::open(config.clone()).await.unwrap();
    let (mut model, mut now_ms) = (Model::default(), NOW_MS);
    for step in steps {
        match step {
            Step::Append {
                series,
                minutes_ago,
                tick_ms,
                values,
            } => {
                let ids: Vec<_> = series
                    .iter()
                    .map(|n| store.series.resolve(&name(*n)).unwrap())
                    .collect();
                let ticks = values.len() / series.len();
                let times: Vec<i64> = (0..ticks as i64)
                    .map(|n| now_ms - minutes_ago * MINUTE + n * tick_ms)
                    .collect();
                for (n, row) in series.iter().zip(values.chunks(ticks)) {
                    let samples = model.samples.entry(name(*n)).or_default();
                    for (time_ms, value) in times.iter().zip(row).filter(|(_, value)| !is_absent(**value)) {
                        samples.entry(*time_ms).or_insert(value.to_bits());
                    }
                }
                store
                    .series
                    .append(append(&store.series, &ids, &times, &values), now_ms)
                    .await
                    .unwrap();
            }
            Step::Seal => store.series.seal_now().await.unwrap(),
            Step::Compact => store.series.compact_now(now_ms).await.unwrap(),
            Step::Restart => {
                drop(store);
                store = Store::open(config.clone()).await.unwrap();
            }
            Step::Delete { node, from, to } => {
                let (start_ms, end_ms) = (now_ms - from * MINUTE, now_ms - to * MINUTE);
                let sets = [matching(&[("node", MatchOp::Equal, node)])];
                store
                    .series
                    .delete(&sets, TimeRange::new(start_ms, end_ms))
                    .await
                    .unwrap();
                model.delete(node, start_ms, end_ms);
            }
            Step::Age => {
                now_ms += 4 * HOUR;
                store.series.seal_now().await.unwrap();
                store.series.retain_now(now_ms).await.unwrap();
                model.age();
            }
        }
        assert_eq!(read_all(&store.series).await, model.all());
    }
    store.series.seal_now().await.unwrap();
    store.series.compact_now(now_ms).await.unwrap();
    assert_eq!(read_all(&store.series).await, model.all());
    let samples = model
        .all()
        .iter()
        .map(|(_, samples)| samples.len() as i64)
        .sum::<i64>();
    assert_eq!(samples_in_chunks(folder.path()).await, samples, "each once");
    store.close().await;
    let store = Store::open(config).await.unwrap();
    assert_eq!(read_all(&store.series).await, model.all());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn merged_aged_and_deleted_it_reads_like_a_map(steps in proptest::collection::vec(step(), 1..25)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(run(steps));
    }
}
