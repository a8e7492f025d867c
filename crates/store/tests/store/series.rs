//! Tests appending and reading, sample by sample.

use std::sync::Arc;

use domain::series::{ABSENT, Budget, MatchOp, STALE, SelectError, Selection, SeriesSource};
use domain::time::TimeRange;
use store::series::{AppendError, Appended};
use store::{OpenError, Store, StoreConfig};

use crate::harness::{
    NOW_MS, append, config, gpu, labels, open, read, read_all, read_cached, samples_in_chunks, selection,
};

fn nan(payload: u64) -> f64 {
    f64::from_bits(0x7ff8_0000_0000_0000 | payload)
}

#[tokio::test]
async fn every_bit_survives_memory_chunk_and_restart() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let id = store.series.resolve(&gpu("power", "a", 0)).unwrap();
    let values = [1.5, -0.0, STALE, nan(7), f64::INFINITY, ABSENT, 5e-324];
    let times: Vec<i64> = (0..7).map(|n| NOW_MS + n * 1_000).collect();
    let done = store
        .series
        .append(append(&store.series, &[id], &times, &values), NOW_MS)
        .await
        .unwrap();
    assert_eq!(
        done,
        Appended {
            accepted: 6,
            ..Appended::default()
        }
    );
    let there = values
        .iter()
        .zip(&times)
        .filter(|(value, _)| value.to_bits() != ABSENT.to_bits());
    let expected: Vec<_> = there
        .map(|(value, time_ms)| (*time_ms, value.to_bits()))
        .collect();
    let check = async |store: &Store| {
        assert_eq!(
            read_all(&store.series).await,
            [(gpu("power", "a", 0), expected.clone())]
        );
    };
    check(&store).await;
    store.series.seal_now().await.unwrap();
    check(&store).await;
    store.close().await;
    let store = open(folder.path()).await;
    check(&store).await;
    assert_eq!(samples_in_chunks(folder.path()).await, 6);
}

#[tokio::test]
async fn repeats_are_acknowledged_and_not_applied() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let id = store.series.resolve(&gpu("power", "a", 0)).unwrap();
    let sent = |store: &Store, seq, value| {
        let mut append = append(&store.series, &[id], &[NOW_MS], &[value]);
        append.source = Some(("node-a".into(), seq));
        append
    };
    assert_eq!(
        store
            .series
            .append(sent(&store, 1, 1.0), NOW_MS)
            .await
            .unwrap()
            .accepted,
        1
    );
    assert!(
        store
            .series
            .append(sent(&store, 1, 1.0), NOW_MS)
            .await
            .unwrap()
            .already_seen
    );
    assert_eq!(
        store
            .series
            .append(sent(&store, 2, 1.0), NOW_MS)
            .await
            .unwrap()
            .duplicates,
        1
    );
    assert_eq!(
        store
            .series
            .append(sent(&store, 3, 2.0), NOW_MS)
            .await
            .unwrap()
            .conflicts,
        1
    );
    drop(store);
    // Known after a restart from the write-ahead log, and after another restart from the table.
    let store = open(folder.path()).await;
    assert!(
        store
            .series
            .append(sent(&store, 3, 1.0), NOW_MS)
            .await
            .unwrap()
            .already_seen
    );
    store.series.seal_now().await.unwrap();
    assert_eq!(
        store.series.stats().wal_bytes,
        0,
        "all is sealed, so no file of the first life is left"
    );
    drop(store);
    let store = open(folder.path()).await;
    assert!(
        store
            .series
            .append(sent(&store, 3, 1.0), NOW_MS)
            .await
            .unwrap()
            .already_seen
    );
    assert!(
        !store
            .series
            .append(sent(&store, 4, 1.0), NOW_MS)
            .await
            .unwrap()
            .already_seen
    );
}

#[tokio::test]
async fn samples_out_of_the_window_are_reported_and_the_rest_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let id = store.series.resolve(&gpu("power", "a", 0)).unwrap();
    let times = [
        NOW_MS - 2 * 3_600_000,
        NOW_MS - 3_600_000,
        NOW_MS,
        NOW_MS + 3_600_000,
    ];
    let done = store
        .series
        .append(
            append(&store.series, &[id], &times, &[1.0, 2.0, 3.0, 4.0]),
            NOW_MS,
        )
        .await
        .unwrap();
    assert_eq!(
        done,
        Appended {
            accepted: 2,
            too_old: 1,
            too_new: 1,
            ..Appended::default()
        }
    );
    let read = read_all(&store.series).await;
    assert_eq!(
        read[0].1.iter().map(|(time_ms, _)| *time_ms).collect::<Vec<_>>(),
        times[1..3]
    );
}

#[tokio::test]
async fn what_cannot_be_stored_is_refused_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(StoreConfig {
        series_max: 1,
        ..config(folder.path())
    })
    .await
    .unwrap();
    let id = store.series.resolve(&gpu("power", "a", 0)).unwrap();
    assert!(store.series.resolve(&gpu("power", "a", 1)).is_err());
    assert!(matches!(
        store.series.shape(vec![id, store::series::SeriesId(99)]),
        Err(AppendError::UnknownSeries(_))
    ));
    let short = append(&store.series, &[id], &[NOW_MS], &[]);
    assert!(matches!(
        store.series.append(short, NOW_MS).await,
        Err(AppendError::Malformed(_))
    ));
    let mut long = append(&store.series, &[id], &[NOW_MS], &[1.0]);
    long.source = Some(("x".repeat(65), 1));
    assert!(matches!(
        store.series.append(long, NOW_MS).await,
        Err(AppendError::Session)
    ));
    assert!(read_all(&store.series).await.is_empty());
}

#[tokio::test]
async fn a_disk_that_fails_is_reported_and_the_store_recovers() {
    let folder = tempfile::tempdir().unwrap();
    // Every batch starts a new file, and a folder has the name of the second file.
    let config = StoreConfig {
        wal_file_bytes: 1,
        ..config(folder.path())
    };
    let store = Store::open(config).await.unwrap();
    std::fs::create_dir(folder.path().join("wal-000002.db")).unwrap();
    let id = store.series.resolve(&gpu("power", "a", 0)).unwrap();
    let at = |n: i64| append(&store.series, &[id], &[NOW_MS + n], &[n as f64]);
    store.series.append(at(1), NOW_MS).await.unwrap();
    assert!(matches!(
        store.series.append(at(2), NOW_MS).await,
        Err(AppendError::Write(_))
    ));
    assert_eq!(
        read_all(&store.series).await[0].1.len(),
        1,
        "readable, and without what was refused"
    );
    store.series.append(at(3), NOW_MS).await.unwrap();
    assert_eq!(read_all(&store.series).await[0].1.len(), 2);
    assert_eq!(store.series.stats().appends_failed_total, 1);
}

#[tokio::test]
async fn series_that_tick_together_share_their_axis() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let names = [
        gpu("power", "a", 0),
        gpu("power", "a", 1),
        gpu("temperature", "a", 0),
        gpu("power", "b", 0),
    ];
    let ids = names.map(|labels| store.series.resolve(&labels).unwrap());
    for tick in 0..600 {
        let time_ms = NOW_MS + tick * 1_000;
        store
            .series
            .append(
                append(&store.series, &ids, &[time_ms], &[1.0, 2.0, 3.0, 4.0]),
                time_ms,
            )
            .await
            .unwrap();
        if tick % 250 == 100 {
            store.series.seal_now().await.unwrap();
        }
    }
    let selection = selection(
        &[("node", MatchOp::Regex, "a|b")],
        NOW_MS + 50_000,
        NOW_MS + 599_000,
    );
    let budget = Budget::unlimited();
    let prefetched = store
        .series
        .prefetch(std::slice::from_ref(&selection), &budget)
        .await
        .unwrap();
    let series = prefetched.select(&selection, &budget).unwrap().series;
    assert_eq!(series.len(), 4);
    assert!(
        series
            .windows(2)
            .all(|pair| Arc::ptr_eq(&pair[0].times_ms, &pair[1].times_ms))
    );
    assert!(series.windows(2).all(|pair| pair[0].labels < pair[1].labels));
    assert_eq!(series[0].times_ms.len(), 550);
}

#[tokio::test]
async fn a_query_pays_before_it_reads() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let id = store.series.resolve(&gpu("power", "a", 0)).unwrap();
    let times: Vec<i64> = (0..100).map(|n| NOW_MS + n).collect();
    store
        .series
        .append(append(&store.series, &[id], &times, &[1.0; 100]), NOW_MS)
        .await
        .unwrap();
    let all = selection(&[("__name__", MatchOp::Equal, "power")], i64::MIN, i64::MAX);
    let cost = async |samples, series| {
        store
            .series
            .prefetch(std::slice::from_ref(&all), &Budget::new(samples, series))
            .await
            .map(drop)
    };
    assert!(cost(100, 1).await.is_ok());
    assert!(matches!(cost(99, 1).await, Err(SelectError::Budget(_))));
    assert!(matches!(cost(100, 0).await, Err(SelectError::Budget(_))));
    store.close().await;
    let store = open(folder.path()).await;
    store.series.seal_now().await.unwrap();
    store.close().await;
    let store = open(folder.path()).await;
    let poor = store
        .series
        .prefetch(std::slice::from_ref(&all), &Budget::new(99, 1))
        .await;
    assert!(
        matches!(poor, Err(SelectError::Budget(_))),
        "chunks cost as much as memory"
    );
}

#[tokio::test]
async fn a_small_selection_in_memory_is_read_without_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let names = (0..40).map(|gpu_number| gpu("power", if gpu_number < 16 { "a" } else { "b" }, gpu_number));
    let ids: Vec<_> = names
        .map(|labels| store.series.resolve(&labels).unwrap())
        .collect();
    let sent = append(&store.series, &ids, &[NOW_MS], &[7.0; 40]);
    store.series.append(sent, NOW_MS).await.unwrap();
    let of = |op: MatchOp, node: &str| selection(&[("node", op, node)], NOW_MS - 1_000, NOW_MS);
    let (few, many) = (of(MatchOp::Equal, "a"), of(MatchOp::Equal, "b"));
    let is_known = |store: &Store, selection: &Selection, samples| {
        read_cached(&store.series, selection, samples).map(|read| read.len())
    };
    assert_eq!(is_known(&store, &few, 1_000), Some(16));
    assert_eq!(is_known(&store, &few, 7), None, "more than it may cost");
    assert_eq!(is_known(&store, &many, 1_000), None, "too many");
    assert_eq!(is_known(&store, &of(MatchOp::Equal, "c"), 1_000), Some(0));
    assert_eq!(
        is_known(&store, &of(MatchOp::Regex, "a"), 1_000),
        None,
        "an expression may take its time"
    );
    store.series.seal_now().await.unwrap();
    store.close().await;
    let store = open(folder.path()).await;
    assert_eq!(is_known(&store, &few, 1_000), None, "it is on disk");
    assert_eq!(read(&store.series, &few).await.len(), 16);
    assert_eq!(is_known(&store, &few, 1_000), Some(16));
    let earlier = selection(&[("node", MatchOp::Equal, "a")], NOW_MS - 86_400_000, NOW_MS);
    assert_eq!(
        is_known(&store, &earlier, 1_000),
        None,
        "of the day before nothing is known"
    );
    store.close().await;
}

#[tokio::test]
async fn names_and_values_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    for labels in [
        gpu("power", "a", 0),
        gpu("power", "b", 0),
        labels(&[("__name__", "up"), ("job", "x")]),
    ] {
        let id = store.series.resolve(&labels).unwrap();
        store
            .series
            .append(append(&store.series, &[id], &[NOW_MS], &[1.0]), NOW_MS)
            .await
            .unwrap();
    }
    let power = selection(&[("__name__", MatchOp::Equal, "power")], 0, 0).matchers;
    let range = TimeRange::new(NOW_MS - 1, NOW_MS + 1);
    let series = &store.series;
    assert_eq!(
        series.series(std::slice::from_ref(&power), range, 10).unwrap(),
        [gpu("power", "a", 0), gpu("power", "b", 0)]
    );
    assert!(
        series
            .series(
                std::slice::from_ref(&power),
                TimeRange::new(range.end_ms, range.end_ms),
                10
            )
            .unwrap()
            .is_empty(),
        "none in that range"
    );
    assert_eq!(
        series.label_names(&[], range).unwrap(),
        ["__name__", "gpu", "job", "node"]
    );
    assert_eq!(
        series.label_names(std::slice::from_ref(&power), range).unwrap(),
        ["__name__", "gpu", "node"]
    );
    assert_eq!(series.label_values("node", &[], range, 10).unwrap(), ["a", "b"]);
    assert_eq!(series.label_values("node", &[power], range, 1).unwrap(), ["a"]);
    let metadata = store::series::Metadata {
        kind: "gauge".into(),
        help: "Watts.".into(),
    };
    let all = std::collections::BTreeMap::from([("power".to_owned(), metadata)]);
    series.set_metadata_all(&all).await.unwrap();
    store.close().await;
    let store = open(folder.path()).await;
    assert_eq!(store.series.metadata()["power"].help, "Watts.");
}

#[tokio::test]
async fn what_is_too_old_goes_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let without_rollups = || StoreConfig {
        rollup_1m_ms: 0,
        rollup_1h_ms: 0,
        ..config(folder.path())
    };
    let store = Store::open(without_rollups()).await.unwrap();
    let (old, young) = (gpu("power", "gone", 0), gpu("power", "here", 0));
    let ids = [&old, &young].map(|labels| store.series.resolve(labels).unwrap());
    store
        .series
        .append(append(&store.series, &ids[..1], &[NOW_MS], &[1.0]), NOW_MS)
        .await
        .unwrap();
    store.series.seal_now().await.unwrap();
    let later_ms = NOW_MS + 16 * 24 * 3_600_000;
    store
        .series
        .append(append(&store.series, &ids[1..], &[later_ms], &[1.0]), later_ms)
        .await
        .unwrap();
    for _ in 0..2 {
        store.series.retain_now(later_ms).await.unwrap();
    }
    assert_eq!(samples_in_chunks(folder.path()).await, 0);
    assert_eq!(store.series.stats().series, 1);
    drop(store);
    let store = Store::open(without_rollups()).await.unwrap();
    assert_eq!(
        read_all(&store.series)
            .await
            .iter()
            .map(|(labels, _)| labels.clone())
            .collect::<Vec<_>>(),
        [young]
    );
    assert_eq!(store.series.stats().series, 1);
}

#[tokio::test]
async fn a_series_without_samples_is_known_as_long_as_it_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let id = store.series.resolve(&gpu("ecc_errors", "a", 0)).unwrap();
    let sent = append(&store.series, &[id], &[NOW_MS], &[ABSENT]);
    let send = async || store.series.append(sent.clone(), NOW_MS).await;
    for _ in 0..5 {
        assert_eq!(send().await.unwrap(), Appended::default());
        store.series.retain_now(NOW_MS).await.unwrap();
    }
    store.series.retain_now(NOW_MS).await.unwrap();
    assert!(matches!(send().await, Err(AppendError::UnknownSeries(_))));
}

#[tokio::test]
async fn what_cannot_be_sealed_now_is_sealed_later() {
    use sqlx::Connection;
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let id = store.series.resolve(&gpu("power", "a", 0)).unwrap();
    store
        .series
        .append(append(&store.series, &[id], &[NOW_MS], &[1.0]), NOW_MS)
        .await
        .unwrap();
    // Another connection keeps the database locked for longer than the sealer waits.
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(folder.path().join("lockstep.db"));
    let mut other = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
    sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    assert!(matches!(
        store.series.seal_now().await,
        Err(AppendError::Write(_))
    ));
    store
        .series
        .append(append(&store.series, &[id], &[NOW_MS + 1], &[2.0]), NOW_MS)
        .await
        .unwrap();
    assert_eq!(
        read_all(&store.series).await[0].1.len(),
        2,
        "appended to and read all the while"
    );
    sqlx::query("COMMIT").execute(&mut other).await.unwrap();
    store.series.seal_now().await.unwrap();
    assert_eq!(samples_in_chunks(folder.path()).await, 2);
}

#[tokio::test]
async fn one_folder_has_one_store() {
    let folder = tempfile::tempdir().unwrap();
    let _store = open(folder.path()).await;
    assert!(matches!(
        Store::open(config(folder.path())).await,
        Err(OpenError::InUse { .. })
    ));
}

#[tokio::test]
async fn late_samples_are_merged_into_what_is_sealed() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let id = store.series.resolve(&gpu("power", "a", 0)).unwrap();
    let even: Vec<i64> = (0..50).map(|n| NOW_MS + n * 2_000).collect();
    let odd: Vec<i64> = even.iter().map(|time_ms| time_ms + 1_000).collect();
    store
        .series
        .append(append(&store.series, &[id], &even, &[1.0; 50]), NOW_MS)
        .await
        .unwrap();
    store.series.seal_now().await.unwrap();
    store
        .series
        .append(append(&store.series, &[id], &odd, &[2.0; 50]), NOW_MS)
        .await
        .unwrap();
    store
        .series
        .append(append(&store.series, &[id], &even, &[9.0; 50]), NOW_MS)
        .await
        .unwrap();
    let check = async |store: &Store| {
        let samples = read(
            &store.series,
            &selection(&[("gpu", MatchOp::Equal, "0")], NOW_MS, NOW_MS + 9_000),
        )
        .await;
        let values: Vec<f64> = samples[0]
            .1
            .iter()
            .map(|(_, bits)| f64::from_bits(*bits))
            .collect();
        assert_eq!(values, [1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
    };
    check(&store).await;
    store.series.seal_now().await.unwrap();
    check(&store).await;
    store.close().await;
    check(&open(folder.path()).await).await;
}
