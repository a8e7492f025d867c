//! Samples from agents: from the join token to the query, across restarts.

use domain::api::session::Role;
use domain::series::Frame;
use domain::topology::Inventory;
use reqwest::StatusCode;
use serde_json::json;
use tonic::Code;
use wire::proto::{Hello, NodeEvent, telemetry_down, telemetry_up};

use crate::harness::{ADMIN, Agent, Server, code, until};

const POWER: &str = "gpu_power_watts";

fn now_ms() -> i64 {
    collector::clock::now_ms()
}

#[tokio::test(flavor = "multi_thread")]
async fn samples_are_durable_when_they_are_acknowledged() {
    let server = Server::start().await;
    let mut agent = Agent::connect(&server, &server.join_token().await, "n1")
        .await
        .unwrap();
    assert!(agent.ack.credential.starts_with("lsn_") && agent.ack.protocol == wire::version::PROTOCOL_MAX);
    agent.define("live", 0, &[(POWER, "0"), (POWER, "1")]).await;
    let start_ms = now_ms() - 20_000;
    for seq in 1..=10 {
        agent
            .sample("live", seq, start_ms + seq as i64 * 1_000, &[seq as f64, 100.0])
            .await;
    }
    agent.acked("live", 10).await;

    // The files that a power failure at this moment would leave.
    let copy = server.start_from_copy().await;
    let end_ms = start_ms + 10_000;
    let labels = |gpu: &str| json!({ "__name__": POWER, "gpu": gpu, "node": "n1" });
    assert_eq!(
        copy.query(POWER, end_ms).await,
        [(labels("0"), "10".into()), (labels("1"), "100".into())]
    );
    assert_eq!(
        copy.query("sum(count_over_time(gpu_power_watts[1m]))", end_ms)
            .await[0]
            .1,
        "20"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_contains_the_collectors_time() {
    let server = Server::start().await;
    let mut agent = Agent::connect(&server, &server.join_token().await, "n1")
        .await
        .unwrap();
    agent.define("live", 0, &[(POWER, "0")]).await;
    let before_us = collector::clock::now_us();
    agent.sample("live", 1, now_ms(), &[1.0]).await;
    let wire::proto::telemetry_down::Message::Ack(ack) = agent.next().await else {
        panic!("an acknowledgement");
    };
    let after_us = collector::clock::now_us();
    let in_order = [before_us, ack.received_us, ack.sent_us, after_us];
    assert!(in_order.is_sorted(), "{in_order:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_uses_its_credential_after_a_restart() {
    let server = Server::start().await;
    let mut agent = Agent::connect(&server, &server.join_token().await, "n1")
        .await
        .unwrap();
    let credential = agent.ack.credential.clone();
    let start_ms = now_ms() - 20_000;
    agent.define("live", 0, &[(POWER, "0")]).await;
    for seq in 1..=3 {
        agent
            .sample("live", seq, start_ms + seq as i64 * 1_000, &[seq as f64])
            .await;
    }
    agent.acked("live", 3).await;

    let server = server.restart().await;
    let mut agent = Agent::connect(&server, &credential, "n1").await.unwrap();
    assert_eq!(agent.ack.credential, "", "it has one already");
    agent.define("live", 0, &[(POWER, "0")]).await;
    // The acknowledgement of batch 3 was lost: the batch is sent again, and counts once.
    for seq in 3..=5 {
        agent
            .sample("live", seq, start_ms + seq as i64 * 1_000, &[seq as f64])
            .await;
    }
    agent.acked("live", 5).await;
    assert_eq!(
        server
            .query("count_over_time(gpu_power_watts[1m])", start_ms + 5_000)
            .await[0]
            .1,
        "5"
    );
    let (_, nodes) = server.get("/api/nodes").await;
    assert_eq!(
        (&nodes[0]["name"], &nodes[0]["state"], &nodes[0]["agent_version"]),
        (&json!("n1"), &json!("up"), &json!("test"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_keeps_the_rack_that_its_agent_named_last() {
    let server = Server::start().await;
    let hello = |rack: Option<&str>| {
        let inventory = Inventory {
            rack: rack.map(str::to_owned),
            ..Inventory::default()
        };
        Hello {
            inventory_json: serde_json::to_string(&inventory).unwrap(),
            ..Agent::hello("n1")
        }
    };
    let connected = Agent::connect_with(&server, ADMIN, hello(Some("R01"))).await;
    drop(connected.unwrap());
    let server = server.restart().await;
    let (_, nodes) = server.get("/api/nodes").await;
    assert_eq!(nodes[0]["inventory"]["rack"], "R01", "{nodes}");
    let _connected = Agent::connect_with(&server, ADMIN, hello(None)).await.unwrap();
    let (_, nodes) = server.get("/api/nodes").await;
    assert!(nodes[0]["inventory"]["rack"].is_null(), "{nodes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn backfill_does_not_delay_live_samples_and_both_keep_their_order() {
    let server = Server::start().await;
    let mut agent = Agent::connect(&server, &server.join_token().await, "n1")
        .await
        .unwrap();
    let start_ms = now_ms() - 600_000;
    agent.define("old", 0, &[(POWER, "0")]).await;
    agent.define("live", 0, &[(POWER, "1")]).await;
    for seq in 1..=100 {
        agent
            .sample("old", seq, start_ms + seq as i64 * 1_000, &[1.0])
            .await;
        if seq == 50 {
            agent.sample("live", 1, now_ms(), &[2.0]).await;
        }
    }
    let (mut old, mut live) = (0, 0);
    while old < 100 || live < 1 {
        match agent.next().await {
            telemetry_down::Message::Ack(ack) if ack.segment == "old" => {
                assert!(ack.seq > old);
                old = ack.seq;
            }
            telemetry_down::Message::Ack(ack) => live = ack.seq,
            other => panic!("an acknowledgement, not {other:?}"),
        }
    }
    assert_eq!(
        server
            .query("count_over_time(gpu_power_watts{gpu=\"0\"}[1h])", now_ms())
            .await[0]
            .1,
        "100"
    );
}

/// More agents than turns, more samples than room, and messages longer than a WebSocket frame.
#[tokio::test(flavor = "multi_thread")]
async fn backfill_of_many_agents_at_once_is_accepted() {
    const AGENTS: usize = 48;
    const TICKS: i64 = 12_000;
    let server = Server::start().await;
    let token = server.join_token().await;
    let start_ms = now_ms() - 60_000;
    let catch_up = async |agent: usize| {
        let (mut agent, _) = Agent::connect_patiently(&server, &token, &format!("n{agent}")).await;
        agent.define("old", 0, &[(POWER, "0")]).await;
        for seq in 1..=2 {
            let first_ms = start_ms + (seq as i64 - 1) * TICKS;
            let frame = Frame {
                series: vec![0],
                times_ms: (first_ms..first_ms + TICKS).collect(),
                values: vec![1.0; TICKS as usize],
            };
            agent.batch("old", seq, frame).await;
        }
        agent.acked("old", 2).await;
    };
    futures::future::join_all((0..AGENTS).map(catch_up)).await;
    let counted = server
        .query("sum(count_over_time(gpu_power_watts[2m]))", now_ms())
        .await;
    assert_eq!(counted[0].1, (AGENTS as i64 * 2 * TICKS).to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_batches_are_refused_in_their_turn() {
    let server = Server::start().await;
    let mut agent = Agent::connect(&server, &server.join_token().await, "n1")
        .await
        .unwrap();
    agent.define("live", 0, &[(POWER, "0"), ("1bad", "0")]).await;
    let time_ms = now_ms();
    agent.sample("live", 1, time_ms - 3_000, &[1.0]).await;
    let frame = domain::series::Frame {
        series: vec![0],
        times_ms: vec![time_ms - 2_000],
        values: vec![2.0],
    };
    let mut damaged = wire::frame::encode("live", 2, &[frame]);
    damaged.checksum ^= 1;
    agent.send(telemetry_up::Message::Batch(damaged)).await;
    let undefined = domain::series::Frame {
        series: vec![9],
        times_ms: vec![time_ms],
        values: vec![2.0],
    };
    agent
        .send(telemetry_up::Message::Batch(wire::frame::encode(
            "live",
            3,
            &[undefined],
        )))
        .await;
    // The name of the second series is invalid; the first is stored all the same.
    agent.sample("live", 4, time_ms, &[4.0, 5.0]).await;

    let mut heard = vec![];
    while heard.last() != Some(&("ack", 4)) {
        heard.push(match agent.next().await {
            telemetry_down::Message::Ack(ack) => ("ack", ack.seq),
            telemetry_down::Message::Refusal(refusal) => {
                assert!(!refusal.reason.is_empty());
                ("refusal", refusal.seq)
            }
            other => panic!("an answer to a batch, not {other:?}"),
        });
    }
    assert_eq!(heard, [("ack", 1), ("refusal", 2), ("refusal", 3), ("ack", 4)]);
    assert_eq!(
        server
            .query("count_over_time(gpu_power_watts[1m])", time_ms)
            .await[0]
            .1,
        "2"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_nodes_credential_does_not_speak_for_another() {
    let server = Server::start().await;
    let agent = Agent::connect(&server, &server.join_token().await, "n1")
        .await
        .unwrap();
    let credential = agent.ack.credential.clone();
    assert_eq!(
        code(Agent::connect(&server, &credential, "n2").await),
        Code::PermissionDenied
    );
    assert_eq!(code(Agent::connect(&server, &credential, "n1").await), Code::Ok);
    // It is not an API token either.
    let response = server
        .anonymous(reqwest::Method::GET, "/metrics")
        .bearer_auth(&credential)
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_agent_gets_the_reason() {
    let server = Server::start().await;
    let viewer = server.token(Role::Viewer, None).await.token;
    assert_eq!(
        code(Agent::connect(&server, "lsj_nonsense", "n1").await),
        Code::Unauthenticated
    );
    assert_eq!(
        code(Agent::connect(&server, &viewer, "n1").await),
        Code::PermissionDenied
    );
    let join = server.join_token().await;
    assert_eq!(
        code(Agent::connect(&server, &join, "../etc").await),
        Code::InvalidArgument
    );
    let hello = Hello {
        protocol_min: 99,
        protocol_max: 99,
        node: "n1".into(),
        ..Hello::default()
    };
    assert_eq!(
        code(Agent::connect_with(&server, &join, hello).await),
        Code::FailedPrecondition
    );
    let hello = Hello {
        protocol_min: 1,
        protocol_max: 1,
        node: "n1".into(),
        inventory_json: "{".into(),
        ..Hello::default()
    };
    assert_eq!(
        code(Agent::connect_with(&server, &join, hello).await),
        Code::InvalidArgument
    );
    assert_eq!(server.get("/api/nodes").await.1, json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_kept_under_the_senders_name() {
    let server = Server::start().await;
    let agent = Agent::connect(&server, ADMIN, "n1").await.unwrap();
    let event = json!({ "at_ms": now_ms(), "severity": "critical", "kind": "xid", "node": "n2", "gpu": 3, "message": "Xid 79" });
    agent
        .send(telemetry_up::Message::Event(NodeEvent {
            event_json: event.to_string(),
        }))
        .await;
    agent
        .send(telemetry_up::Message::Event(NodeEvent {
            event_json: "{".into(),
        }))
        .await;
    let events = until("the event", async || {
        let events = server.get("/api/events?kind=xid").await.1;
        (events != json!([])).then_some(events)
    })
    .await;
    assert_eq!(
        (&events[0]["node"], &events[0]["gpu"], &events[0]["message"]),
        (&json!("n1"), &json!(3), &json!("Xid 79"))
    );
    until("the node to be up in the log", async || {
        let events = server.get("/api/events?kind=agent_connected&node=n1").await.1;
        (events != json!([])).then_some(())
    })
    .await;
}
