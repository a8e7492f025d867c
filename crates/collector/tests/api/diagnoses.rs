//! Diagnoses: their ids, their context, and user actions on them.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Server, answer, until};
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

/// Writes the current power of two GPUs of a run.
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

/// Waits until this number of diagnoses is listed.
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
async fn a_diagnosis_keeps_its_id_when_it_ends_and_lists_similar_ones() {
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
async fn changes_before_a_diagnosis_are_listed() {
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

#[tokio::test(flavor = "multi_thread")]
async fn people_take_a_diagnosis_on_and_write_on_it() {
    let server = started(RULES).await;
    let id = fire(&server).await["id"].as_str().unwrap().to_owned();
    let path = format!("/api/diagnoses/{id}");
    let (status, shown) = server
        .post(&format!("{path}/acknowledge"), json!({"note": "mine"}))
        .await;
    assert_eq!(status, StatusCode::OK, "{shown}");
    assert_eq!(shown["diagnosis"]["handling"]["acknowledged"]["note"], "mine");
    let (status, _) = server.post(&format!("{path}/note"), json!({"note": " "})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    server
        .post(&format!("{path}/note"), json!({"note": "new fan"}))
        .await;
    let body = json!({"not_a_problem": true, "note": "a test"});
    server.post(&format!("{path}/note"), body).await;

    let handling = &listed(&server, "", 1).await[0]["handling"];
    assert_eq!(handling["not_a_problem"]["note"], "a test", "{handling}");
    assert_eq!(handling["notes"], 1);
    server
        .post(&format!("{path}/acknowledge"), json!({"release": true}))
        .await;
    end(&server).await;
    let ended = listed(&server, "?state=resolved", 1).await.remove(0);
    assert_eq!(ended["handling"]["acknowledged"], Value::Null, "{ended}");
    let (_, shown) = server.get(&path).await;
    let kinds: Vec<_> = shown["timeline"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| &entry["kind"])
        .collect();
    assert_eq!(kinds, ["acknowledged", "note", "not_a_problem", "released"]);
    let (_, audit) = server.get("/api/audit").await;
    assert_eq!(audit[0]["what"], "diagnosis_release", "{audit}");
    assert_eq!(audit[0]["target"], id.as_str());
}

/// Creates a receiver that is down: notifications for it wait, and are counted.
async fn absent_receiver(server: &Server) {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", gone.local_addr().unwrap());
    let (status, body) = server.post("/api/webhooks", json!({ "url": url })).await;
    assert_eq!(status, StatusCode::CREATED, "{body}");
}

async fn waiting(server: &Server) -> i64 {
    let (_, hooks) = server.get("/api/webhooks").await;
    hooks[0]["pending"].as_i64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silenced_alert_is_shown_and_not_sent_until_its_silence_ends() {
    let server = started(RULES).await;
    absent_receiver(&server).await;
    let silence = json!({
        "matchers": [{"name": "node", "value": "n.*", "isRegex": true}], "for_s": 3600, "comment": "new fans",
    });
    let (status, made) = server.post("/api/silences", silence).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let firing = fire(&server).await;
    assert_eq!(firing["handling"]["silenced_until_ms"], made["ends_ms"]);
    assert_eq!(waiting(&server).await, 0, "nothing is sent");
    let (_, all) = server.get("/api/silences").await;
    assert_eq!(all[0]["matches_now"], json!([firing["id"]]), "{all}");

    let path = format!("/api/silences/{}", made["id"].as_str().unwrap());
    let (status, _) = answer(server.request(Method::DELETE, &path)).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    until("the alert to be sent", async || {
        (waiting(&server).await == 1).then_some(())
    })
    .await;
    let (_, all) = server.get("/api/silences").await;
    assert_eq!(all[0]["state"], "expired", "the list still shows who made it");
    let (status, _) = answer(server.request(Method::DELETE, &path)).await;
    assert_eq!(status, StatusCode::CONFLICT);
}

#[tokio::test(flavor = "multi_thread")]
async fn silencing_a_diagnosis_cancels_notifications_that_no_receiver_got() {
    let server = started(RULES).await;
    absent_receiver(&server).await;
    let firing = fire(&server).await;
    until("the alert to wait", async || {
        (waiting(&server).await == 1).then_some(())
    })
    .await;
    let path = format!("/api/diagnoses/{}/silence", firing["id"].as_str().unwrap());
    let (status, _) = server.post(&path, json!({"comment": "no end"})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let (status, made) = server.post(&path, json!({"for_s": 60, "comment": "known"})).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let names: Vec<_> = made["matchers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["name"])
        .collect();
    assert_eq!(names, ["alertname", "gpu", "node", "run", "severity"]);
    let (_, shown) = server
        .get(&format!("/api/diagnoses/{}", firing["id"].as_str().unwrap()))
        .await;
    assert_eq!(
        shown["diagnosis"]["handling"]["silenced_until_ms"],
        made["ends_ms"]
    );
    assert_eq!(shown["timeline"][0]["kind"], "silenced");
    until("the message to be taken back", async || {
        (waiting(&server).await == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silence_with_a_bad_expression_is_refused() {
    let server = Server::start().await;
    let silence = json!({
        "matchers": [{"name": "node", "value": "(", "is_regex": true}], "for_s": 60, "comment": "x",
    });
    let (status, body) = server.post("/api/silences", silence).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{body}");
    assert_eq!(body["errors"][0]["field"], "matchers");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_is_a_file_with_the_diagnosis_its_values_and_its_events() {
    let server = started(RULES).await;
    let firing = fire(&server).await;
    let id = firing["id"].as_str().unwrap();
    let path = format!("/api/diagnoses/{id}/bundle");
    let response = server.request(Method::GET, &path).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(
        response.headers()["content-disposition"],
        format!("attachment; filename=\"lockstep-diagnosis-{id}.json\"")
    );
    let bundle: Value = response.json().await.unwrap();
    assert_eq!(bundle["diagnosis"]["diagnosis"]["id"], id, "{bundle}");
    let values = &bundle["chart_values"][0];
    assert_eq!(values["query"], "power");
    let series = values["series"].as_array().unwrap();
    assert_eq!(series.len(), 2, "{values}");
    assert_eq!(series[0]["metric"]["gpu"], "0", "the culprit is first: {values}");
    assert_eq!(series[0]["values"].as_array().unwrap().last().unwrap()[1], "300");
    assert!(
        bundle["events"].is_array() && bundle["made_ms"].is_i64(),
        "{bundle}"
    );
    assert!(bundle["findings"].is_object(), "it has a run: {bundle}");

    let (status, _) = server.get("/api/diagnoses/none-1/bundle").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}
