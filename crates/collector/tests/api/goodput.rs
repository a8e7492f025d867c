//! Goodput over HTTP: a run that fails, resumes from a checkpoint and repeats steps.

use domain::run::checkpoint::{Checkpoint, CheckpointOnNode, CheckpointReport, Origin};
use domain::run::state::{NodeEnd, NodeReport, RunState};
use reqwest::{Method, StatusCode};
use serde_json::Value;

use crate::harness::{Agent, Server, answer, is_problem, until};
use crate::runs::{Control, credential, run_is, start_ranks, submit};

/// Time between two steps.
const STEP_MS: i64 = 10;

/// Sends the steps of rank 0, and returns after the time of the last one.
async fn train(telemetry: &mut Agent, run: &str, segment: &str, steps: std::ops::RangeInclusive<u32>) {
    let labels = vec!["__name__", "train_step", "run", run, "rank", "0"];
    telemetry.define_labels(segment, 0, vec![labels]).await;
    let (began_ms, mut sent) = (collector::clock::now_ms(), 0_u64);
    for step in steps {
        sent += 1;
        let at_ms = began_ms + i64::try_from(sent).unwrap() * STEP_MS;
        telemetry.sample(segment, sent, at_ms, &[f64::from(step)]).await;
    }
    telemetry.acked(segment, sent).await;
    let end_ms = began_ms + i64::try_from(sent).unwrap() * STEP_MS;
    until("the last step", async || {
        (collector::clock::now_ms() > end_ms).then_some(())
    })
    .await;
}

fn checkpoint(step: u64) -> NodeReport {
    let on_node = CheckpointOnNode {
        mark: "inode".into(),
        complete: true,
        origin: Some(Origin::Proven),
        ..CheckpointOnNode::default()
    };
    NodeReport::Checkpoints(CheckpointReport {
        folder: Some("/c".into()),
        proves: true,
        checkpoints: vec![Checkpoint {
            path: format!("/c/step-{step}"),
            step: Some(step),
            finished_ms: Some(collector::clock::now_ms()),
            seen: [("n1".to_owned(), on_node)].into(),
            ..Checkpoint::default()
        }],
        ..CheckpointReport::default()
    })
}

fn lost(time: &Value, cause: &str) -> f64 {
    let mut all = time["lost"].as_array().unwrap().iter();
    let found = all.find(|lost| lost["cause"] == cause);
    found.map_or(0.0, |lost| lost["seconds"].as_f64().unwrap())
}

#[tokio::test]
async fn the_steps_after_the_checkpoint_of_a_failed_attempt_are_lost() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let run = submit(&server).await;
    let mut telemetry = Agent::connect(&server, &credential, "n1").await.unwrap();
    let mut agent = Control::connect(&server, &credential, &[]).await;
    start_ranks(&server, &mut agent, &run).await;
    train(&mut telemetry, &run, "one", 1..=30).await;
    agent.say(&run, 50, checkpoint(20)).await;
    let end = NodeEnd {
        code: Some(1),
        ..NodeEnd::default()
    };
    agent.say(&run, 90, NodeReport::Ended(end)).await;
    run_is(&server, &run, RunState::Failed).await;

    let request = server.request(Method::POST, &format!("/api/runs/{run}/resume"));
    let (status, view) = answer(request).await;
    assert_eq!(status, StatusCode::OK, "{view}");
    assert_eq!(view["attempts"][1]["resumed_from"]["step"], 20, "{view}");
    agent.attempt = 2;
    start_ranks(&server, &mut agent, &run).await;
    train(&mut telemetry, &run, "two", 21..=50).await;

    let (status, goodput) = server.get(&format!("/api/goodput?run={run}")).await;
    assert_eq!(status, StatusCode::OK, "{goodput}");
    // Two ranks without GPUs. A step is 10 ms, and steps 21 to 30 were made twice.
    let time = &goodput["ranks"];
    let seconds = |name: &str| time[name].as_f64().unwrap();
    let repeated_s = lost(time, "repeated_steps");
    assert!((0.19..0.21).contains(&repeated_s), "{goodput}");
    assert!(
        lost(time, "start_up") > 0.0 && lost(time, "ending") > 0.0,
        "{goodput}"
    );
    let productive_s = seconds("productive_seconds");
    assert!(productive_s >= 2.0 * (0.19 + 0.29) - 0.01, "{goodput}");
    assert_eq!(seconds("unknown_seconds"), 0.0, "{goodput}");
    let all = time["lost"].as_array().unwrap().iter();
    let lost_s: f64 = all.map(|lost| lost["seconds"].as_f64().unwrap()).sum();
    let allocated_s = seconds("allocated_seconds");
    assert!((productive_s + lost_s - allocated_s).abs() < 1e-6, "{goodput}");
    let life_ms = goodput["end_ms"].as_i64().unwrap() - goodput["start_ms"].as_i64().unwrap();
    assert!(allocated_s <= 2.0 * life_ms as f64 / 1e3, "{goodput}");
    assert_eq!(goodput["gpus"]["allocated_seconds"], 0.0, "{goodput}");
    let sentence = goodput["sentence"].as_str().unwrap();
    assert!(sentence.starts_with("too early to say"), "{sentence}");

    let (_, of_all) = server.get("/api/goodput").await;
    assert_eq!(of_all["runs"][0]["run"], run.as_str(), "{of_all}");
    let day_ms = of_all["end_ms"].as_i64().unwrap() - of_all["start_ms"].as_i64().unwrap();
    assert_eq!(day_ms, 86_400_000);
    let start_s = goodput["start_ms"].as_i64().unwrap() / 1_000 - 60;
    let (_, before) = server
        .get(&format!("/api/goodput?start={}&end={start_s}", start_s - 60))
        .await;
    assert_eq!(before["runs"].as_array().unwrap().len(), 0, "{before}");
    assert_eq!(before.get("sentence"), None, "{before}");
}

#[tokio::test]
async fn a_period_without_time_and_an_unknown_run_are_refused() {
    let server = Server::start().await;
    for (query, status) in [
        ("start=2&end=1", StatusCode::BAD_REQUEST),
        ("start=4000000000", StatusCode::BAD_REQUEST),
        ("start=yesterday", StatusCode::BAD_REQUEST),
        ("run=nope-1", StatusCode::NOT_FOUND),
    ] {
        let (got, problem) = server.get(&format!("/api/goodput?{query}")).await;
        assert_eq!(got, status, "{query}: {problem}");
        assert!(is_problem(&problem, status), "{query}: {problem}");
    }
}
