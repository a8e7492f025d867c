//! Remote write: what Prometheus sends, and what an attacker might.

use prost::Message;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Server, answer};

// The messages are written down again here, so that a mistake in the collector's own tags cannot cancel itself out.
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
    raw(
        server,
        snap::raw::Encoder::new()
            .compress_vec(&request.encode_to_vec())
            .unwrap(),
    )
    .await
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

    // The same again is no error: senders repeat after a lost answer.
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
    let v2 = server
        .request(Method::POST, "/api/v1/write")
        .header("content-encoding", "snappy")
        .header(
            "content-type",
            "application/x-protobuf;proto=io.prometheus.write.v2.Request",
        )
        .body(compressed);
    assert_eq!(answer(v2).await.0, StatusCode::UNSUPPORTED_MEDIA_TYPE);
}
