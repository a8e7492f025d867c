//! Nodes with different clocks: the first failure is still named correctly.

use domain::ident::Rank;
use domain::run::state::{NodeCommand, NodeEnd, NodeReport, Prepared, RankExit, RunState};
use serde_json::json;

use crate::harness::{Agent, Server};
use crate::runs::{Control, run_is, submit_with};

/// How far the clock of `n1` is ahead, in milliseconds.
const AHEAD_MS: i64 = 400;

/// Connects both streams of an agent that has reported how far its clock is ahead.
pub(crate) async fn join(server: &Server, node: &str, ahead_ms: i64) -> Control {
    let mut agent = Agent::connect(server, &server.join_token().await, node)
        .await
        .unwrap();
    let name = vec!["__name__", "lockstep_agent_clock_offset_seconds"];
    agent.define_labels("s", 0, vec![name]).await;
    let now_ms = collector::clock::now_ms();
    agent
        .sample("s", 1, now_ms - 1_000 + ahead_ms, &[ahead_ms as f64 / 1e3])
        .await;
    agent.acked("s", 1).await;
    Control::connect_as(server, node, &agent.ack.credential, &[]).await
}

/// Accepts the next command, and returns it.
async fn accept(agent: &mut Control, run: &str, id: u64) -> NodeCommand {
    let (command, asked) = agent.command().await;
    agent
        .say(run, id, NodeReport::Accepted { command: command.id })
        .await;
    asked
}

#[tokio::test]
async fn the_rank_that_failed_first_is_named_despite_wrong_clocks() {
    let server = Server::start().await;
    let mut fast = join(&server, "n1", AHEAD_MS).await;
    let mut right = join(&server, "n2", 0).await;
    let spec = json!({"recipe": "ddp", "nodes": 2, "nproc_per_node": 1});
    let run = &submit_with(&server, spec).await;
    for agent in [&mut fast, &mut right] {
        accept(agent, run, 1).await;
        let prepared = Prepared {
            address: "10.0.0.1".into(),
            port: 29_500,
            nproc_default: 1,
            ..Prepared::default()
        };
        agent.say(run, 2, NodeReport::Prepared(prepared)).await;
    }
    let mut ranks = Vec::new();
    for agent in [&mut fast, &mut right] {
        let NodeCommand::Start(start) = accept(agent, run, 3).await else {
            panic!("a start")
        };
        let rank = Rank(start.node_rank);
        let started = NodeReport::RankStarted {
            rank,
            local_rank: 0,
            pid: 7,
        };
        agent.say(run, 4, started).await;
        ranks.push(rank);
    }
    run_is(&server, run, RunState::Running).await;

    // The rank of n1 exits, and 100 ms later the one of n2. By the timestamps the order is reversed.
    let now_ms = collector::clock::now_ms();
    let killed = |rank, at_ms: i64| {
        NodeReport::RankExited(RankExit {
            rank,
            signal: Some(11),
            at_ns: at_ms * 1_000_000,
            ..RankExit::default()
        })
    };
    right.say(run, 5, killed(ranks[1], now_ms + 100)).await;
    fast.say(run, 5, killed(ranks[0], now_ms + AHEAD_MS)).await;
    for agent in [&mut right, &mut fast] {
        let end = NodeEnd {
            code: Some(1),
            ..NodeEnd::default()
        };
        agent.say(run, 6, NodeReport::Ended(end)).await;
    }
    let view = run_is(&server, run, RunState::Failed).await;
    let outcome = view.summary.outcome.unwrap();
    assert_eq!(
        (outcome.cause.as_str(), outcome.node.as_deref(), outcome.rank),
        ("signal", Some("n1"), Some(ranks[0])),
        "{}",
        outcome.message
    );
}
