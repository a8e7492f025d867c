//! Knobs of runs over HTTP: what is rejected, what is a no-op, and what makes another attempt.

use domain::ident::Rank;
use domain::run::knob::KnobAnswer;
use domain::run::state::{NodeCommand, NodeEnd, NodeReport};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::harness::{Agent, Server, until};
use crate::runs::{Control, credential, credential_of, start_ranks, submit};

async fn post(server: &Server, run: &str, what: &str, body: Value) -> (StatusCode, Value) {
    server.post(&format!("/api/runs/{run}/{what}"), body).await
}

fn attempts(view: &Value) -> Vec<(String, Value)> {
    let attempts = view["attempts"].as_array().unwrap().iter();
    attempts
        .map(|attempt| {
            (
                attempt["cause"].as_str().unwrap().to_owned(),
                attempt["knobs"].clone(),
            )
        })
        .collect()
}

#[tokio::test]
async fn a_knob_that_cannot_be_changed_is_refused_with_the_reason_at_its_field() {
    let server = Server::start().await;
    let run = submit(&server).await;
    for (set, field, words) in [
        (json!({"momentum": "0.9"}), "set.momentum", "unknown knob"),
        (
            json!({"num_workers": "many"}),
            "set.num_workers",
            "a whole number from 0",
        ),
        (json!({}), "set", "at least one"),
    ] {
        let (status, problem) = post(&server, &run, "apply", json!({ "set": set })).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{problem}");
        let error = &problem["errors"][0];
        assert_eq!(error["field"], field);
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
    }
    let (status, problem) = post(&server, &run, "revert", json!({})).await;
    assert_eq!(status, StatusCode::CONFLICT, "{problem}");
    let (status, _) = post(
        &server,
        &run,
        "apply",
        json!({"set": {"amp": "off"}, "expect": 1}),
    )
    .await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "a field that is none");
}

#[tokio::test]
async fn each_change_makes_one_attempt_and_is_reverted_once() {
    let server = Server::start().await;
    let run = submit(&server).await;
    let apply = json!({"set": {"num_workers": "02"}, "expected": 1});
    for _ in 0..2 {
        let (status, view) = post(&server, &run, "apply", apply.clone()).await;
        assert_eq!(status, StatusCode::OK, "{view}");
        assert_eq!(
            attempts(&view)[1..],
            [("knob applied".to_owned(), json!({"num_workers": "2"}))]
        );
        let diff = &view["attempts"][1]["change"]["set"][0];
        assert_eq!(diff["how"], json!({"way": "flag", "flag": "--num-workers"}));
    }
    let late = json!({"set": {"num_workers": "4"}, "expected": 1});
    let (status, problem) = post(&server, &run, "apply", late).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(
        problem["detail"].as_str().unwrap().contains("attempt 2"),
        "{problem}"
    );
    for _ in 0..2 {
        let (status, view) = post(&server, &run, "revert", json!({"attempt": 2})).await;
        assert_eq!(status, StatusCode::OK, "{view}");
        assert_eq!(attempts(&view)[2..], [("knob reverted".to_owned(), Value::Null)]);
    }
    let (_, audit) = server.get("/api/audit").await;
    let audited: Vec<&str> = audit
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|line| line["what"].as_str())
        .collect();
    assert_eq!(audited, ["run_revert", "run_apply", "run_submit"], "{audit}");
    let (status, actions) = server.get(&format!("/api/runs/{run}/actions")).await;
    assert_eq!(status, StatusCode::OK, "{actions}");
    let told: Vec<&str> = actions
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|action| action["text"].as_str())
        .collect();
    assert_eq!(told, ["run revert", "run apply: num_workers=02"], "{actions}");
    let (status, compared) = server
        .get(&format!("/api/runs/compare?a={run}@1&b={run}@2"))
        .await;
    assert_eq!(status, StatusCode::OK, "{compared}");
    let differs = compared["differences"].as_array().unwrap();
    let workers = json!({"what": "knobs.num_workers", "b": "2"});
    assert!(differs.contains(&workers), "{compared}");
    let (status, _) = server.get(&format!("/api/runs/compare?a={run}@9&b={run}")).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

fn turned(live: u32, rank: u32, value: &str, applied: bool) -> NodeReport {
    NodeReport::KnobAnswered(KnobAnswer {
        knob: "process_group_timeout_s".into(),
        value: value.into(),
        applied,
        detail: "in 2 process groups".into(),
        rank: Rank(rank),
        live: Some(live),
    })
}

/// Returns the last change in place, when the ranks have answered.
async fn settled(server: &Server, run: &str, no: u64) -> Value {
    until("the ranks' words", async || {
        let (_, view) = server.get(&format!("/api/runs/{run}")).await;
        let live = view["attempts"][0]["live"].as_array()?.last()?.clone();
        (live["no"] == no && live["state"] != "asked").then_some(live)
    })
    .await
}

#[tokio::test]
async fn ranks_take_a_time_out_over_in_place_whoever_is_restarted_and_give_it_back() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let run = submit(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    start_ranks(&server, &mut agent, &run).await;

    let apply = json!({"set": {"process_group_timeout_s": "1200"}});
    let (status, view) = post(&server, &run, "apply", apply.clone()).await;
    assert_eq!(
        (status, &view["pending"], &view["state"]),
        (StatusCode::OK, &Value::Null, &json!("running"))
    );
    let (order, asked) = agent.command().await;
    let wanted = |live, value: Option<&str>| NodeCommand::TurnLive {
        live,
        set: [("process_group_timeout_s".to_owned(), value.map(Into::into))].into(),
    };
    assert_eq!(asked, wanted(1, Some("1200")));

    // The collector restarts before the agent has answered: the same command is sent again.
    let server = server.restart().await;
    let mut agent = Control::connect(&server, &credential, &[(&run, 1)]).await;
    let (again, asked) = agent.command().await;
    assert_eq!((again.id, asked), (order.id, wanted(1, Some("1200"))));
    agent
        .say(&run, 10, NodeReport::Accepted { command: order.id })
        .await;
    for rank in [0, 1] {
        agent
            .say(&run, 11 + u64::from(rank), turned(1, rank, "1200", true))
            .await;
    }
    let live = settled(&server, &run, 1).await;
    assert_eq!(
        (&live["state"], &live["ranks"]),
        (&json!("taken"), &json!([0, 1])),
        "{live}"
    );
    assert_eq!(live["answers"].as_array().unwrap().len(), 1, "they say the same");
    let (_, view) = post(&server, &run, "apply", apply).await;
    assert_eq!(
        view["attempts"][0]["live"].as_array().unwrap().len(),
        1,
        "it is so already"
    );

    let revert = json!({"attempt": 1, "live": 1});
    for _ in 0..2 {
        let (status, view) = post(&server, &run, "revert", revert.clone()).await;
        assert_eq!(
            (status, view["attempts"].as_array().unwrap().len()),
            (StatusCode::OK, 1)
        );
    }
    let (order, asked) = agent.command().await;
    assert_eq!(asked, wanted(2, None), "once");
    agent
        .say(&run, 13, NodeReport::Accepted { command: order.id })
        .await;
    agent.say(&run, 14, turned(2, 1, "", false)).await;
    let live = settled(&server, &run, 2).await;
    assert_eq!(live["state"], "refused", "{live}");
    let (_, asked) = agent.command().await;
    assert_eq!(
        asked,
        wanted(2, Some("1200")),
        "the value before, in ranks that had it"
    );
    let (_, view) = server.get(&format!("/api/runs/{run}")).await;
    assert_eq!(
        view["attempts"][0]["knobs"],
        json!({"process_group_timeout_s": "1200"})
    );

    let (_, log) = server.get("/api/events").await;
    let text = log.to_string();
    for words in [
        "knob applied, process_group_timeout_s=1200, in place",
        "process_group_timeout_s=1200: in all ranks (2)",
        "not applied, the old value stays: rank 1: in 2 process groups",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let (status, view) = post(&server, &run, "revert", json!({"restart": true})).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(view["pending"]["reverts_live"], 1, "{view}");
}

/// The values of an attempt's steps, in the order of [`LIKE`].
struct Steps {
    seconds: f64,
    samples_per_second: f64,
    kept_bytes: f64,
    batch: f64,
}

const LIKE: [&str; 6] = [
    "train_step",
    "train_step_seconds",
    "train_loss",
    "train_samples_per_second",
    "train_saved_tensor_bytes",
    "train_micro_batch",
];

/// Sends thirty steps of rank 0 of the attempt that has just begun. The last one ends an epoch, with half a batch.
async fn train(telemetry: &mut Agent, run: &str, segment: &str, steps: Steps) {
    let labels = |metric| vec!["__name__", metric, "run", run, "rank", "0"];
    telemetry.define_labels(segment, 0, LIKE.map(labels).into()).await;
    let now_ms = collector::clock::now_ms();
    for step in 1..=30 {
        let number = f64::from(step);
        let values = [
            number,
            steps.seconds,
            5.0 / number,
            steps.samples_per_second,
            steps.kept_bytes,
            if step == 30 {
                steps.batch / 2.0
            } else {
                steps.batch
            },
        ];
        let seq = u64::try_from(step).unwrap();
        telemetry
            .sample(segment, seq, now_ms + i64::from(step), &values)
            .await;
    }
    telemetry.acked(segment, 30).await;
}

/// Ends the attempt that a change waits for, and starts the next one.
async fn go_over(server: &Server, agent: &mut Control, run: &str, code: i32) {
    let end = NodeEnd {
        code: Some(code),
        ..NodeEnd::default()
    };
    agent.say(run, 90, NodeReport::Ended(end)).await;
    agent.attempt += 1;
    start_ranks(server, agent, run).await;
}

/// Returns an attempt when a condition holds for it.
async fn attempt(server: &Server, run: &str, no: usize, what: impl Fn(&Value) -> bool) -> Value {
    until("what becomes of the attempt", async || {
        let (_, view) = server.get(&format!("/api/runs/{run}")).await;
        let attempt = view["attempts"].get(no - 1)?.clone();
        what(&attempt).then_some(attempt)
    })
    .await
}

#[tokio::test]
async fn a_doubled_batch_is_tried_after_checkpointing_is_kept_and_goes_back_when_its_attempt_fails() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let run = submit(&server).await;
    let mut telemetry = Agent::connect(&server, &credential, "n1").await.unwrap();
    let mut agent = Control::connect(&server, &credential, &[]).await;
    start_ranks(&server, &mut agent, &run).await;
    let steps = |seconds, samples_per_second, kept_bytes| Steps {
        seconds,
        samples_per_second,
        kept_bytes,
        batch: 8.0,
    };
    train(&mut telemetry, &run, "one", steps(0.1, 80.0, 1_000.0)).await;

    let (status, problem) = post(
        &server,
        &run,
        "apply",
        json!({"set": {"num_workers": "1"}, "try_larger_batch": true}),
    )
    .await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{problem}");
    let apply = json!({"set": {"activation_checkpointing": "block"}, "try_larger_batch": true});
    let (status, view) = post(&server, &run, "apply", apply).await;
    assert_eq!(
        (status, &view["pending"]["try_larger_batch"]),
        (StatusCode::OK, &json!(true))
    );
    agent.command().await;
    go_over(&server, &mut agent, &run, 1).await;
    train(&mut telemetry, &run, "two", steps(0.12, 66.0, 300.0)).await;
    let kept = attempt(&server, &run, 2, |attempt| {
        attempt["change"]["verdict"]["decision"] == "kept"
    })
    .await;
    assert_eq!(kept["change"]["no_larger_batch"], Value::Null, "{kept}");

    // Automatically: the current attempt gets the command to end.
    let (_, asked) = agent.command().await;
    assert!(
        matches!(asked, NodeCommand::StopAfter { .. } | NodeCommand::Stop { .. }),
        "{asked:?}"
    );
    go_over(&server, &mut agent, &run, 1).await;
    let tried = attempt(&server, &run, 3, |attempt| attempt["change"].is_object()).await;
    let knobs = json!({"activation_checkpointing": "block", "micro_batch": "16"});
    assert_eq!(
        (&tried["knobs"], &tried["change"]["follows"]),
        (&knobs, &json!(2)),
        "{tried}"
    );

    // It runs out of memory: the next attempt is without the change, although the run allows no restarts.
    go_over(&server, &mut agent, &run, 1).await;
    let back = attempt(&server, &run, 4, |attempt| attempt["change"].is_object()).await;
    assert_eq!(
        (&back["cause"], &back["change"]["reverts"]),
        (&json!("knob reverted by itself"), &json!(3)),
        "{back}"
    );
    assert_eq!(back["knobs"], json!({"activation_checkpointing": "block"}));
    let tried = attempt(&server, &run, 3, |attempt| attempt["ended_ms"].is_i64()).await;
    assert_eq!(tried["change"]["verdict"]["decision"], "rejected");
}

#[tokio::test]
async fn a_preview_changes_nothing_and_an_exclusion_needs_a_free_node() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let run = submit(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    start_ranks(&server, &mut agent, &run).await;

    let (status, view) = server.get(&format!("/api/runs/{run}/knobs")).await;
    assert_eq!(
        (status, &view["revertible"]),
        (StatusCode::OK, &json!([])),
        "{view}"
    );
    let mut knobs = view["knobs"].as_array().unwrap().iter();
    let timeout = knobs.find(|knob| knob["name"] == "process_group_timeout_s");
    let timeout = timeout.unwrap();
    assert_eq!(
        (&timeout["live"], &timeout["values"]),
        (&json!(true), &json!("a whole number from 1 to 604800"))
    );

    let (status, problem) = post(
        &server,
        &run,
        "preview",
        json!({"apply": {"set": {"process_group_timeout_s": "soon"}}}),
    )
    .await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(
        problem["errors"][0]["field"], "set.process_group_timeout_s",
        "{problem}"
    );
    let apply = json!({"set": {"process_group_timeout_s": "1200"}, "expected": 1});
    let (status, preview) = post(&server, &run, "preview", json!({ "apply": apply })).await;
    assert_eq!((status, &preview["in_place"]), (StatusCode::OK, &json!(true)));
    let diff = &preview["change"]["set"][0];
    assert_eq!((&diff["old"], &diff["new"]), (&Value::Null, &json!("1200")));
    let (_, before) = server.get(&format!("/api/runs/{run}")).await;
    assert_eq!(before["attempts"][0]["live"], Value::Null, "nothing has changed");

    // The run has the only node.
    let node = before["nodes"][0].as_str().unwrap();
    for (what, body) in [
        ("preview", json!({"exclude": {"node": node}})),
        ("exclude", json!({"node": node})),
    ] {
        let (status, problem) = post(&server, &run, what, body).await;
        assert_eq!(status, StatusCode::CONFLICT, "{problem}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("no other node is free"), "{problem}");
    }
    let (status, problem) = post(&server, &run, "exclude", json!({"node": "elsewhere"})).await;
    assert_eq!(status, StatusCode::CONFLICT, "{problem}");

    // A second node makes it possible.
    let second = credential_of(&server, "n2").await;
    let _spare = Control::connect_as(&server, "n2", &second, &[]).await;
    let exclude = json!({"node": node, "expected": 1});
    until("the node is free", async || {
        let (status, preview) = post(&server, &run, "preview", json!({ "exclude": exclude })).await;
        let cost = preview["cost"].as_str().unwrap_or_default();
        (status == StatusCode::OK && cost.contains("1 other node is free")).then_some(())
    })
    .await;
    let (status, view) = post(&server, &run, "exclude", exclude).await;
    assert_eq!(status, StatusCode::OK, "{view}");
    assert_eq!(view["pending"]["without"], json!([node]), "{view}");
    let (_, actions) = server.get(&format!("/api/runs/{run}/actions")).await;
    assert_eq!(actions[0]["text"], format!("run exclude: {node}"), "{actions}");
}
