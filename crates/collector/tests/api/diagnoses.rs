//! Diagnoses: their ids, what is known around them, and what people do about them.

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::harness::{Server, until};
use crate::remote_write::{push, series};
use crate::rules::started;

const RULES: &str = "
groups:
  - name: power
    interval: 100ms
    rules:
      - alert: PowerHigh
        expr: power > 100
        labels: { severity: warning }
        annotations:
          summary: '{{ $labels.node }} draws {{ $value }} W'
          cause: Its fan has failed.
          advice: Replace the fan.
          evidence_power_by_gpu: power
          threshold_power_by_gpu: '100'
";

/// Two GPUs of a run, now.
async fn feed(server: &Server, hot: f64) {
    let now_ms = collector::clock::now_ms();
    let of = |gpu, value| {
        let labels = [
            ("__name__", "power"),
            ("gpu", gpu),
            ("node", "n1"),
            ("run", "r-1"),
        ];
        series(&labels, &[(now_ms, value)])
    };
    assert_eq!(
        push(server, &[of("0", hot), of("1", 40.0)]).await.0,
        StatusCode::NO_CONTENT
    );
}

/// Waits until as many diagnoses are listed.
async fn listed(server: &Server, query: &str, count: usize) -> Vec<Value> {
    until(query, async || {
        let (_, all) = server.get(&format!("/api/diagnoses{query}")).await;
        all.as_array().filter(|all| all.len() == count).cloned()
    })
    .await
}

async fn fire(server: &Server) -> Value {
    feed(server, 300.0).await;
    listed(server, "", 1).await.remove(0)
}

async fn end(server: &Server) {
    feed(server, 50.0).await;
    listed(server, "", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_diagnosis_keeps_its_id_when_it_ends_and_knows_those_like_it() {
    let server = started(RULES).await;
    let firing = fire(&server).await;
    assert_eq!(firing["who"], json!({"kind": "gpu", "node": "n1", "gpu": 0}));
    assert_eq!(firing["run"], "r-1");
    assert_eq!(firing["confidence"]["basis"], "threshold");
    let id = firing["id"].as_str().unwrap();
    let (status, shown) = server.get(&format!("/api/diagnoses/{id}")).await;
    assert_eq!(status, StatusCode::OK, "{shown}");
    assert_eq!(shown["diagnosis"]["id"], id);
    assert_eq!(shown["why"], json!(["Its fan has failed."]));
    let chart = &shown["charts"][0];
    assert_eq!(
        (&chart["query"], &chart["threshold"]),
        (&json!("power"), &json!(100.0))
    );
    assert_eq!(chart["culprit"][0]["gpu"], "0");
    assert!(
        chart["start_ms"].as_i64() < firing["active_ms"].as_i64(),
        "{chart}"
    );

    end(&server).await;
    let ended = listed(&server, "?state=resolved&run=r-1", 1).await.remove(0);
    assert_eq!(ended["id"], id);
    assert_eq!(listed(&server, "?state=all&run=other", 0).await, [] as [Value; 0]);

    let again = fire(&server).await;
    assert_ne!(again["id"], id);
    let path = format!("/api/diagnoses/{}", again["id"].as_str().unwrap());
    let (_, shown) = server.get(&path).await;
    assert_eq!(shown["similar"][0]["id"], id, "{shown}");
    assert!(shown["similar"][0]["resolved_ms"].is_i64(), "{shown}");
    assert_eq!(listed(&server, "?state=all", 2).await[0]["id"], again["id"]);

    let server = server.restart().await;
    let (status, _) = server.get(&format!("/api/diagnoses/{id}")).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changed_before_a_diagnosis_is_told() {
    let server = started(RULES).await;
    server
        .running
        .app
        .events
        .audit("ann", "run_apply", "r-1 lr=0.1")
        .await
        .unwrap();
    server
        .running
        .app
        .events
        .audit("ann", "run_apply", "r-2 lr=0.1")
        .await
        .unwrap();
    let firing = fire(&server).await;
    let path = format!("/api/diagnoses/{}", firing["id"].as_str().unwrap());
    let (_, shown) = server.get(&path).await;
    let changes = shown["changed_before"].as_array().unwrap();
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert_eq!(changes[0]["text"], "run apply: r-1 lr=0.1");
    assert_eq!(changes[0]["who"], "ann");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_diagnosis_is_not_found() {
    let server = Server::start().await;
    for id in ["nothing", "abc-1", "..%2F..-1"] {
        let (status, body) = server.get(&format!("/api/diagnoses/{id}")).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{id}: {body}");
    }
}
