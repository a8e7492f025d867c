//! Which rank or node is named when a run hangs or fails, or a node is lost: in alerts and at a real webhook receiver.

use std::time::Instant;

use serde_json::{Value, json};

use crate::cluster::{Cluster, signal};
use crate::receiver::Receiver;

/// Time from the end of a run to its notification; for [`NODE_TOLD_S`], from the death of an agent to that of the node.
const RUN_TOLD_S: f64 = 5.0;
const NODE_TOLD_S: f64 = 15.0;
/// Time from the stop of a rank to the alert that names it.
const RANK_NAMED_S: f64 = 10.0;

/// Returns the firing alerts of a rule.
fn firing(cluster: &Cluster, rule: &str) -> Vec<Value> {
    let all = cluster.get("/api/diagnoses");
    let all = all.as_array().cloned().unwrap_or_default();
    all.into_iter().filter(|alert| alert["rule"] == rule).collect()
}

#[test]
fn a_stopped_rank_is_named_alone_for_as_long_as_it_is_stopped() {
    let cluster = Cluster::start();
    let run = cluster.submit(&[
        "--recipe",
        "ddp",
        "--set",
        "steps=100000",
        "--set",
        "step-delay-ms=20",
    ]);
    cluster.wait_for_step(&run, 40.0);
    let pid = cluster.pid_of(&run, 1).unwrap();
    signal(pid, "STOP");
    let stopped = Instant::now();
    let named = cluster.wait_for("an alert about the stopped rank", || {
        let stuck = firing(&cluster, "RankStuck");
        (!stuck.is_empty()).then_some(stuck)
    });
    let took_s = stopped.elapsed().as_secs_f64();
    assert!(took_s < RANK_NAMED_S, "named after {took_s:.1} s");
    assert_eq!(named.len(), 1, "{named:?}");
    let labels = &named[0]["labels"];
    assert_eq!(
        (&labels["rank"], &labels["cause"], &labels["run"]),
        (&json!("1"), &json!("stopped"), &json!(run.as_str()))
    );
    // No other alert may fire about this run: neither about the rank that waits nor about the run as a whole.
    cluster.wait_for("twelve seconds to pass", || {
        (stopped.elapsed().as_secs() >= 12).then_some(())
    });
    let diagnoses: Vec<Value> = cluster.get("/api/diagnoses").as_array().cloned().unwrap();
    let others: Vec<_> = diagnoses
        .iter()
        .filter(|alert| alert["rule"] != "RankStuck")
        .collect();
    assert!(others.is_empty(), "{others:?}");
    assert_eq!(
        firing(&cluster, "RankStuck").len(),
        1,
        "it holds while the rank is stopped"
    );
    signal(pid, "CONT");
    cluster.wait_for("the end of the alert", || {
        firing(&cluster, "RankStuck").is_empty().then_some(())
    });
}

#[test]
fn a_failed_run_and_a_node_that_was_lost_reach_a_webhook_and_a_planned_stop_does_not() {
    let mut cluster = Cluster::start();
    cluster.add_node("killed");
    cluster.add_node("stopped");
    let receiver = Receiver::start();
    let hook = json!({ "url": format!("http://{}/hook", receiver.address) });
    assert!(cluster.post("/api/webhooks", &hook)["id"].is_string());
    let is_alerting = |rule: &str, label: &str, value: &str| {
        let about = |alert: &Value| {
            alert["labels"]["alertname"] == rule
                && alert["labels"][label] == value
                && alert["status"] == "firing"
        };
        let all = receiver.deliveries();
        all.iter()
            .any(|delivery| delivery.body["alerts"].as_array().unwrap().iter().any(about))
    };

    // One agent is killed. Another one stops in an orderly way, as for an upgrade or a reboot.
    signal(cluster.pid_of_node("killed"), "KILL");
    signal(cluster.pid_of_node("stopped"), "TERM");
    let lost = Instant::now();
    cluster.wait_for("the message that the node is lost", || {
        is_alerting("NodeDown", "node", "killed").then_some(())
    });
    let took_s = lost.elapsed().as_secs_f64();
    assert!(took_s < NODE_TOLD_S, "told after {took_s:.1} s");

    // For twenty seconds, the other node must not be reported. Meanwhile a run fails on the node that is left.
    let script = cluster.data_dir().join("fails.py");
    std::fs::write(&script, "print('out of luck', flush=True)\nraise SystemExit(7)\n").unwrap();
    let submitted = json!({ "script": script, "nproc_per_node": 1 });
    let run = cluster.post("/api/runs", &submitted)["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let failed = cluster.wait_for_state(&run, "failed");
    let ended_ms = failed["ended_ms"].as_i64().unwrap();
    cluster.wait_for("the message that the run failed", || {
        is_alerting("RunFailed", "run", &run).then_some(())
    });
    let took_s = (now_ms() - ended_ms) as f64 / 1e3;
    assert!(took_s < RUN_TOLD_S, "told after {took_s:.1} s");
    let alert = &firing(&cluster, "RunFailed")[0];
    assert_eq!(
        (&alert["labels"]["cause"], &alert["labels"]["rank"]),
        (&json!("exit_code"), &json!("0")),
        "{alert}"
    );
    let lines = alert["evidence"]
        .as_array()
        .unwrap()
        .iter()
        .find(|evidence| evidence["lines"].is_array());
    assert_eq!(lines.unwrap()["lines"], json!(["out of luck"]), "{alert}");

    cluster.wait_for("twenty seconds to pass", || {
        (lost.elapsed().as_secs() >= 20).then_some(())
    });
    assert!(
        !is_alerting("NodeDown", "node", "stopped"),
        "its agent said that it stops"
    );
    assert_eq!(firing(&cluster, "NodeDown").len(), 1);
    let up = cluster.query("node_up");
    let up: Vec<(&Value, &Value)> = up
        .iter()
        .map(|series| (&series["metric"]["node"], &series["value"][1]))
        .collect();
    assert!(
        up.contains(&(&json!("killed"), &json!("0"))) && !up.iter().any(|(node, _)| *node == "stopped"),
        "{up:?}"
    );
}

fn now_ms() -> i64 {
    let since_epoch = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    i64::try_from(since_epoch.as_millis()).unwrap()
}
