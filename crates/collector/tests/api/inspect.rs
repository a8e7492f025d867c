//! Inspection of ranks, with an agent that answers correctly, wrongly, or not at all.

use domain::run::inspect::{
    Answer as Said, LaneSource, LanesAnswer, Question, RankAnswer, TraceFile, TraceLanes, TraceLength, What,
};
use domain::run::state::{NodeReport, StallCause};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use wire::proto::{Answer, ControlUp, control_down, control_up};

use crate::harness::{Server, is_problem, until};
use crate::runs::{Control, credential, start_ranks, submit, submit_with};

const STACK: &str = "Thread 0x1 (most recent call first):\n  File \"/home/a/train.py\", line 57 in step\n";

impl Control {
    /// Returns the next inspection request, and its id.
    async fn question(&mut self) -> (u64, Question) {
        loop {
            if let control_down::Message::Question(question) = self.next().await {
                return (
                    question.id,
                    serde_json::from_str(&question.question_json).unwrap(),
                );
            }
        }
    }

    async fn answers(&self, id: u64, answer_json: String, bytes: &[u8]) {
        let last = answer_json.is_empty();
        let answer = Answer {
            id,
            answer_json,
            bytes: bytes.to_vec(),
            last,
        };
        let message = Some(control_up::Message::Answer(answer));
        self.outgoing.send(ControlUp { message }).await.unwrap();
    }
}

fn rank(rank: u32, text: Option<&str>, problem: &str) -> String {
    let answer = RankAnswer {
        rank: domain::ident::Rank(rank),
        text: text.map(Into::into),
        problem: problem.into(),
        ..RankAnswer::default()
    };
    serde_json::to_string(&Said::Rank(Box::new(answer))).unwrap()
}

async fn ask(server: &Server, run: &str, what: &str, body: Value) -> (StatusCode, Value) {
    server.post(&format!("/api/runs/{run}/{what}"), body).await
}

#[tokio::test]
async fn ranks_are_inspected_by_their_agent_and_each_has_an_answer_or_a_reason() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let run = submit(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    let (status, early) = ask(&server, &run, "stacks", json!({})).await;
    assert!(is_problem(&early, StatusCode::CONFLICT), "{status} {early}");
    start_ranks(&server, &mut agent, &run).await;

    // Malformed answers and answers to other requests, in addition to the correct ones; none from rank 1.
    let asked = ask(&server, &run, "stacks", json!({}));
    let answering = async {
        let (id, question) = agent.question().await;
        assert_eq!(
            question,
            Question {
                rank: None,
                what: What::Stacks
            }
        );
        agent.answers(id ^ 1, rank(1, Some(STACK), ""), &[]).await;
        agent.answers(id, "{\"rank\": [".into(), &[]).await;
        agent.answers(id, rank(9, Some(STACK), ""), &[]).await;
        agent.answers(id, rank(0, Some(STACK), ""), &[]).await;
        agent.answers(id, "x".repeat(3 << 20), &[]).await;
        agent.answers(id, String::new(), &[]).await;
    };
    let ((status, view), ()) = tokio::join!(asked, answering);
    assert_eq!(status, StatusCode::OK, "{view}");
    assert_eq!(view["groups"][0]["doing"], "step at train.py:57");
    assert_eq!(
        (
            &view["ranks"][1]["problem"],
            view["ranks"].as_array().map(Vec::len)
        ),
        (&json!("has ended"), Some(2))
    );

    let asked = ask(&server, &run, "flight-digest", json!({"rank": 0}));
    let answering = async {
        let (id, question) = agent.question().await;
        assert_eq!(question.what, What::FlightDigest);
        let told = json!({"rank": {"rank": 0, "digest": {"groups": [{"name": "0", "members": "0-1", "last_enqueued": 4}]}}});
        agent.answers(id, told.to_string(), &[]).await;
        agent.answers(id, String::new(), &[]).await;
    };
    let ((status, view), ()) = tokio::join!(asked, answering);
    assert_eq!(status, StatusCode::OK, "{view}");
    let group = &view["ranks"][0]["digest"]["groups"][0];
    assert_eq!(
        (&group["members"], &group["last_enqueued"]),
        (&json!("0-1"), &json!(4))
    );

    for (what, body, expected) in [
        ("stacks", json!({"rank": 7}), StatusCode::NOT_FOUND),
        ("stacks", json!({"rnak": 0}), StatusCode::UNPROCESSABLE_ENTITY),
        ("trace", json!({"seconds": 31}), StatusCode::UNPROCESSABLE_ENTITY),
        (
            "trace",
            json!({"seconds": 1, "steps": 1}),
            StatusCode::BAD_REQUEST,
        ),
        ("trace", json!({}), StatusCode::CONFLICT),
    ] {
        let (status, body) = ask(&server, &run, what, body).await;
        assert_eq!(status, expected, "{what}: {body}");
    }
    drop(agent);
    let gone = until("the agent to be away", async || {
        let (_, view) = ask(&server, &run, "flight", json!({"rank": 1})).await;
        let problem = view["ranks"][0]["problem"].as_str()?.to_owned();
        problem.contains("is not connected").then_some(problem)
    });
    gone.await;
}

#[tokio::test]
async fn a_trace_is_fetched_piece_by_piece_from_the_node_that_has_it() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let run = submit_with(&server, json!({"recipe": "ddp", "kineto": true})).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    start_ranks(&server, &mut agent, &run).await;
    let recording = async {
        let (id, question) = agent.question().await;
        assert_eq!(question.what, What::Trace(TraceLength::Steps(3)));
        let trace = Some(TraceFile {
            file: "rank-0-1_7.json".into(),
            bytes: 5,
        });
        let done = RankAnswer {
            trace,
            ..RankAnswer::default()
        };
        agent
            .answers(
                id,
                serde_json::to_string(&Said::Rank(Box::new(done))).unwrap(),
                &[],
            )
            .await;
        agent.answers(id, String::new(), &[]).await;
    };
    let ((_, view), ()) = tokio::join!(
        ask(&server, &run, "trace", json!({"rank": 0, "steps": 3})),
        recording
    );
    assert_eq!(
        view["ranks"][0]["trace"],
        json!({"file": "rank-0-1_7.json", "bytes": 5})
    );

    let path = |node: &str| format!("/api/runs/{run}/trace?node={node}&file=rank-0-1_7.json");
    let piece = serde_json::to_string(&Said::Piece { length: 5 }).unwrap();
    let giving = async {
        for (offset, bytes) in [(0, &b"[1,"[..]), (3, b"2]")] {
            let (id, question) = agent.question().await;
            let file = "rank-0-1_7.json".to_owned();
            assert_eq!(question.what, What::TracePiece { file, offset });
            agent.answers(id, piece.clone(), bytes).await;
        }
    };
    let fetched = async {
        server
            .request(Method::GET, &path("n1"))
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap()
    };
    let (text, ()) = tokio::join!(fetched, giving);
    assert_eq!(text, "[1,2]");
    let (status, _) = server.get(&path("elsewhere")).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let refusing = async {
        let (id, _) = agent.question().await;
        let message = "the trace cannot be read on the node: it is gone".into();
        agent
            .answers(id, serde_json::to_string(&Said::Failed { message }).unwrap(), &[])
            .await;
    };
    let missing = path("n1");
    let ((status, body), ()) = tokio::join!(server.get(&missing), refusing);
    assert!(
        status == StatusCode::SERVICE_UNAVAILABLE && body["detail"].as_str().unwrap().contains("it is gone"),
        "{body}"
    );
}

#[tokio::test]
async fn lanes_of_a_trace_come_from_its_node_or_have_a_reason() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let run = submit(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    start_ranks(&server, &mut agent, &run).await;
    let path = |node: &str| format!("/api/runs/{run}/trace/lanes?node={node}&file=rank-0-1_7.json");
    let lanes = TraceLanes {
        source: LaneSource::GpuKernels,
        steps: Vec::new(),
        steps_left_out: 2,
    };
    let read = LanesAnswer {
        lanes: Some(lanes),
        problem: String::new(),
    };
    let refused = LanesAnswer {
        lanes: None,
        problem: "the trace has neither".to_owned(),
    };
    let answering = async {
        for told in [read, refused] {
            let (id, question) = agent.question().await;
            let file = "rank-0-1_7.json".to_owned();
            assert_eq!(question.what, What::TraceLanes { file });
            let told = serde_json::to_string(&Said::Lanes(Box::new(told))).unwrap();
            agent.answers(id, told, &[]).await;
        }
    };
    let asking = async { (server.get(&path("n1")).await, server.get(&path("n1")).await) };
    let (((status, read), (_, refused)), ()) = tokio::join!(asking, answering);
    assert_eq!(status, StatusCode::OK, "{read}");
    assert_eq!(
        read["lanes"],
        json!({"source": "gpu_kernels", "steps": [], "steps_left_out": 2})
    );
    assert_eq!(
        (&read["node"], &read["file"]),
        (&json!("n1"), &json!("rank-0-1_7.json"))
    );
    assert!(refused.get("lanes").is_none(), "{refused}");
    assert_eq!(refused["problem"], "the trace has neither");
    let lanes_path = path("n1");
    for (told, expected) in [
        (r#"{"lanes": ["#, "cannot be read"),
        ("", "cannot be read"),
        (r#"{"piece": {"length": 5}}"#, "cannot be read"),
        (r#"{"failed": {"message": "it is gone"}}"#, "it is gone"),
    ] {
        let answering = async {
            let (id, _) = agent.question().await;
            agent.answers(id, told.to_owned(), &[]).await;
        };
        let ((status, body), ()) = tokio::join!(server.get(&lanes_path), answering);
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{told}: {body}");
        let detail = body["detail"].as_str().unwrap();
        assert!(detail.contains(expected), "{told}: {detail}");
    }
    let (status, _) = server.get(&path("elsewhere")).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_stalled_rank_requests_the_stacks_of_all_ranks_once_and_adds_events() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let run = submit(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    start_ranks(&server, &mut agent, &run).await;
    let stalled = |rank| NodeReport::RankStalled {
        rank: domain::ident::Rank(rank),
        step: Some(3),
        for_ms: 60_000,
        cause: StallCause::NoStep,
    };
    agent.report(&run, 20, stalled(0)).await;
    let (id, question) = agent.question().await;
    assert_eq!(
        question,
        Question {
            rank: None,
            what: What::Stacks
        }
    );
    agent.answers(id, rank(0, Some(STACK), ""), &[]).await;
    agent
        .answers(id, rank(1, None, "did not answer within 5 s"), &[])
        .await;
    agent.answers(id, String::new(), &[]).await;
    let told = until("the event", async || {
        let (_, events) = server
            .get(&format!("/api/events?run={run}&kind=rank_stacks"))
            .await;
        Some(events[0]["message"].as_str()?.to_owned())
    });
    let expected =
        format!("run {run} is stalled; rank 0: step at train.py:57; rank 1: did not answer within 5 s");
    assert_eq!(told.await, expected);
    // The second stall of the same incident causes no request: the next message is its acknowledgement.
    agent.report(&run, 21, stalled(1)).await;
    while !matches!(agent.next().await, control_down::Message::EventAck(ack) if ack.id == 21) {}
}
