//! A run for user and agent: submitted over HTTP, carried out over the control stream.

use std::collections::VecDeque;

use domain::api::runs::{LogPiece, RunView};
use domain::ident::Rank;
use domain::run::state::{EndCause, NodeCommand, NodeEnd, NodeReport, Prepared, RankExit, RunState};
use domain::topology::Inventory;
use reqwest::{Method, StatusCode};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Streaming};
use wire::proto::uplink_client::UplinkClient;
use wire::proto::{
    Command, ControlDown, ControlUp, Held, Holding, LogChunk, RunEvent, control_down, control_up,
};

use crate::harness::{ADMIN, Agent, DEADLINE, Server, answer, until};

/// An agent's control stream, after its hello.
pub(crate) struct Control {
    pub(crate) outgoing: mpsc::Sender<ControlUp>,
    incoming: Streaming<ControlDown>,
    /// Commands that arrived during the wait for an acknowledgement.
    unread: VecDeque<Command>,
    /// The attempt that messages refer to.
    pub(crate) attempt: u32,
}

impl Control {
    pub(crate) async fn connect(server: &Server, credential: &str, held: &[(&str, u32)]) -> Self {
        Self::connect_as(server, "n1", credential, held).await
    }

    pub(crate) async fn connect_as(
        server: &Server,
        node: &str,
        credential: &str,
        held: &[(&str, u32)],
    ) -> Self {
        let mut client = UplinkClient::connect(server.running.url()).await.unwrap();
        let (outgoing, receiver) = mpsc::channel(64);
        let mut hello = Agent::hello(node);
        hello.inventory_json = serde_json::to_string(&Inventory {
            accepts_runs: true,
            ..Inventory::default()
        })
        .unwrap();
        let held = held
            .iter()
            .map(|(run, attempt)| Held {
                run: (*run).into(),
                attempt: *attempt,
            })
            .collect();
        for message in [
            control_up::Message::Hello(hello),
            control_up::Message::Holding(Holding { held }),
        ] {
            outgoing
                .send(ControlUp {
                    message: Some(message),
                })
                .await
                .unwrap();
        }
        let mut request = Request::new(ReceiverStream::new(receiver));
        request
            .metadata_mut()
            .insert("authorization", format!("Bearer {credential}").parse().unwrap());
        let mut control = Self {
            outgoing,
            incoming: client.control(request).await.unwrap().into_inner(),
            unread: VecDeque::new(),
            attempt: 1,
        };
        assert!(matches!(control.next().await, control_down::Message::Hello(_)));
        control
    }

    pub(crate) async fn next(&mut self) -> control_down::Message {
        let next = tokio::time::timeout(DEADLINE, self.incoming.message())
            .await
            .expect("the collector sends something");
        next.unwrap().unwrap().message.unwrap()
    }

    pub(crate) async fn command(&mut self) -> (Command, NodeCommand) {
        loop {
            let next = match self.unread.pop_front() {
                Some(command) => control_down::Message::Command(command),
                None => self.next().await,
            };
            if let control_down::Message::Command(command) = next {
                let asked = serde_json::from_str(&command.command_json).unwrap();
                return (command, asked);
            }
        }
    }

    /// Returns true if no command arrived during waits for acknowledgements.
    pub(crate) fn has_no_command(&self) -> bool {
        self.unread.is_empty()
    }

    pub(crate) async fn say(&mut self, run: &str, id: u64, report: NodeReport) {
        self.report(run, id, report).await;
        self.acknowledged(id).await;
    }

    async fn acknowledged(&mut self, id: u64) {
        loop {
            match self.next().await {
                control_down::Message::EventAck(ack) if ack.id == id => return,
                control_down::Message::Command(command) => self.unread.push_back(command),
                _ => {}
            }
        }
    }

    /// Sends a report without waiting for the acknowledgement.
    pub(crate) async fn report(&mut self, run: &str, id: u64, report: NodeReport) {
        let report_json = serde_json::to_string(&report).unwrap();
        self.report_json(run, id, report_json).await;
    }

    /// Sends a report that this version may not support, and waits for the acknowledgement.
    pub(crate) async fn say_json(&mut self, run: &str, id: u64, report_json: &str) {
        self.report_json(run, id, report_json.to_owned()).await;
        self.acknowledged(id).await;
    }

    async fn report_json(&mut self, run: &str, id: u64, report_json: String) {
        let event = RunEvent {
            run: run.into(),
            attempt: self.attempt,
            id,
            at_ms: 0,
            report_json,
        };
        self.outgoing
            .send(ControlUp {
                message: Some(control_up::Message::Event(event)),
            })
            .await
            .unwrap();
    }
}

pub(crate) async fn credential(server: &Server) -> String {
    credential_of(server, "n1").await
}

pub(crate) async fn credential_of(server: &Server, node: &str) -> String {
    Agent::connect(server, &server.join_token().await, node)
        .await
        .unwrap()
        .ack
        .credential
}

pub(crate) async fn submit(server: &Server) -> String {
    submit_with(server, json!({"recipe": "ddp"})).await
}

pub(crate) async fn submit_with(server: &Server, spec: serde_json::Value) -> String {
    let (status, run) = server.post("/api/runs", spec).await;
    assert_eq!(status, StatusCode::CREATED, "{run}");
    run["id"].as_str().unwrap().to_owned()
}

/// Prepares and starts a run of two ranks on one node, and returns when both are running.
pub(crate) async fn start_ranks(server: &Server, agent: &mut Control, run: &str) {
    let (prepare, _) = agent.command().await;
    agent
        .say(run, 1, NodeReport::Accepted { command: prepare.id })
        .await;
    let prepared = Prepared {
        nproc_default: 2,
        turns_live: true,
        ..Prepared::default()
    };
    agent.say(run, 2, NodeReport::Prepared(prepared)).await;
    let (start, _) = agent.command().await;
    agent
        .say(run, 3, NodeReport::Accepted { command: start.id })
        .await;
    for rank in [0, 1] {
        let started = NodeReport::RankStarted {
            rank: Rank(rank),
            local_rank: rank,
            pid: 7 + rank,
        };
        agent.say(run, 4 + u64::from(rank), started).await;
    }
    run_is(server, run, RunState::Running).await;
}

async fn stop(server: &Server, run: &str, after: &str) -> (StatusCode, serde_json::Value) {
    server
        .post(&format!("/api/runs/{run}/stop"), json!({ "after": after }))
        .await
}

pub(crate) async fn run_is(server: &Server, run: &str, state: RunState) -> RunView {
    until("the run's state", async || {
        let (_, body) = server.get(&format!("/api/runs/{run}")).await;
        let view: RunView = serde_json::from_value(body).unwrap();
        (view.summary.state == state).then_some(view)
    })
    .await
}

#[tokio::test]
async fn a_run_goes_from_the_form_to_its_end() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let run = submit(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    let (prepare, asked) = agent.command().await;
    assert!(matches!(asked, NodeCommand::Prepare { nnodes: 1, .. }) && prepare.run == run);
    agent
        .say(&run, 1, NodeReport::Accepted { command: prepare.id })
        .await;
    agent
        .say(
            &run,
            2,
            NodeReport::Prepared(Prepared {
                nproc_default: 1,
                port: 29_500,
                ..Prepared::default()
            }),
        )
        .await;
    let (start, asked) = agent.command().await;
    assert!(matches!(asked, NodeCommand::Start(start) if start.nproc == 1 && start.master_port == 29_500));
    agent
        .say(&run, 3, NodeReport::Accepted { command: start.id })
        .await;
    agent
        .say(
            &run,
            4,
            NodeReport::RankStarted {
                rank: Rank(0),
                local_rank: 0,
                pid: 7,
            },
        )
        .await;
    run_is(&server, &run, RunState::Running).await;
    let log = LogChunk {
        run: run.clone(),
        attempt: 1,
        rank: 0,
        stream: "stdout".into(),
        offset: 0,
        bytes: b"step 1\n".into(),
        kept_from: 0,
    };
    agent
        .outgoing
        .send(ControlUp {
            message: Some(control_up::Message::Log(log)),
        })
        .await
        .unwrap();
    assert!(matches!(agent.next().await, control_down::Message::LogAck(ack) if ack.length == 7));
    let (_, piece) = server.get(&format!("/api/runs/{run}/logs?rank=0")).await;
    assert_eq!(
        serde_json::from_value::<LogPiece>(piece).unwrap().text,
        "step 1\n"
    );
    let exit = RankExit {
        signal: Some(9),
        at_ns: 1,
        ..RankExit::default()
    };
    agent.say(&run, 5, NodeReport::RankExited(exit)).await;
    agent
        .say(&run, 5, NodeReport::RankExited(RankExit::default()))
        .await;
    agent
        .say(
            &run,
            6,
            NodeReport::Ended(NodeEnd {
                code: Some(1),
                ..NodeEnd::default()
            }),
        )
        .await;
    let view = run_is(&server, &run, RunState::Failed).await;
    let outcome = view.summary.outcome.unwrap();
    assert_eq!((outcome.cause.as_str(), outcome.rank), ("signal", Some(Rank(0))));
}

#[tokio::test]
async fn a_run_has_an_owner_and_labels_and_nodes_get_no_labels() {
    let server = Server::start().await;
    let wanted = json!({"role": "operator", "note": " vision team "});
    let (_, token) = server.post("/api/tokens", wanted).await;
    let submit_as = async |token: &str, labels: serde_json::Value| {
        let request = server.anonymous(Method::POST, "/api/runs").bearer_auth(token);
        answer(request.json(&json!({"recipe": "ddp", "labels": labels}))).await
    };
    let operator = token["token"].as_str().unwrap();
    let (status, problem) = submit_as(operator, json!({"a b": "x"})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(problem["errors"][0]["field"], "labels.a b", "{problem}");
    let (status, first) = submit_as(operator, json!({"team": "vision"})).await;
    assert_eq!(status, StatusCode::CREATED, "{first}");
    let mut agent = Control::connect(&server, &credential(&server).await, &[]).await;
    let (_, prepare) = agent.command().await;
    assert!(matches!(prepare, NodeCommand::Prepare { spec, .. } if spec.labels.is_empty()));
    let (_, second) = submit_as(ADMIN, json!({})).await;
    drop(agent);
    let server = server.restart().await;
    let (_, list) = server.get("/api/runs").await;
    for (run, owner, labels) in [
        (&first, "vision team", json!({"team": "vision"})),
        (&second, "admin", serde_json::Value::Null),
    ] {
        let listed = list.as_array().unwrap().iter().find(|one| one["id"] == run["id"]);
        let listed = listed.unwrap();
        assert_eq!((&listed["owner"], &listed["labels"]), (&json!(owner), &labels));
    }
}

#[tokio::test]
async fn a_stop_after_a_step_is_agreed_ahead_of_all_ranks_and_ends_as_stopped() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let run = submit(&server).await;
    let (status, problem) = stop(&server, &run, "step").await;
    assert_eq!(status, StatusCode::CONFLICT, "nothing runs: {problem}");
    let mut agent = Control::connect(&server, &credential, &[]).await;
    start_ranks(&server, &mut agent, &run).await;
    let (status, problem) = stop(&server, &run, "step").await;
    assert_eq!(status, StatusCode::CONFLICT);
    let detail = problem["detail"].as_str().unwrap();
    assert!(
        detail.contains("rank 0 and others has reported no step") && detail.contains("without `after`"),
        "{detail}"
    );

    let mut telemetry = Agent::connect(&server, &credential, "n1").await.unwrap();
    let labels = |metric, rank| vec!["__name__", metric, "run", run.as_str(), "rank", rank];
    let series = [
        ("train_step", "0"),
        ("train_step", "1"),
        ("train_step_seconds", "0"),
        ("train_step_seconds", "1"),
    ];
    let series = series.map(|(metric, rank)| labels(metric, rank));
    telemetry.define_labels("live", 0, series.into()).await;
    let now_ms = collector::clock::now_ms();
    // Rank 1 is one step ahead. A save among its steps does not count.
    for (seq, step_s) in [(1, 0.5), (2, 40.0), (3, 0.5)] {
        // After the start of the attempt: older samples belong to another attempt.
        let at_ms = now_ms + seq;
        let values = [100.0, 101.0, 0.6, step_s];
        telemetry
            .sample("live", seq.cast_unsigned(), at_ms, &values)
            .await;
    }
    telemetry.acked("live", 3).await;
    let view = until("the steps to be seen", async || {
        let (_, body) = server.get(&format!("/api/runs/{run}")).await;
        let view: RunView = serde_json::from_value(body).unwrap();
        (view.steps_since_checkpoint == Some(101)).then_some(view)
    })
    .await;
    assert_eq!(view.stop, None);

    let (status, view) = stop(&server, &run, "step").await;
    assert_eq!(status, StatusCode::OK, "{view}");
    assert_eq!(
        view["stop"],
        json!({"after_step": 113, "after_checkpoint": false, "steps_lost": 101})
    );
    assert_eq!(view["state"], "running");
    let (order, asked) = agent.command().await;
    assert_eq!(
        asked,
        NodeCommand::StopAfter {
            step: 113,
            grace_ms: 120_000
        }
    );

    // Neither the agent's answer nor the step is lost when the collector restarts.
    let server = server.restart().await;
    let mut agent = Control::connect(&server, &credential, &[(&run, 1)]).await;
    let (again, asked_again) = agent.command().await;
    assert_eq!((again.id, asked_again), (order.id, asked));
    agent
        .say(&run, 6, NodeReport::Accepted { command: order.id })
        .await;
    for rank in [0, 1] {
        let came = NodeReport::StopStep {
            rank: Rank(rank),
            step: 113,
        };
        agent.say(&run, 7 + u64::from(rank), came).await;
    }
    run_is(&server, &run, RunState::Stopping).await;
    for rank in [0, 1] {
        let exit = RankExit {
            rank: Rank(rank),
            code: Some(143),
            ..RankExit::default()
        };
        agent
            .say(&run, 9 + u64::from(rank), NodeReport::RankExited(exit))
            .await;
    }
    let end = NodeEnd {
        code: Some(1),
        cause: EndCause::Stopped,
        ..NodeEnd::default()
    };
    agent.say(&run, 11, NodeReport::Ended(end)).await;
    let view = run_is(&server, &run, RunState::Stopped).await;
    assert_eq!(
        view.summary.outcome.unwrap().message.to_string(),
        "stopped as asked, after step 113"
    );
    let (status, _) = stop(&server, &run, "checkpoint").await;
    assert_eq!(status, StatusCode::CONFLICT, "it has ended");
}

#[tokio::test]
async fn a_stop_after_a_checkpoint_waits_and_one_at_once_overtakes_it() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let run = submit(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    start_ranks(&server, &mut agent, &run).await;
    let (status, view) = stop(&server, &run, "checkpoint").await;
    assert_eq!(
        (status, &view["stop"]),
        (StatusCode::OK, &json!({"after_checkpoint": true}))
    );
    assert_eq!(view["state"], "running");
    let (status, _) = answer(server.request(Method::POST, &format!("/api/runs/{run}/stop"))).await;
    assert_eq!(status, StatusCode::OK);
    let (_, asked) = agent.command().await;
    assert_eq!(asked, NodeCommand::Stop { grace_ms: 30_000 });
    let (status, problem) = stop(&server, &run, "step").await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(
        problem["detail"].as_str().unwrap().contains("stopping already"),
        "{problem}"
    );
}

#[tokio::test]
async fn a_command_that_was_not_accepted_is_sent_again_after_a_restart_of_the_collector() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let run = submit(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    let (first, _) = agent.command().await;
    let server = server.restart().await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    let (again, _) = agent.command().await;
    assert_eq!((again.id, again.run), (first.id, run.clone()));
    agent
        .say(&run, 1, NodeReport::Accepted { command: again.id })
        .await;
    let (status, _) = answer(server.request(Method::POST, &format!("/api/runs/{run}/stop"))).await;
    assert_eq!(status, StatusCode::OK, "without a body");
    let (_, asked) = agent.command().await;
    assert_eq!(asked, NodeCommand::Stop { grace_ms: 30_000 });
    agent
        .say(
            &run,
            2,
            NodeReport::Ended(NodeEnd {
                cause: EndCause::NeverStarted,
                ..NodeEnd::default()
            }),
        )
        .await;
    run_is(&server, &run, RunState::Stopped).await;
}

#[tokio::test]
async fn attempts_of_ended_runs_are_stopped_and_unknown_ones_are_left_alone() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let run = submit(&server).await;
    let (status, _) = answer(server.request(Method::POST, &format!("/api/runs/{run}/stop"))).await;
    assert_eq!(status, StatusCode::OK);
    run_is(&server, &run, RunState::Stopped).await;
    let mut agent = Control::connect(&server, &credential, &[("elsewhere-1", 1), (&run, 1)]).await;
    let (stop, asked) = agent.command().await;
    assert!(matches!(asked, NodeCommand::Stop { .. }) && stop.run == run);
}

#[tokio::test]
async fn errors_of_a_spec_are_reported_per_field() {
    let server = Server::start().await;
    let (status, problem) = server
        .post("/api/runs", json!({"recipe": "nope", "nodes": 0}))
        .await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let fields: Vec<&str> = problem["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["field"].as_str().unwrap())
        .collect();
    assert_eq!(fields, ["recipe", "nodes"]);
}

/// A run that failed on its first attempt, with no checkpoint.
async fn failed_run(server: &Server, credential: &str) -> (String, Control) {
    let mut agent = Control::connect(server, credential, &[]).await;
    (submit_failing(server, &mut agent).await, agent)
}

/// A run whose first attempt cannot start on the agent's node. The next report has the number 3.
pub(crate) async fn submit_failing(server: &Server, agent: &mut Control) -> String {
    let run = submit(server).await;
    let (prepare, _) = agent.command().await;
    agent
        .say(&run, 1, NodeReport::Accepted { command: prepare.id })
        .await;
    let message = "no torch".to_owned();
    agent.say(&run, 2, NodeReport::PrepareFailed { message }).await;
    run_is(server, &run, RunState::Failed).await;
    run
}

async fn resume(server: &Server, run: &str, request: serde_json::Value) -> (StatusCode, serde_json::Value) {
    server.post(&format!("/api/runs/{run}/resume"), request).await
}

#[tokio::test]
async fn only_a_run_that_has_ended_can_be_resumed() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let (run, mut agent) = failed_run(&server, &credential).await;
    for (request, status, said) in [
        (json!({}), StatusCode::CONFLICT, "no complete checkpoint of run"),
        (
            json!({"checkpoint": "step-7"}),
            StatusCode::BAD_REQUEST,
            "is not an absolute path",
        ),
        (
            json!({"checkpoint": "/c", "from_start": true}),
            StatusCode::BAD_REQUEST,
            "not both",
        ),
    ] {
        let (got, problem) = resume(&server, &run, request).await;
        assert_eq!(got, status, "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains(said), "{problem}");
    }
    let (status, view) = resume(&server, &run, json!({"checkpoint": "/ckpt/step-7"})).await;
    assert_eq!(status, StatusCode::OK, "{view}");
    assert_eq!(view["attempts"][1]["cause"], "resumed by a person");
    assert_eq!(view["attempts"][1]["resumed_from"]["path"], "/ckpt/step-7");
    let (prepare, asked) = agent.command().await;
    assert_eq!(prepare.attempt, 2);
    assert!(
        matches!(&asked, NodeCommand::Prepare { resume_from: Some(path), .. } if path == "/ckpt/step-7"),
        "{asked:?}"
    );
    let (status, problem) = resume(&server, &run, json!({"from_start": true})).await;
    assert_eq!(status, StatusCode::CONFLICT);
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("is preparing and has not ended"), "{detail}");
    let (status, _) = resume(&server, "nope-1", json!({})).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let (_, audit) = server.get("/api/audit").await;
    let resumed =
        |entry: &serde_json::Value| entry["what"] == "run_resume" && entry["target"] == run.as_str();
    let count = audit
        .as_array()
        .map(|all| all.iter().filter(|entry| resumed(entry)).count());
    assert_eq!(count, Some(1), "{audit}");
}

#[tokio::test]
async fn a_node_that_failed_a_run_is_left_out_and_without_others_the_run_ends() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let run = submit_with(&server, json!({"recipe": "ddp", "max_restarts": 3})).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    let (prepare, _) = agent.command().await;
    agent
        .say(&run, 1, NodeReport::Accepted { command: prepare.id })
        .await;
    let message = "no torch".to_owned();
    agent.say(&run, 2, NodeReport::PrepareFailed { message }).await;
    let view = run_is(&server, &run, RunState::Failed).await;
    let excluded = &view.attempts[1].excluded;
    assert_eq!(
        (excluded[0].node.as_str(), excluded[0].reason.as_str()),
        ("n1", "no torch")
    );
    assert_eq!(
        view.summary.outcome.unwrap().message.to_string(),
        "no torch; no other node can take the place of n1"
    );
}

#[tokio::test]
async fn a_node_gets_no_run_before_its_ended_attempts_are_stopped() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let old = submit(&server).await;
    let (status, _) = answer(server.request(Method::POST, &format!("/api/runs/{old}/stop"))).await;
    assert_eq!(status, StatusCode::OK);
    let mut agent = Control::connect(&server, &credential, &[(&old, 1)]).await;
    let (stop, asked) = agent.command().await;
    assert!(matches!(asked, NodeCommand::Stop { .. }) && stop.run == old);
    let run = submit(&server).await;
    until("the reason to wait", async || {
        let (_, view) = server.get(&format!("/api/runs/{run}")).await;
        (view["outcome"]["cause"] == "no_nodes").then_some(())
    })
    .await;
    let end = NodeEnd {
        code: Some(1),
        ..NodeEnd::default()
    };
    agent.say(&old, 1, NodeReport::Ended(end)).await;
    let (prepare, asked) = agent.command().await;
    assert!(matches!(asked, NodeCommand::Prepare { .. }) && prepare.run == run);
}

#[tokio::test]
async fn memory_is_beside_its_plan_only_if_both_are_known() {
    async fn unknown(server: &Server, run: &str) -> String {
        let (status, memory) = server.get(&format!("/api/runs/{run}/memory")).await;
        assert_eq!(status, StatusCode::OK, "{memory}");
        assert!(memory["compared"].is_null(), "{memory}");
        memory["unknown"].as_str().unwrap().to_owned()
    }
    let server = Server::start().await;
    let credential = credential(&server).await;
    let run = submit(&server).await;
    assert_eq!(
        unknown(&server, &run).await,
        "the number of ranks is not known yet"
    );
    let mut agent = Control::connect(&server, &credential, &[]).await;
    start_ranks(&server, &mut agent, &run).await;
    assert_eq!(unknown(&server, &run).await, "no GPU memory was measured");
    let (status, _) = server.get("/api/runs/none/memory").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}
