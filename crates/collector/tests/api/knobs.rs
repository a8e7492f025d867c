//! Knobs of runs over HTTP: what is refused, what is so already, and what becomes another attempt.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Server, answer};
use crate::runs::submit;

async fn post(server: &Server, run: &str, what: &str, body: Value) -> (StatusCode, Value) {
    let request = server.request(Method::POST, &format!("/api/runs/{run}/{what}"));
    answer(request.json(&body)).await
}

fn attempts(view: &Value) -> Vec<(String, Value)> {
    let attempts = view["attempts"].as_array().unwrap().iter();
    attempts
        .map(|attempt| {
            (
                attempt["cause"].as_str().unwrap().to_owned(),
                attempt["knobs"].clone(),
            )
        })
        .collect()
}

#[tokio::test]
async fn what_cannot_be_turned_is_refused_with_the_reason_at_its_field() {
    let server = Server::start().await;
    let run = submit(&server).await;
    for (set, field, words) in [
        (json!({"momentum": "0.9"}), "set.momentum", "there is no knob"),
        (
            json!({"num_workers": "many"}),
            "set.num_workers",
            "a whole number from 0",
        ),
        (json!({}), "set", "at least one"),
    ] {
        let (status, problem) = post(&server, &run, "apply", json!({ "set": set })).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{problem}");
        let error = &problem["errors"][0];
        assert_eq!(error["field"], field);
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
    }
    let (status, problem) = post(&server, &run, "revert", json!({})).await;
    assert_eq!(status, StatusCode::CONFLICT, "{problem}");
    let (status, _) = post(
        &server,
        &run,
        "apply",
        json!({"set": {"amp": "off"}, "expect": 1}),
    )
    .await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "a field that is none");
}

#[tokio::test]
async fn each_change_is_an_attempt_once_and_is_taken_back_once() {
    let server = Server::start().await;
    let run = submit(&server).await;
    let apply = json!({"set": {"num_workers": "02"}, "expected": 1});
    for _ in 0..2 {
        let (status, view) = post(&server, &run, "apply", apply.clone()).await;
        assert_eq!(status, StatusCode::OK, "{view}");
        assert_eq!(
            attempts(&view)[1..],
            [("knob applied".to_owned(), json!({"num_workers": "2"}))]
        );
        let diff = &view["attempts"][1]["change"]["set"][0];
        assert_eq!(diff["how"], json!({"way": "flag", "flag": "--num-workers"}));
    }
    let late = json!({"set": {"num_workers": "4"}, "expected": 1});
    let (status, problem) = post(&server, &run, "apply", late).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(
        problem["detail"].as_str().unwrap().contains("attempt 2"),
        "{problem}"
    );
    for _ in 0..2 {
        let (status, view) = post(&server, &run, "revert", json!({"attempt": 2})).await;
        assert_eq!(status, StatusCode::OK, "{view}");
        assert_eq!(attempts(&view)[2..], [("knob reverted".to_owned(), Value::Null)]);
    }
    let (_, audit) = server.get("/api/audit").await;
    let audited: Vec<&str> = audit
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|line| line["what"].as_str())
        .collect();
    assert_eq!(audited, ["run_revert", "run_apply", "run_submit"], "{audit}");
    let (status, compared) = server
        .get(&format!("/api/runs/compare?a={run}@1&b={run}@2"))
        .await;
    assert_eq!(status, StatusCode::OK, "{compared}");
    let differs = compared["differences"].as_array().unwrap();
    let workers = json!({"what": "knobs.num_workers", "b": "2"});
    assert!(differs.contains(&workers), "{compared}");
    let (status, _) = server.get(&format!("/api/runs/compare?a={run}@9&b={run}")).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}
