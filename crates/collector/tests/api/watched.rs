//! A watched command: its node reports it, and it accepts no requests.

use domain::ident::Rank;
use domain::run::state::{NodeEnd, NodeReport, RunState, Watched};
use reqwest::{Method, StatusCode};

use crate::harness::{Server, answer};
use crate::runs::{Control, credential, run_is};

#[tokio::test]
async fn a_watched_command_is_a_run_that_cannot_be_stopped() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let run = "train-x7k2mq";
    let mut agent = Control::connect(&server, &credential, &[(run, 1)]).await;
    let watched = Watched {
        name: "train".into(),
        program: "train.py".into(),
        command: "torchrun train.py".into(),
        pid: 7,
        found: false,
    };
    agent
        .say(run, 1_000_000, NodeReport::Watched(watched.clone()))
        .await;
    // Again, as after a lost connection.
    agent.say(run, 1_000_000, NodeReport::Watched(watched)).await;
    let started = NodeReport::RankStarted {
        rank: Rank(0),
        local_rank: 0,
        pid: 8,
    };
    agent.say(run, 1_000_001, started).await;
    let view = run_is(&server, run, RunState::Running).await;
    assert!(
        view.watched && view.attempts[0].nodes[0].command == "torchrun train.py",
        "{view:?}"
    );
    assert_eq!(
        (view.summary.name.as_str(), view.summary.world_size),
        ("train", 1)
    );
    let (status, problem) = answer(server.request(Method::POST, &format!("/api/runs/{run}/stop"))).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(
        problem["detail"].as_str().unwrap().contains("only watched"),
        "{problem}"
    );
    let ended = NodeReport::Ended(NodeEnd {
        code: Some(0),
        ..NodeEnd::default()
    });
    agent.say(run, 1_000_002, ended).await;
    run_is(&server, run, RunState::Succeeded).await;
}
