//! Secrets of a run: they reach the ranks, and nothing else.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use domain::api::session::Role;
use domain::run::state::{NodeCommand, NodeReport, Prepared};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{ADMIN, Server, answer};
use crate::runs::{Control, credential};

const VALUE: &str = "hf_0123456789abcdef";

async fn submit(server: &Server, query: &str, spec: &Value) -> (StatusCode, Value) {
    submit_as(server, ADMIN, query, spec).await
}

async fn submit_as(server: &Server, token: &str, query: &str, spec: &Value) -> (StatusCode, Value) {
    let request = server.anonymous(Method::POST, &format!("/api/runs{query}"));
    answer(request.bearer_auth(token).json(spec)).await
}

/// Receives the run's commands as its node would, up to its start.
async fn started(server: &Server, run: &str) -> domain::run::state::Start {
    let mut agent = Control::connect(server, &credential(server).await, &[]).await;
    let (prepare, asked) = agent.command().await;
    assert!(
        !format!("{asked:?} {}", prepare.command_json).contains(VALUE),
        "not needed to prepare"
    );
    agent
        .say(run, 1, NodeReport::Accepted { command: prepare.id })
        .await;
    let prepared = Prepared {
        nproc_default: 1,
        port: 29_500,
        ..Prepared::default()
    };
    agent.say(run, 2, NodeReport::Prepared(prepared)).await;
    match agent.command().await {
        (_, NodeCommand::Start(start)) => *start,
        (_, other) => panic!("a start, not {other:?}"),
    }
}

/// Returns the files in a folder that contain the value.
fn holders(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        if entry.path().is_dir() {
            found.extend(holders(&entry.path()));
        } else if std::fs::read(entry.path())
            .unwrap_or_default()
            .windows(VALUE.len())
            .any(|part| part == VALUE.as_bytes())
        {
            found.push(entry.path().display().to_string());
        }
    }
    found
}

#[tokio::test]
async fn a_value_reaches_the_start_and_is_stored_and_shown_nowhere_else() {
    let server = Server::start().await;
    let spec = json!({
        "recipe": "ddp",
        "env": {"DB_PASSWORD": "visible-to-ranks", "NCCL_DEBUG": "INFO"},
        "secrets": {"HF_TOKEN": VALUE},
    });
    let (status, view) = submit(&server, "", &spec).await;
    assert_eq!(status, StatusCode::CREATED, "{view}");
    let run = view["id"].as_str().unwrap().to_owned();
    assert_eq!(view["spec"]["secrets"]["HF_TOKEN"], "[redacted]");
    assert_eq!(
        view["spec"]["env"],
        json!({"DB_PASSWORD": "[redacted]", "NCCL_DEBUG": "INFO"})
    );
    let start = started(&server, &run).await;
    assert_eq!(start.secrets["HF_TOKEN"].expose(), VALUE);
    assert_eq!(start.spec.env["DB_PASSWORD"], "visible-to-ranks");
    for path in [
        format!("/api/runs/{run}"),
        "/api/runs".into(),
        "/api/events".into(),
        "/api/audit".into(),
    ] {
        let (_, body) = server.get(&path).await;
        assert!(!body.to_string().contains(VALUE), "{path} tells it");
    }
    let holders = holders(server.folder.path());
    assert_eq!(holders.len(), 1, "{holders:?}");
    let mode = std::fs::metadata(&holders[0]).unwrap().permissions().mode() & 0o777;
    assert!(
        holders[0].contains("/secrets/") && mode == 0o600,
        "{holders:?} {mode:o}"
    );
}

#[tokio::test]
async fn a_run_copied_from_a_page_gets_the_values_again() {
    let server = Server::start().await;
    let first =
        json!({"recipe": "ddp", "env": {"DB_PASSWORD": "visible-to-ranks"}, "secrets": {"HF_TOKEN": VALUE}});
    let (_, view) = submit(&server, "", &first).await;
    let (run, copied) = (view["id"].as_str().unwrap(), view["spec"].clone());
    let (status, problem) = submit(&server, "", &copied).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{problem}");
    let (status, again) = submit(&server, &format!("?secrets_from={run}"), &copied).await;
    assert_eq!(status, StatusCode::CREATED, "{again}");
    let (status, _) = answer(server.request(Method::POST, &format!("/api/runs/{run}/stop"))).await;
    assert_eq!(status, StatusCode::OK);
    let start = started(&server, again["id"].as_str().unwrap()).await;
    assert_eq!(start.secrets["HF_TOKEN"].expose(), VALUE);
    assert_eq!(start.spec.env["DB_PASSWORD"], "visible-to-ranks");
}

/// The two operators' tokens have the same note, so their runs show the same owner.
#[tokio::test]
async fn only_the_submitter_and_an_admin_can_reuse_the_values_of_a_run() {
    let server = Server::start().await;
    let (mine, other) = (
        server.token(Role::Operator, None).await.token,
        server.token(Role::Operator, None).await.token,
    );
    let first =
        json!({"recipe": "ddp", "env": {"DB_PASSWORD": "visible-to-ranks"}, "secrets": {"HF_TOKEN": VALUE}});
    let (_, view) = submit_as(&server, &mine, "", &first).await;
    let query = format!("?secrets_from={}", view["id"].as_str().unwrap());
    let own_script = json!({"script": "/srv/own.py", "secrets": {"HF_TOKEN": "[redacted]"}});
    let own_variable = json!({"script": "/srv/own.py", "env": {"DB_PASSWORD": "[redacted]"}});
    for (spec, name) in [(&own_script, "HF_TOKEN"), (&own_variable, "DB_PASSWORD")] {
        let (status, problem) = submit_as(&server, &other, &query, spec).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{problem}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(
            detail.contains(name) && detail.contains("Give the values again"),
            "{detail}"
        );
    }
    let given_again = json!({"recipe": "ddp", "secrets": {"HF_TOKEN": "hf_of_the_other_user"}});
    let (status, copy) = submit_as(&server, &other, &query, &given_again).await;
    assert_eq!(
        status,
        StatusCode::CREATED,
        "it takes no value of the run: {copy}"
    );
    for token in [mine.as_str(), ADMIN] {
        let (status, again) = submit_as(&server, token, &query, &view["spec"]).await;
        assert_eq!(status, StatusCode::CREATED, "{again}");
    }
}

/// A run of a version that did not record the token.
#[tokio::test]
async fn only_an_admin_can_reuse_the_values_of_a_run_without_a_recorded_submitter() {
    let server = Server::start().await;
    let token = server.token(Role::Operator, None).await.token;
    let first = json!({"recipe": "ddp", "secrets": {"HF_TOKEN": VALUE}});
    let (_, view) = submit_as(&server, &token, "", &first).await;
    let run = view["id"].as_str().unwrap();
    let forget = |machine: &mut Value| {
        let recorded = machine.as_object_mut().unwrap().remove("submitted_by");
        assert!(recorded.is_some(), "{machine}");
    };
    let server = server.restarted_with(run, &[], forget).await;
    let query = format!("?secrets_from={run}");
    let (status, problem) = submit_as(&server, &token, &query, &view["spec"]).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{problem}");
    let (status, again) = submit(&server, &query, &view["spec"]).await;
    assert_eq!(status, StatusCode::CREATED, "{again}");
}

#[tokio::test]
async fn what_is_too_short_to_be_hidden_is_refused_without_being_repeated() {
    let server = Server::start().await;
    let (status, problem) = submit(&server, "", &json!({"recipe": "ddp", "secrets": {"PIN": "7391"}})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(problem["errors"][0]["field"], "secrets.PIN");
    assert!(!problem.to_string().contains("7391"), "{problem}");
}
