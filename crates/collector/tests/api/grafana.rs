//! The requests of Grafana's Prometheus data source, from "Save & test" to a panel, and what it expects in the answers.

use domain::api::session::Role;
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Server, answer};
use crate::remote_write::{push, series};

struct Grafana {
    server: Server,
    token: String,
    end_s: i64,
}

impl Grafana {
    async fn start() -> Self {
        let server = Server::start().await;
        let end_s = collector::clock::now_ms() / 1_000;
        let points: Vec<(i64, f64)> = (0..60).map(|n| ((end_s - 59 + n) * 1_000, n as f64)).collect();
        let all = [
            series(
                &[("__name__", "gpu_power_watts"), ("gpu", "0"), ("node", "a")],
                &points,
            ),
            series(
                &[("__name__", "gpu_power_watts"), ("gpu", "1"), ("node", "a")],
                &points,
            ),
        ];
        assert_eq!(push(&server, &all).await.0, StatusCode::NO_CONTENT);
        let token = server.token(Role::Viewer, None).await.token;
        Self { server, token, end_s }
    }

    /// Creates a request as Grafana's server sends it: with the data source's user and password, and accepting compressed answers.
    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.server.anonymous(method, path);
        request
            .basic_auth("grafana", Some(&self.token))
            .header("user-agent", "Grafana/11.3.0")
            .header("x-datasource-uid", "lockstep")
            .header("accept", "*/*")
    }

    async fn get(&self, path: &str, query: &[(&str, &str)]) -> Value {
        self.ok(self.request(Method::GET, path).query(query)).await
    }

    async fn post(&self, path: &str, form: &[(&str, &str)]) -> Value {
        self.ok(self.request(Method::POST, path).form(form)).await
    }

    async fn ok(&self, request: RequestBuilder) -> Value {
        let (status, body) = answer(request).await;
        assert_eq!(
            (status, &body["status"]),
            (StatusCode::OK, &json!("success")),
            "{body}"
        );
        body
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_data_source_is_tested_and_saved() {
    let grafana = Grafana::start().await;
    let now = format!("{}", grafana.end_s);
    let body = grafana
        .post("/api/v1/query", &[("query", "1+1"), ("time", &now)])
        .await;
    assert_eq!(
        body["data"],
        json!({ "resultType": "scalar", "result": [grafana.end_s, "2"] })
    );
    // Heuristics: which application is it, and does it have rules?
    let body = grafana.get("/api/v1/status/buildinfo", &[]).await;
    assert!(
        body["data"]["version"].is_string() && body["data"]["features"].is_null(),
        "{body}"
    );
    let body = grafana.get("/api/v1/rules", &[]).await;
    let group = &body["data"]["groups"][0];
    assert!(group["name"].is_string() && group["file"].is_string(), "{group}");
    let rule = &group["rules"][0];
    for field in ["name", "query", "type", "health", "lastEvaluation"] {
        assert!(rule[field].is_string(), "{field}: {rule}");
    }
    let body = grafana.get("/api/v1/alerts", &[]).await;
    assert!(body["data"]["alerts"].is_array(), "{body}");
    // A wrong password is not an error of the server.
    let wrong = grafana
        .server
        .anonymous(Method::POST, "/api/v1/query")
        .basic_auth("grafana", Some("wrong"));
    assert_eq!(
        answer(wrong.form(&[("query", "1+1")])).await.0,
        StatusCode::UNAUTHORIZED
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_completed() {
    let grafana = Grafana::start().await;
    let (start, end) = ((grafana.end_s - 3_600).to_string(), grafana.end_s.to_string());
    let span = [("start", &*start), ("end", &end)];
    let names = json!(["__name__", "gpu", "node"]);
    assert_eq!(grafana.get("/api/v1/labels", &span).await["data"], names);
    let of_metric = [
        &span[..],
        &[("match[]", "{__name__=\"gpu_power_watts\"}"), ("limit", "40000")],
    ]
    .concat();
    assert_eq!(grafana.post("/api/v1/labels", &of_metric).await["data"], names);
    let body = grafana.get("/api/v1/label/__name__/values", &span).await;
    assert_eq!(body["data"], json!(["gpu_power_watts"]));
    let body = grafana.get("/api/v1/label/gpu/values", &of_metric).await;
    assert_eq!(body["data"], json!(["0", "1"]));
    let first = json!({ "__name__": "gpu_power_watts", "gpu": "0", "node": "a" });
    for body in [
        grafana.get("/api/v1/series", &of_metric).await,
        grafana.post("/api/v1/series", &of_metric).await,
    ] {
        assert_eq!(
            (&body["data"][0], body["data"].as_array().unwrap().len()),
            (&first, 2)
        );
    }
    let body = grafana.get("/api/v1/metadata", &[("limit", "40000")]).await;
    let entry = &body["data"]["gpu_power_watts"][0];
    assert_eq!((&entry["type"], &entry["unit"]), (&json!("gauge"), &json!("")));
    assert!(entry["help"].is_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panel_is_drawn() {
    let grafana = Grafana::start().await;
    let (start, end) = ((grafana.end_s - 30).to_string(), grafana.end_s.to_string());
    let form = [
        ("query", "avg by (gpu) (gpu_power_watts{node=~\"a|b\"})"),
        ("start", &*start),
        ("end", &end),
        ("step", "0.5"),
    ];
    let body = grafana.post("/api/v1/query_range", &form).await;
    assert_eq!(body["data"]["resultType"], "matrix");
    let series = body["data"]["result"].as_array().unwrap();
    assert_eq!(series.len(), 2);
    for one in series {
        assert!(one["metric"].as_object().unwrap().values().all(Value::is_string));
        let values = one["values"].as_array().unwrap();
        assert_eq!(values.len(), 61);
        assert!(
            values
                .iter()
                .all(|point| point[0].is_number() && point[1].is_string()),
            "{one}"
        );
    }
    // For table and stat panels.
    let instant = [("query", "topk(1, gpu_power_watts)"), ("time", &*end)];
    let body = grafana.post("/api/v1/query", &instant).await;
    assert_eq!(
        (
            &body["data"]["resultType"],
            &body["data"]["result"][0]["value"][1]
        ),
        (&json!("vector"), &json!("59"))
    );
    let body = grafana.post("/api/v1/query_exemplars", &form[..3]).await;
    assert_eq!(body["data"], json!([]));

    let compressed = grafana
        .request(Method::POST, "/api/v1/query_range")
        .header("accept-encoding", "gzip");
    let response = compressed.form(&form).send().await.unwrap();
    assert_eq!(response.headers()["content-encoding"], "gzip");
    assert_eq!(response.headers()["content-type"], "application/json");
    assert!(response.bytes().await.unwrap().starts_with(b"\x1f\x8b"));

    // An error is shown under the panel: status, errorType and error.
    let (status, body) = answer(
        grafana
            .request(Method::POST, "/api/v1/query_range")
            .form(&[("query", "avg(")]),
    )
    .await;
    assert_eq!(
        (status, &body["status"], &body["errorType"]),
        (StatusCode::BAD_REQUEST, &json!("error"), &json!("bad_data"))
    );
    assert!(body["error"].is_string());
}
