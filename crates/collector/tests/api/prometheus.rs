//! Prometheus' query API as Prometheus' clients use it.

use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::harness::{Server, answer};
use crate::remote_write::{push, series};

/// Two series over ten steps of one second, ending now.
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
async fn errors_have_prometheus_form() {
    let (server, _) = loaded().await;
    let deep = format!("{}1{}", "(".repeat(3_500), ")".repeat(3_500));
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

/// Error texts, in Prometheus' own words where clients may look for them.
#[tokio::test(flavor = "multi_thread")]
async fn mistakes_have_prometheus_words() {
    let (server, _) = loaded().await;
    for (path, words) in [
        (
            "query",
            "invalid parameter \"query\": parse error: no expression found in input",
        ),
        (
            "query?query=sum(",
            "invalid parameter \"query\": parse error: unclosed left parenthesis",
        ),
        (
            "query?query=up&time=soon",
            "invalid parameter \"time\": cannot parse \"soon\" to a valid timestamp",
        ),
        (
            "query?query=up&timeout=soon",
            "invalid parameter \"timeout\": cannot parse \"soon\" to a valid duration",
        ),
        (
            "query?query=up&limit=-1",
            "invalid parameter \"limit\": limit must be non-negative",
        ),
        (
            "query?query=up&limit=x",
            "invalid parameter \"limit\": cannot parse \"x\" to a number",
        ),
        (
            "query_range?query=up",
            "invalid parameter \"start\": cannot parse \"\" to a valid timestamp",
        ),
        (
            "query_range?query=up&start=0&end=1",
            "invalid parameter \"step\": cannot parse \"\" to a valid duration",
        ),
        (
            "query_range?query=up&start=9&end=1&step=1",
            "invalid parameter \"end\": end timestamp must not be before start time",
        ),
        (
            "query_range?query=up&start=0&end=1&step=0",
            "invalid parameter \"step\": zero or negative query resolution step widths are not accepted. Try a positive integer",
        ),
        (
            "query_range?query=up&start=0&end=11001&step=1",
            "exceeded maximum resolution of 11,000 points per timeseries. Try decreasing the query resolution (?step=XX)",
        ),
        (
            "query_range?query=up[5m]&start=0&end=1&step=1",
            "invalid expression type \"range vector\" for range query, must be Scalar or instant Vector",
        ),
        ("series", "no match[] parameter provided"),
        ("metadata?limit=x", "limit must be a number"),
        ("metadata?limit_per_metric=x", "limit_per_metric must be a number"),
        (
            "query_exemplars?query=up&start=2&end=1",
            "end timestamp must not be before start time",
        ),
    ] {
        let (status, body) = server.get(&format!("/api/v1/{path}")).await;
        assert_eq!(
            (status, &body["errorType"]),
            (StatusCode::BAD_REQUEST, &json!("bad_data")),
            "{path}: {body}"
        );
        let error = body["error"].as_str().unwrap();
        assert!(error.contains(words), "{path}: {error}");
    }
    let timeout = server.get("/api/v1/query?query=load&timeout=0").await;
    assert_eq!(
        (timeout.0, &timeout.1["errorType"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("timeout")),
        "{timeout:?}"
    );
    assert!(
        timeout.1["error"]
            .as_str()
            .unwrap()
            .starts_with("query timed out in expression evaluation")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters_mean_what_they_mean_to_prometheus() {
    let (server, end_ms) = loaded().await;
    let later = format!("{}", end_ms as f64 / 1_000.0 + 100.0);
    let ask = async |query: &[(&str, &str)]| {
        let (status, body) = answer(server.request(Method::GET, "/api/v1/query").query(query)).await;
        assert_eq!(status, StatusCode::OK, "{query:?}: {body}");
        body
    };
    let found = |body: &serde_json::Value| body["data"]["result"].as_array().unwrap().len();
    assert_eq!(found(&ask(&[("query", "load"), ("time", &later)]).await), 2);
    let near = ask(&[("query", "load"), ("time", &later), ("lookback_delta", "1m")]).await;
    assert_eq!(found(&near), 0);
    let usual = ask(&[("query", "load"), ("time", &later), ("lookback_delta", "0")]).await;
    assert_eq!(found(&usual), 2);

    let cut = ask(&[("query", "load"), ("limit", "1")]).await;
    assert_eq!(
        (found(&cut), &cut["warnings"]),
        (1, &json!(["results truncated due to limit"]))
    );
    let whole = ask(&[("query", "load"), ("limit", "2")]).await;
    assert_eq!((found(&whole), &whole["warnings"]), (2, &json!(null)));
    assert_eq!(found(&ask(&[("query", "load"), ("limit", "0")]).await), 2);

    let odd = ask(&[("query", "rate(load[10s])")]).await;
    assert!(
        odd["infos"][0]
            .as_str()
            .unwrap()
            .contains("metric might not be a counter"),
        "{odd}"
    );
    let told = ask(&[
        ("query", "sum_over_time(load[10s])"),
        ("time", &(end_ms / 1_000).to_string()),
        ("stats", "all"),
    ])
    .await;
    assert!(
        told["data"]["stats"]["samples"]["totalQueryableSamples"]
            .as_u64()
            .unwrap()
            >= 20,
        "{told}"
    );
    assert!(
        told["data"]["stats"]["timings"]["execTotalTime"]
            .as_f64()
            .unwrap()
            > 0.0
    );

    // The form has priority over the query string.
    let both = server
        .request(Method::POST, "/api/v1/query?query=1&time=5")
        .form(&[("query", "2")]);
    assert_eq!(answer(both).await.1["data"]["result"], json!([5, "2"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_cut_and_names_may_be_escaped() {
    let (server, end_ms) = loaded().await;
    let truncated = json!(["results truncated due to limit"]);
    for (path, data, warnings) in [
        ("labels?limit=1", json!(["__name__"]), &truncated),
        ("labels?limit=2", json!(["__name__", "host"]), &json!(null)),
        ("label/host/values?limit=1", json!(["a"]), &truncated),
        ("label/U__host/values", json!(["a", "b"]), &json!(null)),
        ("label/U__ho_73_t/values", json!(["a", "b"]), &json!(null)),
        ("label/no-such.label/values", json!([]), &json!(null)),
        (
            "series?match[]=load&limit=1",
            json!([{ "__name__": "load", "host": "a" }]),
            &truncated,
        ),
        (
            "query_exemplars?query=load&start=0&end=1",
            json!([]),
            &json!(null),
        ),
        (
            "format_query?query=sum%20by(host)(load)",
            json!("sum by (host) (load)"),
            &json!(null),
        ),
        ("metadata?limit=0", json!({}), &json!(null)),
        ("metadata?metric=none_such", json!({}), &json!(null)),
    ] {
        let (status, body) = server.get(&format!("/api/v1/{path}")).await;
        assert_eq!(
            (status, &body["data"], &body["warnings"]),
            (StatusCode::OK, &data, warnings),
            "{path}: {body}"
        );
    }
    let (_, body) = server.get("/api/v1/metadata?limit=3").await;
    assert_eq!(body["data"].as_object().unwrap().len(), 3);
    let long_ago = format!(
        "/api/v1/series?match[]=load&start=-292273086-05-16T16:47:06Z&end={}",
        end_ms / 1_000
    );
    assert_eq!(server.get(&long_ago).await.1["data"].as_array().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_has_prometheus_fields() {
    let (server, _) = loaded().await;
    let (_, body) = server.get("/api/v1/status/tsdb").await;
    let data = &body["data"];
    assert_eq!(data["headStats"]["numSeries"], 2);
    assert_eq!(data["headStats"]["numLabelPairs"], 3);
    assert_eq!(
        data["seriesCountByMetricName"],
        json!([{ "name": "load", "value": 2 }])
    );
    assert_eq!(
        data["labelValueCountByLabelName"],
        json!([{ "name": "host", "value": 2 }, { "name": "__name__", "value": 1 }])
    );
    assert_eq!(
        data["memoryInBytesByLabelName"][0],
        json!({ "name": "__name__", "value": 8 })
    );
    assert_eq!(
        data["seriesCountByLabelValuePair"][0],
        json!({ "name": "__name__=load", "value": 2 })
    );
    let (_, body) = server.get("/api/v1/status/tsdb?limit=1").await;
    assert_eq!(
        body["data"]["seriesCountByLabelValuePair"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let (_, body) = server.get("/api/v1/status/flags").await;
    assert_eq!(body["data"]["query.max-samples"], "50000000");
    let (_, body) = server.get("/api/v1/status/runtimeinfo").await;
    assert_eq!(body["data"]["storageRetention"], "15d");
    assert!(body["data"]["startTime"].as_str().unwrap().ends_with('Z'));
    let (_, body) = server.get("/api/v1/status/config").await;
    assert!(body["data"]["yaml"].as_str().unwrap().contains("global:"));
}

#[tokio::test(flavor = "multi_thread")]
async fn large_answers_are_compressed_as_the_client_likes() {
    let (server, end_ms) = loaded().await;
    let range = format!(
        "/api/v1/query_range?query=load*1&start={}&end={}&step=0.01",
        end_ms / 1_000 - 9,
        end_ms / 1_000
    );
    let small = "/api/v1/query?query=1";
    for (path, accepted, encoding, begins) in [
        (&*range, "gzip", Some("gzip"), &b"\x1f\x8b"[..]),
        (&range, "zstd, gzip;q=0.5", Some("zstd"), b"\x28\xb5\x2f\xfd"),
        (&range, "identity", None, b"{\"stat"),
        (small, "gzip, zstd", None, b"{\"stat"),
    ] {
        let request = server
            .request(Method::GET, path)
            .header("accept-encoding", accepted);
        let response = request.send().await.unwrap();
        let said = response.headers().get("content-encoding").cloned();
        let body = response.bytes().await.unwrap();
        assert_eq!(
            said.as_ref().map(|said| said.to_str().unwrap()),
            encoding,
            "{path} {accepted}"
        );
        assert!(body.starts_with(begins), "{path} {accepted}: {:?}", &body[..8]);
    }
}
