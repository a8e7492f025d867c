//! `POST /api/runs/check`: a specification that is being written.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Server, answer, until};
use crate::runs::{Control, credential};

async fn check(server: &Server, draft: &Value) -> (StatusCode, Value) {
    answer(server.request(Method::POST, "/api/runs/check").json(draft)).await
}

#[tokio::test]
async fn a_draft_is_converted_and_checked_and_nothing_starts() {
    let server = Server::start().await;
    let spec = json!({"recipe": "ddp", "nodes": 0, "secrets": {"HF_TOKEN": "hf_0123456789"}});
    let (status, checked) = check(&server, &json!({ "spec": spec })).await;
    assert_eq!(status, StatusCode::OK, "{checked}");
    assert_eq!(checked["problems"][0]["field"], "nodes");
    assert!(!checked.to_string().contains("hf_0123456789"), "{checked}");
    let toml = checked["toml"].as_str().unwrap();
    let (status, back) = check(&server, &json!({ "toml": toml })).await;
    assert_eq!(status, StatusCode::OK, "{back}");
    assert_eq!(back["spec"]["recipe"], "ddp");
    assert_eq!(back["problems"][0]["line"], 2, "{toml}");
    assert_eq!(back["settings"][0]["name"], "steps");
    assert!(back["memory"]["peak_bytes"].is_u64(), "{back}");
    let (_, runs) = server.get("/api/runs").await;
    assert_eq!(runs, json!([]));
    let (_, audit) = server.get("/api/audit").await;
    assert!(!audit.to_string().contains("run_check"), "{audit}");
}

#[tokio::test]
async fn a_draft_without_errors_has_the_placement_of_now() {
    let server = Server::start().await;
    let spec = json!({"recipe": "ddp", "nproc_per_node": 3});
    let (_, checked) = check(&server, &json!({ "spec": spec })).await;
    let waits = checked["placement"]["waits"].as_str().unwrap();
    assert!(
        waits.starts_with("waits for 1 nodes: 0 are connected"),
        "{checked}"
    );
    let credential = credential(&server).await;
    let _agent = Control::connect(&server, &credential, &[]).await;
    let placed = until("the node can be chosen", async || {
        let (_, checked) = check(&server, &json!({ "spec": spec })).await;
        let placement = checked["placement"].clone();
        placement["waits"].is_null().then_some(placement)
    })
    .await;
    assert_eq!(placed["nodes"], json!([{"node": "n1", "gpus": 0}]));
    assert_eq!(placed["processes_per_node"], 3);
    let (_, checked) = check(&server, &json!({"spec": {"recipe": "ddp", "nodes": 0}})).await;
    assert!(checked["placement"].is_null(), "{checked}");
    let (_, runs) = server.get("/api/runs").await;
    assert_eq!(runs, json!([]), "nothing was reserved");
}

#[tokio::test]
async fn a_draft_has_one_form_and_a_limit() {
    let server = Server::start().await;
    for draft in [json!({}), json!({"toml": "", "spec": {}}), json!({"tomll": ""})] {
        let (status, problem) = check(&server, &draft).await;
        assert!(status.is_client_error(), "{draft}: {problem}");
    }
    let (status, problem) = check(&server, &json!({ "toml": "#".repeat(256 << 10) })).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{problem}");
    let many: String = (0..5_000).map(|n| format!("unknown{n} = 1\n")).collect();
    let (_, checked) = check(&server, &json!({ "toml": many })).await;
    assert_eq!(checked["problems"].as_array().map(Vec::len), Some(100));
}
