//! From a bad learning rate to a webhook.

use serde_json::json;

use crate::cluster::Cluster;
use crate::receiver::Receiver;

#[test]
fn an_explosion_is_diagnosed_notified_and_resolved() {
    let cluster = Cluster::start();
    let receiver = Receiver::start();
    let made = cluster.post(
        "/api/webhooks",
        &json!({ "url": format!("http://{}/hook", receiver.address) }),
    );
    assert!(made["secret"].as_str().unwrap().starts_with("whsec_"), "{made}");

    let run = cluster.submit(&["--recipe", "ddp", "--set", "lr=1000", "--set", "steps=100000"]);
    let diagnosis = cluster.wait_for("a diagnosis of the run", || {
        let all = cluster.get("/api/diagnoses");
        all.as_array()?
            .iter()
            .find(|d| d["rule"] == "GradientExplosion" && d["labels"]["run"] == run.as_str())
            .cloned()
    });
    // Compare the time of the first bad step, by its own sample, with the time at which the alert fired.
    let losses = cluster.samples(&format!("train_loss{{run={run:?},rank=\"0\"}}[10m]"));
    let first_bad_ms = losses.iter().find(|(_, loss)| *loss > 100.0).unwrap().0;
    let fired_ms = diagnosis["fired_ms"].as_i64().unwrap();
    assert!(
        fired_ms - first_bad_ms < 10_000,
        "fired {} ms after the first bad step",
        fired_ms - first_bad_ms
    );
    let evidence = diagnosis["evidence"].as_array().unwrap();
    assert!(
        evidence
            .iter()
            .any(|e| e["title"] == "Loss by rank" && e["values"].as_array().unwrap().len() == 2),
        "{evidence:?}"
    );
    let why = cluster.lockstep(&["run", "why", &run]);
    assert!(
        String::from_utf8_lossy(&why.stdout).contains("Lower the learning rate"),
        "{why:?}"
    );

    let first = cluster.wait_for("the message to be delivered again", || {
        let all = receiver.deliveries();
        (all.len() >= 2).then(|| (all[0].clone(), all[1].clone()))
    });
    assert_eq!(first.0.id, first.1.id, "a repeat has the same webhook-id");
    assert!(first.1.signature.starts_with("v1,"));
    assert_eq!(
        (&first.1.body["version"], &first.1.body["status"]),
        (&json!("4"), &json!("firing"))
    );

    assert!(
        cluster
            .lockstep(&["run", "stop", &run, "--grace", "5s", "--wait"])
            .status
            .success()
    );
    let resolved = cluster.wait_for("the message that it is over", || {
        receiver
            .deliveries()
            .into_iter()
            .find(|delivery| delivery.body["status"] == "resolved")
    });
    assert_eq!(resolved.body["alerts"][0]["labels"]["run"], run.as_str());
    assert_ne!(resolved.id, first.0.id);
    assert_eq!(cluster.get("/api/diagnoses"), json!([]));
}

/// A rule that is not critical and matches one of two nodes, and only when there is something to send.
const ASKING: &str = "
groups:
  - name: asking
    interval: 1s
    rules:
      - alert: LookCloser
        expr: gpu_up{node='second', gpu='0'} == 1
        for: 5s
        labels: { severity: warning }
        annotations: { burst: 'true' }
";

#[test]
fn a_rule_that_requests_a_burst_gets_that_of_its_node_only() {
    let mut cluster = Cluster::start_with_rules(ASKING);
    cluster.add_simulated_node("second");
    cluster.wait_for("the burst of the second node", || {
        let query = "count_over_time(gpu_burst_power_watts{node='second',gpu='1'}[1m]) > 50";
        (!cluster.query(query).is_empty()).then_some(())
    });
    let curves = cluster.curves("gpu_burst_power_watts{node='second',gpu='1'}[1m]");
    let mut steps: Vec<i64> = curves[0].windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    steps.sort_unstable();
    let median = steps[steps.len() / 2];
    assert!((90..=200).contains(&median), "a reading each {median} ms");
    let others = cluster.query("last_over_time({__name__=~'gpu_burst_.*',node!='second'}[5m])");
    assert!(others.is_empty(), "no rule requested these: {others:?}");
}
