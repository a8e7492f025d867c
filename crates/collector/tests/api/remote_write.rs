//! Remote write: requests of Prometheus and of attackers.

use prost::Message;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Server, answer};

// The messages are defined again here, so that a mistake in the collector's tags cannot cancel itself out.
#[derive(Clone, PartialEq, Message)]
struct WriteRequest {
    #[prost(message, repeated, tag = "1")]
    timeseries: Vec<TimeSeries>,
    #[prost(message, repeated, tag = "3")]
    metadata: Vec<Metadata>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TimeSeries {
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

#[derive(Clone, PartialEq, Message)]
struct Metadata {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, tag = "4")]
    help: String,
}

pub(crate) fn series(labels: &[(&str, &str)], points: &[(i64, f64)]) -> TimeSeries {
    let labels = labels
        .iter()
        .map(|(name, value)| Label {
            name: (*name).into(),
            value: (*value).into(),
        })
        .collect();
    TimeSeries {
        labels,
        samples: points
            .iter()
            .map(|(timestamp, value)| Sample {
                value: *value,
                timestamp: *timestamp,
            })
            .collect(),
    }
}

pub(crate) async fn push(server: &Server, series: &[TimeSeries]) -> (StatusCode, Value) {
    send(
        server,
        &WriteRequest {
            timeseries: series.to_vec(),
            metadata: vec![],
        },
    )
    .await
}

async fn send(server: &Server, request: &WriteRequest) -> (StatusCode, Value) {
    raw(server, compressed(request)).await
}

/// Returns the body of a request with these series, for any server that accepts remote write.
pub(crate) fn body(series: &[TimeSeries]) -> Vec<u8> {
    compressed(&WriteRequest {
        timeseries: series.to_vec(),
        metadata: vec![],
    })
}

fn compressed(request: &WriteRequest) -> Vec<u8> {
    let mut encoder = snap::raw::Encoder::new();
    encoder.compress_vec(&request.encode_to_vec()).unwrap()
}

async fn raw(server: &Server, body: Vec<u8>) -> (StatusCode, Value) {
    let request = server
        .request(Method::POST, "/api/v1/write")
        .header("content-encoding", "snappy");
    answer(
        request
            .header("content-type", "application/x-protobuf")
            .body(body),
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn samples_and_metadata_are_kept() {
    let server = Server::start().await;
    let now_ms = collector::clock::now_ms();
    let request = WriteRequest {
        timeseries: vec![series(
            &[("__name__", "up"), ("job", "node")],
            &[(now_ms - 1_000, 1.0), (now_ms, 0.0)],
        )],
        metadata: vec![Metadata {
            kind: 1,
            name: "up_total".into(),
            help: "Ups.".into(),
        }],
    };
    assert_eq!(send(&server, &request).await.0, StatusCode::NO_CONTENT);
    assert_eq!(
        server.query("up", now_ms).await,
        [(json!({ "__name__": "up", "job": "node" }), "0".to_owned())]
    );
    let (_, body) = server.get("/api/v1/metadata?metric=up_total").await;
    assert_eq!(
        body["data"]["up_total"][0],
        json!({ "type": "counter", "help": "Ups.", "unit": "" })
    );

    // Repeating a request is no error: senders repeat after a lost answer.
    assert_eq!(send(&server, &request).await.0, StatusCode::NO_CONTENT);
    let server = server.restart().await;
    assert_eq!(server.query("count_over_time(up[1m])", now_ms).await[0].1, "2");
    assert_eq!(
        server.get("/api/v1/metadata?metric=up_total").await.1["data"]["up_total"][0]["help"],
        "Ups."
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_series_does_not_cost_the_good_ones() {
    let server = Server::start().await;
    let now_ms = collector::clock::now_ms();
    let good = series(&[("__name__", "good")], &[(now_ms, 1.0)]);
    let nameless = series(&[("job", "x")], &[(now_ms, 1.0)]);
    let twice = series(&[("__name__", "x"), ("a", "1"), ("a", "2")], &[(now_ms, 1.0)]);
    let (status, body) = push(&server, &[nameless, good, twice]).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(
        body["error"].as_str().unwrap().contains("1 samples were stored"),
        "{body}"
    );
    assert_eq!(server.query("good", now_ms).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn times_that_cannot_be_are_refused() {
    let server = Server::start().await;
    let now_ms = collector::clock::now_ms();
    let (status, body) = push(
        &server,
        &[series(
            &[("__name__", "x")],
            &[(now_ms + 3_600_000, 1.0), (now_ms - 86_400_000, 1.0)],
        )],
    )
    .await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let error = body["error"].as_str().unwrap();
    assert!(
        error.contains("ahead of the clock") && error.contains("older than"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn bombs_and_rubbish_are_refused() {
    let server = Server::start().await;
    let honest = WriteRequest {
        timeseries: vec![series(&[("__name__", "x")], &[(1, 1.0)])],
        metadata: vec![],
    };
    let compressed = snap::raw::Encoder::new()
        .compress_vec(&honest.encode_to_vec())
        .unwrap();
    let zeros = snap::raw::Encoder::new()
        .compress_vec(&vec![0; 80 << 20])
        .unwrap();
    assert!(zeros.len() < 16 << 20, "the bomb passes the body limit");
    for (what, body, status) in [
        ("a bomb", zeros, StatusCode::PAYLOAD_TOO_LARGE),
        (
            "a lie about the length",
            vec![0xff, 0xff, 0xff, 0xff, 0x0f, 0],
            StatusCode::PAYLOAD_TOO_LARGE,
        ),
        (
            "truncated",
            compressed[..compressed.len() - 3].to_vec(),
            StatusCode::BAD_REQUEST,
        ),
        ("empty", vec![], StatusCode::BAD_REQUEST),
        ("not snappy", b"hello, world".to_vec(), StatusCode::BAD_REQUEST),
        (
            "not protobuf",
            snap::raw::Encoder::new().compress_vec(b"hello, world").unwrap(),
            StatusCode::BAD_REQUEST,
        ),
    ] {
        let (got, answer) = raw(&server, body).await;
        assert_eq!(
            (got, &answer["status"]),
            (status, &json!("error")),
            "{what}: {answer}"
        );
    }
    for (encoding, kind) in [
        ("gzip", "application/x-protobuf"),
        ("snappy", "application/json"),
        (
            "snappy",
            "application/x-protobuf;proto=io.prometheus.write.v3.Request",
        ),
    ] {
        let request = server
            .request(Method::POST, "/api/v1/write")
            .header("content-encoding", encoding)
            .header("content-type", kind)
            .body(compressed.clone());
        let status = answer(request).await.0;
        assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{encoding} {kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_samples_are_recognised_and_stale_markers_stay() {
    let server = Server::start().await;
    let now_ms = collector::clock::now_ms();
    let stale = f64::from_bits(0x7ff0_0000_0000_0002);
    let tick = |time_ms, value| {
        let one = |gpu: &'static str| series(&[("__name__", "power"), ("gpu", gpu)], &[(time_ms, value)]);
        vec![one("0"), one("1"), one("2")]
    };
    for n in 0..5 {
        let (status, body) = push(&server, &tick(now_ms - 5_000 + n * 1_000, n as f64)).await;
        assert_eq!(status, StatusCode::NO_CONTENT, "{body}");
    }
    let count = "sum(count_over_time(power[1m]))";
    assert_eq!(server.query(count, now_ms).await[0].1, "15");
    assert_eq!(server.query("power", now_ms).await.len(), 3);
    // The same sample with another value is rejected, the rest of the request is not.
    let mut again = tick(now_ms - 1_000, 4.0);
    again[1] = series(&[("__name__", "power"), ("gpu", "1")], &[(now_ms - 1_000, 9.0)]);
    again.push(series(&[("__name__", "new")], &[(now_ms - 1_000, 1.0)]));
    let (status, body) = push(&server, &again).await;
    let error = body["error"].as_str().unwrap_or_default();
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(
        error.contains("3 samples were stored")
            && error.contains("1 × samples at a time that has another value"),
        "{error}"
    );
    assert_eq!(
        push(&server, &tick(now_ms, stale)).await.0,
        StatusCode::NO_CONTENT
    );
    assert_eq!(server.query("power", now_ms).await.len(), 0, "ended");
    assert_eq!(server.query("new", now_ms).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_names_an_example() {
    let server = Server::start().await;
    let now_ms = collector::clock::now_ms();
    let old = series(&[("__name__", "old"), ("job", "j")], &[(i64::MIN, 1.0)]);
    let new = series(&[("__name__", "new")], &[(i64::MAX, 1.0), (now_ms, 1.0)]);
    let (status, body) = push(&server, &[old, new, series(&[("a", "b")], &[(now_ms, 1.0)])]).await;
    let error = body["error"].as_str().unwrap_or_default();
    assert_eq!(status, StatusCode::BAD_REQUEST);
    for said in [
        "1 samples were stored",
        r#"old{job="j"}"#,
        "new at 9223372036854775807 ms",
        "has no __name__",
    ] {
        assert!(error.contains(said), "{said:?} is missing: {error}");
    }
    let scrape = server.request(Method::GET, "/metrics").send().await.unwrap();
    let scrape = scrape.text().await.unwrap();
    for reason in ["too_old", "too_new", "series_labels"] {
        let line = format!("lockstep_ingest_refused_total{{reason=\"{reason}\"}} 1");
        assert!(scrape.contains(&line), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_series_that_retention_removed_can_be_written_again() {
    let server = Server::start().await;
    let now_ms = collector::clock::now_ms();
    let tick = |time_ms| {
        let one = |gpu: &'static str| series(&[("__name__", "power"), ("gpu", gpu)], &[(time_ms, 1.0)]);
        [one("0"), one("1")]
    };
    assert_eq!(
        push(&server, &tick(now_ms - 1_000)).await.0,
        StatusCode::NO_CONTENT
    );
    let store = &server.running.app.series;
    let labels = |id| store.labels_of(store::series::SeriesId(id));
    assert!(labels(1).is_some());
    store.seal_now().await.unwrap();
    // Longer than the longest roll-ups.
    for _ in 0..3 {
        store.retain_now(now_ms + 3 * 366 * 86_400_000).await.unwrap();
    }
    assert!(labels(1).is_none(), "forgotten");
    // The collector still has ids that are no longer valid, and detects it.
    let (status, body) = push(&server, &tick(now_ms)).await;
    assert_eq!(status, StatusCode::NO_CONTENT, "{body}");
    assert_eq!(server.query("power", now_ms).await.len(), 2);
}

#[derive(Clone, PartialEq, Message)]
struct Request2 {
    #[prost(string, repeated, tag = "4")]
    symbols: Vec<String>,
    #[prost(message, repeated, tag = "5")]
    timeseries: Vec<TimeSeries2>,
}

#[derive(Clone, PartialEq, Message)]
struct TimeSeries2 {
    #[prost(uint32, repeated, tag = "1")]
    labels_refs: Vec<u32>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
    #[prost(message, optional, tag = "5")]
    metadata: Option<Metadata2>,
}

#[derive(Clone, PartialEq, Message)]
struct Metadata2 {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(uint32, tag = "3")]
    help_ref: u32,
}

#[tokio::test(flavor = "multi_thread")]
async fn version_2_is_accepted_and_reports_what_was_written() {
    let server = Server::start().await;
    let now_ms = collector::clock::now_ms();
    let symbols = ["", "__name__", "up", "job", "node", "Whether it is up."];
    let sample = |timestamp| Sample {
        value: 1.0,
        timestamp,
    };
    let series = |labels_refs: &[u32], samples| TimeSeries2 {
        labels_refs: labels_refs.to_vec(),
        samples,
        metadata: Some(Metadata2 { kind: 2, help_ref: 5 }),
    };
    let mut request = Request2 {
        symbols: symbols.map(String::from).to_vec(),
        timeseries: vec![series(
            &[1, 2, 3, 4],
            vec![sample(now_ms - 1_000), sample(now_ms)],
        )],
    };
    let send = async |request: &Request2| {
        let body = snap::raw::Encoder::new()
            .compress_vec(&request.encode_to_vec())
            .unwrap();
        let response = server
            .request(Method::POST, "/api/v1/write")
            .header("content-encoding", "snappy")
            .header(
                "content-type",
                "application/x-protobuf;proto=io.prometheus.write.v2.Request",
            )
            .body(body);
        let response = response.send().await.unwrap();
        let written = ["samples", "histograms", "exemplars"].map(|what| {
            let name = format!("x-prometheus-remote-write-{what}-written");
            response.headers()[name].to_str().unwrap().to_owned()
        });
        (response.status(), written)
    };
    let written = |samples: &str| [samples, "0", "0"].map(String::from);
    assert_eq!(send(&request).await, (StatusCode::NO_CONTENT, written("2")));
    assert_eq!(
        server.query("up", now_ms).await,
        [(json!({ "__name__": "up", "job": "node" }), "1".to_owned())]
    );
    let (_, body) = server.get("/api/v1/metadata?metric=up").await;
    assert_eq!(
        body["data"]["up"][0],
        json!({ "type": "gauge", "help": "Whether it is up.", "unit": "" })
    );
    request.timeseries.push(series(&[1, 99], vec![sample(now_ms)]));
    assert_eq!(send(&request).await, (StatusCode::BAD_REQUEST, written("2")));
}
