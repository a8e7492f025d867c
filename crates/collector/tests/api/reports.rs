//! Reports of agents that are newer, older or not responsible: nothing is lost, and no node reports for another.

use domain::api::runs::{RunView, UnreadReason};
use domain::ident::{AttemptNo, NodeName, Rank, RunId};
use domain::run::checkpoint::{Checkpoint, CheckpointOnNode, CheckpointReport};
use domain::run::state::{NodeCommand, NodeEnd, NodeReport, RankExit, RunState};
use store::state::unread::NewUnread;
use wire::proto::{ControlUp, LogChunk, control_down, control_up};

use crate::harness::{Agent, Server, until};
use crate::runs::{Control, credential, credential_of, run_is, start_ranks, submit};

async fn view(server: &Server, run: &str) -> RunView {
    let (_, body) = server.get(&format!("/api/runs/{run}")).await;
    serde_json::from_value(body).unwrap()
}

/// Returns the unread reports of a run: node, kind, reason and count.
fn unread(view: &RunView) -> Vec<(&str, &str, &UnreadReason, u64)> {
    let line = |report: &'_ domain::api::runs::UnreadReport| report.count;
    view.unread_reports
        .iter()
        .map(|report| {
            (
                report.node.as_str(),
                report.kind.as_str(),
                &report.reason,
                line(report),
            )
        })
        .collect()
}

async fn refused(server: &Server, reason: &str) -> u64 {
    let (_, page) = server.get("/metrics").await;
    let name = format!("lockstep_ingest_refused_total{{reason=\"{reason}\"}} ");
    let line = page
        .as_str()
        .unwrap()
        .lines()
        .find_map(|line| line.strip_prefix(&name));
    line.map_or(0, |value| value.parse().unwrap())
}

fn exit(rank: u32) -> NodeReport {
    NodeReport::RankExited(RankExit {
        rank: Rank(rank),
        code: Some(0),
        at_ns: 1,
        ..RankExit::default()
    })
}

fn ended() -> NodeReport {
    NodeReport::Ended(NodeEnd {
        code: Some(0),
        ..NodeEnd::default()
    })
}

#[tokio::test]
async fn a_report_of_a_newer_agent_is_kept_and_shown() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let run = submit(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    start_ranks(&server, &mut agent, &run).await;
    let swapped = r#"{"report":"gpu_swapped","gpu":3}"#;
    agent.say_json(&run, 50, swapped).await;
    // Again, as after a lost connection.
    agent.say_json(&run, 50, swapped).await;
    agent
        .say_json(&run, 51, r#"{"report":"rank_exited","rank":"all"}"#)
        .await;

    let server = server.restart().await;
    let view = view(&server, &run).await;
    assert_eq!(
        unread(&view),
        [
            ("n1", "gpu_swapped", &UnreadReason::UnknownKind, 1),
            ("n1", "rank_exited", &UnreadReason::Unreadable, 1)
        ]
    );
    let sentence = view.unread_reports[0].sentence();
    assert!(sentence.contains("from a newer agent"), "{sentence}");
    let (_, events) = server.get(&format!("/api/events?run={run}")).await;
    assert!(events.to_string().contains("gpu_swapped"), "{events}");
    let stored = server.running.app.state.next_unread(0).await.unwrap().unwrap();
    assert_eq!(stored.report, swapped, "as it came");

    let mut agent = Control::connect(&server, &credential, &[(&run, 1)]).await;
    agent.say(&run, 52, exit(0)).await;
    agent.say(&run, 53, exit(1)).await;
    agent.say(&run, 54, ended()).await;
    run_is(&server, &run, RunState::Succeeded).await;
}

#[tokio::test]
async fn an_end_for_a_reason_of_a_newer_agent_ends_the_run() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let run = submit(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    start_ranks(&server, &mut agent, &run).await;
    agent.say(&run, 50, exit(0)).await;
    agent.say(&run, 51, exit(1)).await;
    agent
        .say_json(
            &run,
            52,
            r#"{"report":"ended","code":0,"cause":"preempted","message":""}"#,
        )
        .await;
    run_is(&server, &run, RunState::Succeeded).await;

    let run = submit(&server).await;
    start_ranks(&server, &mut agent, &run).await;
    agent
        .say_json(&run, 52, r#"{"report":"ended","cause":"preempted"}"#)
        .await;
    let view = run_is(&server, &run, RunState::Failed).await;
    let outcome = view.summary.outcome.unwrap();
    assert_eq!(outcome.cause.as_str(), "unknown");
    let message = outcome.message.to_string();
    assert!(message.contains("preempted"), "{message}");
}

#[tokio::test]
async fn what_an_earlier_collector_could_not_read_is_read_by_the_next_one() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let run = submit(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    start_ranks(&server, &mut agent, &run).await;
    agent.say(&run, 50, exit(0)).await;
    let (id, node) = (RunId::new(run.as_str()).unwrap(), NodeName::new("n1").unwrap());
    let state = &server.running.app.state;
    for (n, report) in [(51, exit(1)), (52, ended())] {
        let new = NewUnread {
            run: &id,
            attempt: AttemptNo(1),
            node: &node,
            event_id: &format!("1/n1/{n}"),
            kind: "unknown then",
            reason: UnreadReason::UnknownKind,
            report: &serde_json::to_string(&report).unwrap(),
        };
        state.keep_unread(&new, 7).await.unwrap();
    }
    assert_eq!(
        view(&server, &run).await.unread_reports.len(),
        1,
        "one line of both"
    );
    drop(agent);

    let server = server.restart().await;
    let view = run_is(&server, &run, RunState::Succeeded).await;
    assert_eq!(view.unread_reports, []);
}

/// 200 checkpoints with a long path, in one report of an older agent: 170 KiB.
fn many_checkpoints() -> CheckpointReport {
    let folder = format!("/{}", "long-name/".repeat(60));
    let sight = CheckpointOnNode {
        complete: true,
        ..CheckpointOnNode::default()
    };
    let one = |step: u64| Checkpoint {
        path: format!("{folder}step-{step}"),
        step: Some(step),
        complete: true,
        seen: [(
            "n1".to_owned(),
            CheckpointOnNode {
                mark: step.to_string(),
                ..sight.clone()
            },
        )]
        .into(),
        ..Checkpoint::default()
    };
    CheckpointReport {
        folder: Some(folder.clone()),
        checkpoints: (0..200).map(one).collect(),
        ..CheckpointReport::default()
    }
}

#[tokio::test]
async fn a_large_report_is_accepted_and_one_that_is_too_large_is_shown() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let run = submit(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    start_ranks(&server, &mut agent, &run).await;
    let report = NodeReport::Checkpoints(many_checkpoints());
    assert!(serde_json::to_string(&report).unwrap().len() > 64 << 10);
    agent.say(&run, 2_000_001, report).await;
    let (_, known) = server.get(&format!("/api/runs/{run}/checkpoints")).await;
    assert_eq!(known["checkpoints"].as_array().map(Vec::len), Some(200));

    let flood = CheckpointReport {
        gone: vec!["/gone".repeat(1_000); 1_200],
        ..CheckpointReport::default()
    };
    let flood = serde_json::to_string(&NodeReport::Checkpoints(flood)).unwrap();
    assert!(flood.len() > 4 << 20);
    agent.say_json(&run, 2_000_002, &flood).await;
    let seen = view(&server, &run).await;
    assert_eq!(unread(&seen), [("n1", "checkpoints", &UnreadReason::TooLarge, 1)]);
    let sentence = seen.unread_reports[0].sentence();
    assert!(sentence.contains("Upgrade the node's agent"), "{sentence}");
    assert_eq!(server.running.app.state.next_unread(0).await.unwrap(), None);
    let (_, known) = server.get(&format!("/api/runs/{run}/checkpoints")).await;
    assert_eq!(known["checkpoints"].as_array().map(Vec::len), Some(200));

    // However long the text of the agent's last report is, the run ends.
    let end = NodeEnd {
        code: Some(0),
        message: "word ".repeat(1 << 20),
        ..NodeEnd::default()
    };
    agent.say(&run, 60, exit(0)).await;
    agent.say(&run, 61, exit(1)).await;
    agent.say(&run, 62, NodeReport::Ended(end)).await;
    run_is(&server, &run, RunState::Succeeded).await;
}

#[tokio::test]
async fn a_flood_of_reports_that_cannot_be_read_is_bounded_and_counted() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let run = submit(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    start_ranks(&server, &mut agent, &run).await;
    let large = format!(r#"{{"report":"novel","text":"{}"}}"#, "x".repeat(3 << 20));
    for id in 100..104 {
        agent.say_json(&run, id, &large).await;
    }
    let view = view(&server, &run).await;
    assert_eq!(
        unread(&view),
        [
            ("n1", "novel", &UnreadReason::UnknownKind, 2),
            ("", "", &UnreadReason::NotKept, 2)
        ]
    );
}

#[tokio::test]
async fn no_node_answers_the_commands_of_another() {
    let server = Server::start().await;
    let (mine, other) = (credential(&server).await, credential_of(&server, "n2").await);
    let mut agent = Control::connect(&server, &mine, &[]).await;
    let run = submit(&server).await;
    let (prepare, asked) = agent.command().await;
    assert!(matches!(asked, NodeCommand::Prepare { .. }));
    let mut foreign = Control::connect_as(&server, "n2", &other, &[]).await;
    let accepted = NodeReport::Accepted { command: prepare.id };
    foreign.say(&run, 1, accepted).await;
    let no = NodeReport::Refused {
        command: prepare.id,
        reason: "not I".into(),
    };
    foreign.say(&run, 2, no).await;
    drop(agent);

    // It was not accepted, so it is sent again.
    let mut agent = Control::connect(&server, &mine, &[(&run, 1)]).await;
    let (again, asked) = agent.command().await;
    assert!(again.id == prepare.id && matches!(asked, NodeCommand::Prepare { .. }));
    assert_eq!(view(&server, &run).await.summary.state, RunState::Preparing);
    assert_eq!(refused(&server, "command_of_other").await, 2);
}

/// A run of two ranks on n1, and the control streams of n1 and of another node.
async fn run_beside_another_node(server: &Server) -> (String, Control, Control) {
    let (mine, other) = (credential(server).await, credential_of(server, "n2").await);
    let mut agent = Control::connect(server, &mine, &[]).await;
    let run = submit(server).await;
    start_ranks(server, &mut agent, &run).await;
    let foreign = Control::connect_as(server, "n2", &other, &[]).await;
    (run, agent, foreign)
}

#[tokio::test]
async fn no_node_reports_on_a_run_of_another() {
    let server = Server::start().await;
    let (run, mut agent, mut foreign) = run_beside_another_node(&server).await;
    let before = view(&server, &run).await;
    foreign.say(&run, 1, ended()).await;
    foreign.say_json(&run, 2, r#"{"report":"gpu_swapped"}"#).await;
    foreign
        .say(&run, 3, NodeReport::Checkpoints(many_checkpoints()))
        .await;
    assert_eq!(view(&server, &run).await, before);
    assert_eq!(refused(&server, "report_not_in_attempt").await, 3);

    // An attempt that is newer than the collector's data, and an unknown run, as after a restored backup.
    foreign.attempt = 7;
    foreign.say(&run, 4, ended()).await;
    foreign.say("gone-run", 5, ended()).await;
    assert_eq!(refused(&server, "report_not_in_attempt").await, 4);
    assert_eq!(refused(&server, "unknown_run").await, 1);

    // The connection stays open, and the run continues.
    agent.say(&run, 50, exit(0)).await;
    agent.say(&run, 51, exit(1)).await;
    agent.say(&run, 52, ended()).await;
    run_is(&server, &run, RunState::Succeeded).await;
    foreign.attempt = 1;
    foreign.say(&run, 6, ended()).await;
}

#[tokio::test]
async fn no_node_writes_logs_of_a_run_of_another() {
    let server = Server::start().await;
    let (run, mut agent, mut foreign) = run_beside_another_node(&server).await;
    let forged = append(&mut foreign, &run, b"forged\n").await;
    assert_eq!(forged, 7, "it need not come again");
    let folder = server.folder.path().join("logs").join(&run);
    assert!(!folder.join("1/n2").exists(), "it is not written");
    assert_eq!(append(&mut foreign, "gone-run", b"lost\n").await, 5);
    assert_eq!(refused(&server, "log_not_in_attempt").await, 1);
    assert_eq!(refused(&server, "unknown_run").await, 1);
    assert_eq!(append(&mut agent, &run, b"mine\n").await, 5);
    assert!(folder.join("1/n1").exists());
}

#[tokio::test]
async fn no_event_of_a_node_is_shown_with_a_run_of_another_node() {
    let server = Server::start().await;
    let (run, _agent, _foreign) = run_beside_another_node(&server).await;
    let other = credential_of(&server, "n2").await;
    let telemetry = Agent::connect(&server, &other, "n2").await.unwrap();
    let event = serde_json::json!({"at_ms": 1, "severity": "critical", "kind": "xid", "run": run, "message": "forged"});
    let event_json = event.to_string();
    let event = wire::proto::NodeEvent { event_json };
    telemetry
        .send(wire::proto::telemetry_up::Message::Event(event))
        .await;
    let seen = until("the event", async || {
        let (_, events) = server.get("/api/events?node=n2&kind=xid").await;
        events.as_array().and_then(|events| events.first().cloned())
    })
    .await;
    assert_eq!(
        (seen["message"].as_str(), seen["run"].as_str()),
        (Some("forged"), None)
    );
    assert_eq!(refused(&server, "event_of_other_run").await, 1);
}

/// Appends to the log of rank 0, and returns how many bytes the collector has.
async fn append(agent: &mut Control, run: &str, bytes: &[u8]) -> u64 {
    let chunk = LogChunk {
        run: run.into(),
        attempt: 1,
        rank: 0,
        stream: "stdout".into(),
        offset: 0,
        bytes: bytes.into(),
        kept_from: 0,
    };
    let message = Some(control_up::Message::Log(chunk));
    agent.outgoing.send(ControlUp { message }).await.unwrap();
    loop {
        if let control_down::Message::LogAck(ack) = agent.next().await {
            return ack.length;
        }
    }
}

/// Invented segments must not multiply the limit of a node.
#[tokio::test]
async fn series_are_limited_for_a_node_and_not_for_each_of_its_segments() {
    let server = Server::start().await;
    let agent = Agent::connect(&server, &server.join_token().await, "n1")
        .await
        .unwrap();
    let credential = agent.ack.credential.clone();
    let define = async |agent: &Agent, segment: &str, first: usize, count: usize| {
        let numbers: Vec<String> = (first..first + count).map(|n| n.to_string()).collect();
        let series = numbers.iter().map(|n| vec!["__name__", "flood", "n", n.as_str()]);
        agent.define_labels(segment, 0, series.collect()).await;
    };
    let limited = async |expected: u64| {
        until("series to be refused", async || {
            (refused(&server, "series_agent_limit").await == expected).then_some(())
        })
        .await;
    };
    define(&agent, "live", 0, 15_000).await;
    define(&agent, "another", 15_000, 15_000).await;
    limited(10_000).await;
    // Another connection must not either.
    drop(agent);
    let agent = Agent::connect(&server, &credential, "n1").await.unwrap();
    define(&agent, "third", 30_000, 1_000).await;
    limited(11_000).await;
    // The node may use its series in any segment, and another node has its own limit.
    define(&agent, "fourth", 0, 15_000).await;
    let other = credential_of(&server, "n2").await;
    let other = Agent::connect(&server, &other, "n2").await.unwrap();
    define(&other, "live", 0, 15_000).await;
    define(&agent, "fifth", 40_000, 1).await;
    limited(11_001).await;
}

/// An answer must come from the node that was asked. See `agents` for the other cases.
#[tokio::test]
async fn an_answer_without_a_caller_ends_no_connection() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    let answer = wire::proto::Answer {
        id: 7,
        last: true,
        ..wire::proto::Answer::default()
    };
    let message = Some(control_up::Message::Answer(answer));
    agent.outgoing.send(ControlUp { message }).await.unwrap();
    let run = submit(&server).await;
    let (command, _) = agent.command().await;
    assert_eq!(command.run, run);
}
