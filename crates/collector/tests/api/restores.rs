//! A backup is restored while nodes hold attempts that began after it: they are left alone until a user decides.

use std::io::Cursor;

use domain::api::runs::RunView;
use domain::run::state::{EndCause, NodeCommand, NodeEnd, NodeReport, RunState};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::harness::{Server, until};
use crate::runs::{Control, credential, run_is, start_ranks, submit, submit_with};
use crate::store::backup;

/// Stops the collector and starts it again on the content of the backup.
async fn restore(server: Server, archive: Vec<u8>) -> Server {
    let Server { running, folder, .. } = server;
    running.shutdown().await;
    let now_ms = collector::clock::now_ms();
    store::restore::restore(Cursor::new(archive), folder.path(), true, now_ms, &|_| ())
        .await
        .unwrap();
    Server::start_in(folder).await
}

fn ended(code: i32) -> NodeReport {
    NodeReport::Ended(NodeEnd {
        code: Some(code),
        cause: EndCause::Finished,
        ..NodeEnd::default()
    })
}

async fn unknown(server: &Server) -> Value {
    server.get("/api/unknown-attempts").await.1
}

async fn until_unknown(server: &Server, count: usize) {
    until("what the node holds to be shown", async || {
        (unknown(server).await.as_array()?.len() == count).then_some(())
    })
    .await;
}

/// A run whose attempt 1 is in the backup, and whose attempt 2 is running.
async fn second_attempt_after_backup(server: &Server, credential: &str) -> (String, Vec<u8>, Control) {
    let run = submit(server).await;
    let mut agent = Control::connect(server, credential, &[]).await;
    start_ranks(server, &mut agent, &run).await;
    let archive = backup(server).await;
    agent.say(&run, 10, ended(1)).await;
    run_is(server, &run, RunState::Failed).await;
    let (status, _) = server
        .post(&format!("/api/runs/{run}/resume"), json!({"from_start": true}))
        .await;
    assert_eq!(status, StatusCode::OK);
    agent.attempt = 2;
    start_ranks(server, &mut agent, &run).await;
    (run, archive, agent)
}

#[tokio::test]
async fn an_attempt_that_began_after_the_backup_is_left_alone_until_it_ends() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let (run, archive, agent) = second_attempt_after_backup(&server, &credential).await;
    drop(agent);
    let server = restore(server, archive).await;

    let mut agent = Control::connect(&server, &credential, &[(&run, 2)]).await;
    agent.attempt = 2;
    // The acknowledgement of a report arrives after every command that was sent before.
    agent.say(&run, 8, NodeReport::Accepted { command: 9 }).await;
    assert!(
        agent.has_no_command(),
        "the attempt that began after the backup is stopped"
    );
    // According to the backup attempt 1 is running, but the node does not have it.
    let view = run_is(&server, &run, RunState::Failed).await;
    assert_eq!(view.attempts.len(), 1, "no other attempt has begun");
    assert_eq!(
        (
            view.unknown_attempts[0].node.as_str(),
            view.unknown_attempts[0].attempt.0
        ),
        ("n1", 2)
    );
    let (_, nodes) = server.get("/api/nodes").await;
    assert_eq!(nodes[0]["unknown_attempts"][0]["run"], run.as_str(), "{nodes}");
    let (status, problem) = server
        .post(&format!("/api/runs/{run}/resume"), json!({"from_start": true}))
        .await;
    assert_eq!(status, StatusCode::CONFLICT, "{problem}");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("node n1 holds attempt 2 of run"), "{detail}");

    // Another run waits, and shows the reason.
    let other = submit(&server).await;
    until("the reason to wait", async || {
        let (_, view) = server.get(&format!("/api/runs/{other}")).await;
        let expected = format!("n1 holds attempt 2 of run {run}");
        view["outcome"]["message"]
            .as_str()?
            .contains(&expected)
            .then_some(())
    })
    .await;

    agent.say(&run, 9, NodeReport::Accepted { command: 9 }).await;
    assert!(agent.has_no_command(), "it is neither stopped nor started again");

    // A restart of the collector changes nothing of this.
    let server = server.restart().await;
    until_unknown(&server, 1).await;
    let mut agent = Control::connect(&server, &credential, &[(&run, 2)]).await;
    agent.attempt = 2;
    agent.say(&run, 10, ended(0)).await;
    until_unknown(&server, 0).await;
    // This is the first command since the restore: nothing was stopped.
    let (prepare, asked) = agent.command().await;
    assert!(matches!(asked, NodeCommand::Prepare { .. }), "{asked:?}");
    assert_eq!(prepare.run, other);
    let (_, events) = server.get("/api/events").await;
    let told = |event: &Value| {
        let message = event["message"].as_str().unwrap_or_default();
        event["run"] == run.as_str() && message.ends_with("has ended: well")
    };
    assert!(events.as_array().unwrap().iter().any(told), "{events}");

    let (status, view) = server
        .post(&format!("/api/runs/{run}/resume"), json!({"from_start": true}))
        .await;
    assert_eq!(status, StatusCode::OK, "{view}");
    let view: RunView = serde_json::from_value(view).unwrap();
    assert!(view.summary.attempt.0 > 2, "a number that was never used");
}

#[tokio::test]
async fn a_user_stops_the_attempts_of_an_unknown_run() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let archive = backup(&server).await;
    let run = submit(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    start_ranks(&server, &mut agent, &run).await;
    drop(agent);
    let server = restore(server, archive).await;
    let mut agent = Control::connect(&server, &credential, &[(&run, 1)]).await;
    until_unknown(&server, 1).await;
    let (status, _) = server.get(&format!("/api/runs/{run}")).await;
    assert_eq!(status, StatusCode::NOT_FOUND);

    let stop = "/api/unknown-attempts/stop";
    let (status, problem) = server.post(stop, json!({"run": "other-1"})).await;
    assert_eq!(status, StatusCode::NOT_FOUND, "{problem}");
    let (status, stopping) = server.post(stop, json!({"run": run, "grace_ms": 7_000})).await;
    assert_eq!((status, &stopping[0]["stopping"]), (StatusCode::OK, &json!(true)));
    let (command, asked) = agent.command().await;
    assert_eq!((command.run.as_str(), command.attempt), (run.as_str(), 1));
    assert_eq!(asked, NodeCommand::Stop { grace_ms: 7_000 });
    let (_, audit) = server.get("/api/audit").await;
    let is_it = |entry: &Value| entry["what"] == "unknown_attempt_stop" && entry["target"] == run.as_str();
    assert!(audit.as_array().unwrap().iter().any(is_it), "{audit}");
    // A node that was disconnected gets the stop when it reconnects.
    drop(agent);
    let mut agent = Control::connect(&server, &credential, &[(&run, 1)]).await;
    let (_, asked) = agent.command().await;
    assert!(matches!(asked, NodeCommand::Stop { .. }), "{asked:?}");
    agent.say(&run, 10, ended(143)).await;
    until_unknown(&server, 0).await;
}

#[tokio::test]
async fn what_a_node_does_not_hold_any_more_does_not_keep_it_from_runs() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let agent = Control::connect(&server, &credential, &[("gone-1", 3)]).await;
    until_unknown(&server, 1).await;
    drop(agent);
    let _agent = Control::connect(&server, &credential, &[]).await;
    until_unknown(&server, 0).await;
}

#[tokio::test]
async fn an_attempt_that_was_queued_in_the_backup_does_not_start_while_another_one_runs() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let run = submit(&server).await;
    let archive = backup(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    start_ranks(&server, &mut agent, &run).await;
    drop(agent);
    let server = restore(server, archive).await;
    let mut agent = Control::connect(&server, &credential, &[(&run, 1)]).await;
    agent.say(&run, 10, NodeReport::Accepted { command: 9 }).await;
    assert!(agent.has_no_command(), "it is stopped or prepared again");
    let view = run_is(&server, &run, RunState::Failed).await;
    assert_eq!(view.summary.outcome.unwrap().cause.as_str(), "unknown_attempt");
}

#[tokio::test]
async fn a_restored_run_waits_until_its_nodes_have_reported_their_attempts() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    // A known node that accepts runs.
    drop(Control::connect(&server, &credential, &[]).await);
    let run = submit_with(&server, json!({"recipe": "ddp", "nodes": 2})).await;
    let archive = backup(&server).await;
    let server = restore(server, archive).await;
    let waits_for = async |what: &str| {
        until(what, async || {
            let (_, view) = server.get(&format!("/api/runs/{run}")).await;
            view["outcome"]["message"].as_str()?.contains(what).then_some(())
        })
        .await;
    };
    waits_for("waits until n1 have reported what they hold").await;
    let _agent = Control::connect(&server, &credential, &[]).await;
    waits_for("waits for 2 nodes").await;
}
