//! How agents are admitted: how much is read of them before, and how many at once.
#![expect(clippy::print_stdout, reason = "what was measured is worth reading")]

use std::time::{Duration, Instant};

use domain::ident::NodeName;
use futures::future::join_all;
use tonic::codec::CompressionEncoding;
use tonic::{Code, Request, Status};
use wire::busy;
use wire::proto::uplink_client::UplinkClient;
use wire::proto::{ControlUp, Hello, control_up};
use wire::telemetry::{Endpoint, OpenError, Receiving, Sending};

use crate::harness::{ADMIN, Agent, Server, code, until};
use crate::runs::{Control, credential};

/// Number of streams per address that may be without a hello.
const PLACES: usize = 8;
/// Number of agents that reconnect at once in a test. `cargo xtask soak sustained` uses a thousand.
const AGENTS: usize = 200;
/// How long they may take on a busy machine.
const BACK_WITHIN: Duration = Duration::from_secs(30);

/// Opens a stream with a valid token and sends no hello.
async fn open(server: &Server, token: &str) -> Result<(Sending, Receiving), Status> {
    let endpoint = Endpoint::new(&server.running.url(), None).unwrap();
    endpoint.open(token).await.map_err(|error| match error {
        OpenError::Refused(status) => status,
        other => panic!("{other}"),
    })
}

/// Returns the answer to the first message of a control stream.
async fn control(server: &Server, token: &str, hello: Hello, zstd: bool) -> Result<(), Status> {
    let mut client = UplinkClient::connect(server.running.url()).await.unwrap();
    if zstd {
        client = client.send_compressed(CompressionEncoding::Zstd);
    }
    let message = ControlUp {
        message: Some(control_up::Message::Hello(hello)),
    };
    let mut request = Request::new(tokio_stream::once(message));
    let bearer = format!("Bearer {token}").parse().unwrap();
    request.metadata_mut().insert("authorization", bearer);
    let mut answers = client.control(request).await?.into_inner();
    answers.message().await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_valid_token_no_stream_is_opened() {
    let server = Server::start().await;
    for token in ["", "guess"] {
        let refused = open(&server, token).await.err().map(|status| status.code());
        assert_eq!(refused, Some(Code::Unauthenticated), "{token:?}");
        let refused = control(&server, token, Agent::hello("n1"), false).await;
        assert_eq!(
            refused.map_err(|status| status.code()),
            Err(Code::Unauthenticated),
            "{token:?}"
        );
    }
    let viewer = server.token(domain::api::session::Role::Scrape, None).await.token;
    let refused = open(&server, &viewer).await.err().map(|status| status.code());
    assert_eq!(refused, Some(Code::PermissionDenied));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_of_more_than_512_kib_is_refused_on_both_streams() {
    let server = Server::start().await;
    let large = |bytes: usize| Hello {
        agent_version: "x".repeat(bytes),
        ..Agent::hello("n1")
    };
    // Bytes beyond the limit are not read, so a client that is still sending may only see a broken connection.
    let (refused, broken) = (Code::InvalidArgument, Code::Unavailable);
    for (bytes, telemetry, grpc) in [
        (500 << 10, &[Code::Ok][..], Code::Ok),
        (600 << 10, &[refused, broken], refused),
        (8 << 20, &[refused, broken], refused),
    ] {
        let got = code(Agent::connect_with(&server, ADMIN, large(bytes)).await);
        assert!(
            telemetry.contains(&got),
            "{bytes} bytes over the WebSocket: {got:?}"
        );
        for zstd in [false, true] {
            let got = control(&server, ADMIN, large(bytes), zstd).await;
            let got = got.err().map_or(Code::Ok, |status| status.code());
            assert_eq!(got, grpc, "{bytes} bytes over gRPC, zstd: {zstd}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_streams_of_an_address_may_be_without_a_hello_and_more_must_retry() {
    let server = Server::start().await;
    let mut silent = Vec::new();
    for n in 0..PLACES {
        silent.push(
            open(&server, ADMIN)
                .await
                .unwrap_or_else(|status| panic!("stream {n}: {status}")),
        );
    }
    let second = Some(Duration::from_secs(1));
    let refused = open(&server, ADMIN).await.err().expect("there is no place");
    assert_eq!(
        (refused.code(), busy::retry_after(&refused)),
        (Code::Unavailable, second)
    );
    let refused = control(&server, ADMIN, Agent::hello("n1"), false)
        .await
        .unwrap_err();
    assert_eq!(
        (refused.code(), busy::retry_after(&refused)),
        (Code::Unavailable, second)
    );
    // A slot is free as soon as its stream is admitted or gone.
    drop(silent.pop());
    let agent = until("a place", async || {
        Agent::connect(&server, ADMIN, "n1").await.ok()
    })
    .await;
    assert!(
        open(&server, ADMIN).await.is_ok(),
        "the agent is in and takes no place"
    );
    drop(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_agents_behind_one_address_are_back_soon_after_a_restart() {
    let server = Server::start().await;
    let mut agents = Vec::new();
    for n in 0..AGENTS {
        let node = format!("n{n}");
        let ack = Agent::connect(&server, ADMIN, &node).await.unwrap().ack;
        agents.push((node, ack.credential));
    }
    let server = server.restart().await;
    let begin = Instant::now();
    let back = agents
        .iter()
        .map(|(node, credential)| Agent::connect_patiently(&server, credential, node));
    let all = tokio::time::timeout(BACK_WITHIN, join_all(back)).await;
    let all = all.unwrap_or_else(|_| panic!("not all agents were back within {BACK_WITHIN:?}"));
    let asked: u32 = all.iter().map(|(_, asked)| asked).sum();
    println!(
        "{AGENTS} agents were back after {:?}; they were asked to come back {asked} times",
        begin.elapsed()
    );
}

/// A machine was cloned while an attempt ran on it. The clone held nothing, so the attempt was started again beside its own processes.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_with_the_name_of_a_connected_one_is_refused() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let first = Control::connect(&server, &credential, &[]).await;
    let node = NodeName::new("n1").unwrap();
    let is_connected = || server.running.app.runs.agents.is_connected(&node);
    until("the first agent", async || is_connected().then_some(())).await;
    let hello = Hello {
        instance: "clone".into(),
        ..Agent::hello("n1")
    };
    let join = server.join_token().await;
    for token in [&credential, &join] {
        let refused = control(&server, token, hello.clone(), false).await;
        assert_eq!(refused.map_err(|status| status.code()), Err(Code::AlreadyExists));
    }
    drop(first);
    until("the end of the first agent", async || {
        (!is_connected()).then_some(())
    })
    .await;
    control(&server, &credential, hello, false).await.unwrap();
}
