//! Results from roll-ups: correct where the stored aggregates allow it, and always with a warning.

use reqwest::StatusCode;
use serde_json::Value;

use crate::harness::{Server, config};
use crate::remote_write::{push, series};

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const DAY_MS: i64 = 24 * HOUR_MS;

/// Four whole hours with a sample every 10 s: a gauge that rises from 0 to 359 each hour, and a counter that rises by one per sample.
async fn four_hours() -> (Server, i64) {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.store.out_of_order_ms = 6 * HOUR_MS;
    let server = Server::start_with(folder, config).await;
    let end_ms = collector::clock::now_ms() / HOUR_MS * HOUR_MS;
    let start_ms = end_ms - 4 * HOUR_MS;
    let gauge: Vec<(i64, f64)> = (0..1_440)
        .map(|n| (start_ms + n * 10_000, (n % 360) as f64))
        .collect();
    let counter: Vec<(i64, f64)> = (0..1_440).map(|n| (start_ms + n * 10_000, n as f64)).collect();
    let request = [
        series(&[("__name__", "load")], &gauge),
        series(&[("__name__", "jobs_total")], &counter),
    ];
    assert_eq!(push(&server, &request).await.0, StatusCode::NO_CONTENT);
    (server, start_ms)
}

async fn age(server: &Server, days: i64) {
    let store = &server.running.app.series;
    store.seal_now().await.unwrap();
    store
        .retain_now(collector::clock::now_ms() + days * DAY_MS)
        .await
        .unwrap();
}

async fn ask(server: &Server, query: &str, at_ms: i64) -> (Vec<String>, Vec<String>) {
    let at = (at_ms as f64 / 1_000.0).to_string();
    let request = server
        .request(reqwest::Method::GET, "/api/v1/query")
        .query(&[("query", query), ("time", &at)]);
    let (status, body) = crate::harness::answer(request).await;
    assert_eq!(status, StatusCode::OK, "{query}: {body}");
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let values = list(&body["data"]["result"])
        .iter()
        .map(|one| text(&one["value"][1]))
        .collect();
    (values, list(&body["warnings"]).iter().map(text).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_from_rollups_are_correct_where_possible_and_are_marked() {
    let (server, start_ms) = four_hours().await;
    let three = start_ms + 3 * HOUR_MS - 1;
    let (value, warnings) = ask(&server, "max_over_time(load[2h])", three).await;
    assert_eq!(
        (value, warnings.len()),
        (vec!["359".to_owned()], 0),
        "nothing has aged yet"
    );

    for (days, bucket) in [(16, "1m"), (120, "1h")] {
        age(&server, days).await;
        for (query, expected, says) in [
            (
                "max_over_time(load[2h])",
                "359",
                "max_over_time() is the largest of the buckets' maxima",
            ),
            (
                "min_over_time(load[2h])",
                "0",
                "min_over_time() is the smallest of the buckets' minima",
            ),
            (
                "sum_over_time(load[2h])",
                "129240",
                "sum_over_time() is the sum of the buckets' sums",
            ),
            (
                "avg_over_time(load[2h])",
                "179.5",
                "avg_over_time() is the mean of the buckets' means",
            ),
            ("load", "359", "each value is the last of its bucket"),
            (
                "last_over_time(load[2h])",
                "359",
                "uses the last value of each bucket",
            ),
        ] {
            let (values, warnings) = ask(&server, query, three).await;
            assert_eq!(values, [expected], "{query} by {bucket}");
            assert_eq!(warnings.len(), 1, "{query}: {warnings:?}");
            let begins = format!("samples of load are rolled up into one bucket per {bucket}: ");
            assert!(
                warnings[0].starts_with(&begins) && warnings[0].contains(says),
                "{query}: {warnings:?}"
            );
        }
        let (counted, warnings) = ask(&server, "count_over_time(load[2h])", three).await;
        assert_eq!(counted, [if bucket == "1m" { "120" } else { "2" }]);
        assert!(
            warnings[0].ends_with("count_over_time() counts buckets, not samples"),
            "{warnings:?}"
        );
        let (rate, _) = ask(&server, "rate(jobs_total[3h])", three).await;
        let rate: f64 = rate[0].parse().unwrap();
        assert!((rate - 0.1).abs() < 0.001, "{rate} by {bucket}");
    }

    // Between the ends of hourly buckets, the last one is still the latest value.
    let (values, _) = ask(&server, "load", start_ms + 3 * HOUR_MS + 30 * MINUTE_MS).await;
    assert_eq!(values, ["359"]);
    let (short, warnings) = ask(&server, "rate(jobs_total[5m])", three).await;
    assert!(short.is_empty());
    assert!(
        warnings[0].ends_with("a window of 5m may be too short to contain two, use [2h] or more"),
        "{warnings:?}"
    );
}
