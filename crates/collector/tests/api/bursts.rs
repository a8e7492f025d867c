//! Alerts that request the last minutes of a node's GPUs.

use collector::runs::AgentProcess;
use domain::ident::NodeName;
use reqwest::StatusCode;
use serde_json::json;
use wire::proto::control_down::Message;

use crate::clocks::join;
use crate::harness::DEADLINE;
use crate::remote_write::{push, series};
use crate::rules::{feed, started, until};
use crate::runs::{Control, submit_with};

#[tokio::test]
async fn a_critical_alert_requests_the_burst_of_its_node_only() {
    let server = started(
        "
groups:
  - name: faults
    interval: 100ms
    rules:
      - alert: Broken
        expr: power > 100
        labels: { severity: critical }
      - alert: Warm
        expr: power > 0
        labels: { severity: warning }
      - alert: Elsewhere
        expr: power > 15
        labels: { severity: critical }
        annotations: { burst: 'false' }
",
    )
    .await;
    let node = |name: &str| NodeName::new(name).unwrap();
    let agents = &server.running.app.runs.agents;
    let (_first, mut to_first) = agents.connect(&node("n1"), &AgentProcess::default()).unwrap();
    let (_second, mut to_second) = agents.connect(&node("n2"), &AgentProcess::default()).unwrap();
    feed(&server, [150.0, 10.0, 20.0]).await;
    let told = tokio::time::timeout(DEADLINE, to_first.recv()).await.unwrap();
    assert!(matches!(told, Some(Message::Burst(burst)) if burst.alert == "Broken"));
    until(
        &server,
        "count(ALERTS{alertname=~'Warm|Elsewhere', alertstate='firing'})",
        |found| found.first().is_some_and(|(_, count)| count == "5"),
    )
    .await;
    assert!(to_first.try_recv().is_err() && to_second.try_recv().is_err());
}

#[tokio::test]
async fn a_warning_rule_may_request_a_burst_and_a_node_gets_one_request_per_incident() {
    let server = started(
        "
groups:
  - name: faults
    interval: 100ms
    rules:
      - alert: Warm
        expr: power > 15
        labels: { severity: warning }
        annotations: { burst: 'true' }
      - alert: Broken
        expr: power > 0
        labels: { severity: critical }
",
    )
    .await;
    let node = |name: &str| NodeName::new(name).unwrap();
    let agents = &server.running.app.runs.agents;
    let (_first, mut to_first) = agents.connect(&node("n1"), &AgentProcess::default()).unwrap();
    let (_second, mut to_second) = agents.connect(&node("n2"), &AgentProcess::default()).unwrap();
    feed(&server, [10.0, 10.0, 20.0]).await;
    for to in [&mut to_first, &mut to_second] {
        let told = tokio::time::timeout(DEADLINE, to.recv()).await.unwrap();
        assert!(matches!(told, Some(Message::Burst(_))));
    }
    until(
        &server,
        "count(ALERTS{alertname=~'Warm|Broken', alertstate='firing'})",
        |found| found.first().is_some_and(|(_, count)| count == "4"),
    )
    .await;
    assert!(to_first.try_recv().is_err() && to_second.try_recv().is_err());
}

/// Returns the alert for which a node is asked, when the request arrives.
async fn asked(agent: &mut Control) -> String {
    loop {
        if let Message::Burst(burst) = agent.next().await {
            return burst.alert;
        }
    }
}

#[tokio::test]
async fn an_alert_of_a_run_asks_the_nodes_of_the_run() {
    let server = started(
        "
groups:
  - name: runs
    interval: 100ms
    rules:
      - alert: Stuck
        expr: sum by (run) (stuck) > 0
        labels: { severity: critical }
      - alert: NobodyKnows
        expr: sum(stuck) > 0
        labels: { severity: critical }
",
    )
    .await;
    let mut one = join(&server, "n1", 0).await;
    let mut two = join(&server, "n2", 0).await;
    let spec = json!({"recipe": "ddp", "nodes": 2, "nproc_per_node": 1});
    let run = submit_with(&server, spec).await;
    // Both nodes belong to the run now.
    one.command().await;
    two.command().await;
    let mut other = join(&server, "n3", 0).await;

    let labels = [("__name__", "stuck"), ("run", run.as_str())];
    let elsewhere = [("__name__", "stuck"), ("run", "nobody-s")];
    let now_ms = collector::clock::now_ms();
    let stuck = [
        series(&labels, &[(now_ms, 1.0)]),
        series(&elsewhere, &[(now_ms, 1.0)]),
    ];
    assert_eq!(push(&server, &stuck).await.0, StatusCode::NO_CONTENT);
    for agent in [&mut one, &mut two] {
        assert_eq!(asked(agent).await, "Stuck");
    }
    until(&server, "count(ALERTS{alertstate='firing'})", |found| {
        found.first().is_some_and(|(_, count)| count == "3")
    })
    .await;
    // Messages to the third node arrive in order. This is the first one, so there was none before.
    let node = NodeName::new("n3").unwrap();
    server.running.app.runs.agents.request_burst(&node, "last");
    assert_eq!(asked(&mut other).await, "last");
}
