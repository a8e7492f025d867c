//! Prometheus' query API as Prometheus' clients use it.

use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::harness::{Server, answer};
use crate::remote_write::{push, series};

/// Two series over ten steps of a second, ending now.
async fn loaded() -> (Server, i64) {
    let server = Server::start().await;
    let end_ms = collector::clock::now_ms() / 1_000 * 1_000;
    let points: Vec<(i64, f64)> = (0..10).map(|n| (end_ms - 9_000 + n * 1_000, n as f64)).collect();
    let request = [
        series(&[("__name__", "load"), ("host", "a")], &points),
        series(&[("__name__", "load"), ("host", "b")], &points),
    ];
    assert_eq!(push(&server, &request).await.0, StatusCode::NO_CONTENT);
    (server, end_ms)
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_are_answered_by_get_and_form() {
    let (server, end_ms) = loaded().await;
    let seconds = |ms: i64| format!("{}", ms as f64 / 1_000.0);
    assert_eq!(
        server.query("sum(load)", end_ms).await,
        [(json!({}), "18".to_owned())]
    );

    let form = [
        ("query", "load{host=\"a\"}"),
        ("start", &seconds(end_ms - 2_000)),
        ("end", &seconds(end_ms)),
        ("step", "1s"),
    ];
    let (status, body) = answer(server.request(Method::POST, "/api/v1/query_range").form(&form)).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    assert_eq!(body["data"]["resultType"], "matrix");
    let values = body["data"]["result"][0]["values"].as_array().unwrap();
    assert_eq!(
        values
            .iter()
            .map(|point| point[1].as_str().unwrap())
            .collect::<Vec<_>>(),
        ["7", "8", "9"]
    );
    assert_eq!(values[0][0].as_f64().unwrap(), (end_ms - 2_000) as f64 / 1_000.0);

    let at = jiff::Timestamp::from_millisecond(end_ms - 1_000)
        .unwrap()
        .to_string();
    let (_, body) = answer(
        server
            .request(Method::GET, "/api/v1/query")
            .query(&[("query", "max(load)"), ("time", &at)]),
    )
    .await;
    assert_eq!(body["data"]["result"][0]["value"][1], "8");
    let (_, body) = server.get("/api/v1/query?query=1%2B1").await;
    assert_eq!(
        (&body["data"]["resultType"], &body["data"]["result"][1]),
        (&json!("scalar"), &json!("2"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_values_are_listed() {
    let (server, end_ms) = loaded().await;
    let (_, body) = server.get("/api/v1/labels").await;
    assert_eq!(body["data"], json!(["__name__", "host"]));
    let (_, body) = server
        .get("/api/v1/label/host/values?match[]=load%7Bhost!=%22a%22%7D")
        .await;
    assert_eq!(body["data"], json!(["b"]));
    let (_, body) = server.get("/api/v1/series?match[]=load&limit=1").await;
    assert_eq!(body["data"], json!([{ "__name__": "load", "host": "a" }]));
    let long_ago = format!("/api/v1/series?match[]=load&end={}", end_ms / 1_000 - 86_400);
    assert_eq!(server.get(&long_ago).await.1["data"], json!([]));
    let (_, body) = server.get("/api/v1/metadata?metric=gpu_power_watts").await;
    assert_eq!(body["data"]["gpu_power_watts"][0]["type"], "gauge");
    assert_eq!(
        server.get("/api/v1/status/buildinfo").await.1["data"]["version"],
        env!("CARGO_PKG_VERSION")
    );
    let (_, body) = server.get("/api/v1/rules").await;
    assert!(
        !body["data"]["groups"][0]["rules"].as_array().unwrap().is_empty(),
        "{body}"
    );
    assert_eq!(server.get("/api/v1/alerts").await.0, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_are_told_in_prometheus_form() {
    let (server, _) = loaded().await;
    let deep = format!("{}1{}", "(".repeat(8_000), ")".repeat(8_000));
    let long = format!("/api/v1/query?query={deep}");
    for (path, status, kind) in [
        ("/api/v1/query", StatusCode::BAD_REQUEST, "bad_data"),
        ("/api/v1/query?query=sum(", StatusCode::BAD_REQUEST, "bad_data"),
        (
            "/api/v1/query?query=up&time=yesterday",
            StatusCode::BAD_REQUEST,
            "bad_data",
        ),
        (&long, StatusCode::BAD_REQUEST, "bad_data"),
        (
            "/api/v1/query?query=load%20*%20on()%20load",
            StatusCode::UNPROCESSABLE_ENTITY,
            "execution",
        ),
        (
            "/api/v1/query_range?query=up&start=0&end=10",
            StatusCode::BAD_REQUEST,
            "bad_data",
        ),
        (
            "/api/v1/query_range?query=up&start=0&end=10&step=0",
            StatusCode::BAD_REQUEST,
            "bad_data",
        ),
        (
            "/api/v1/query_range?query=up&start=10&end=0&step=1",
            StatusCode::BAD_REQUEST,
            "bad_data",
        ),
        (
            "/api/v1/query_range?query=up&start=0&end=100000&step=1",
            StatusCode::BAD_REQUEST,
            "bad_data",
        ),
        (
            "/api/v1/query_range?query=up&start=-1e15&end=1e15&step=1",
            StatusCode::BAD_REQUEST,
            "bad_data",
        ),
        (
            "/api/v1/query?query=%7Ba=~%22(((a%7B100%7D)%7B100%7D)%7B100%7D)%22,b=%22c%22%7D",
            StatusCode::BAD_REQUEST,
            "bad_data",
        ),
        ("/api/v1/series", StatusCode::BAD_REQUEST, "bad_data"),
        (
            "/api/v1/series?match[]=rate(x[5m])",
            StatusCode::BAD_REQUEST,
            "bad_data",
        ),
        ("/api/v1/label/a-b/values", StatusCode::BAD_REQUEST, "bad_data"),
    ] {
        let (got, body) = server.get(path).await;
        let shown: String = path.chars().take(100).collect();
        assert_eq!(
            (got, &body["status"], &body["errorType"]),
            (status, &json!("error"), &json!(kind)),
            "{shown}: {body}"
        );
        assert!(!body["error"].as_str().unwrap().is_empty(), "{shown}");
    }
}
