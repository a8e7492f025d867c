//! A knob on a real run: it is changed while the run trains, judged by its series, and reverted to the first command line. Then the run
//! continues on another node.

use std::process::Stdio;

use domain::run::knob::{STEPS_MIN, WARM_UP_STEPS};
use serde_json::Value;

use crate::cluster::Cluster;

#[test]
fn a_knob_is_applied_judged_and_reverted_and_a_node_is_excluded() {
    let mut cluster = Cluster::start();
    let run = cluster.submit_small(&["steps=100000", "step-delay-ms=20"]);
    // With fewer, the first attempt ends with too few steps on a slow machine, and the verdict is `undecided`, without numbers: how many steps
    // follow until the attempt ends depends on how long they took.
    let steps = WARM_UP_STEPS + STEPS_MIN;
    cluster.wait_for("both ranks to have made as many steps as a verdict needs", || {
        let query = format!("count_over_time(train_step_seconds{{run={run:?}}}[1h]) >= {steps}");
        (cluster.query(&query).len() == 2).then_some(())
    });

    let refused = cluster.lockstep(&["run", "apply", &run, "grad_clip_norm=0"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(text(&refused.stderr).contains("a number above 0"), "{refused:?}");

    // On a busy machine the verdict may go either way. There must be a verdict with its numbers.
    let applied = cluster.lockstep(&["run", "apply", &run, "grad_clip_norm=0.5", "--wait"]);
    assert!(
        text(&applied.stdout).contains("grad_clip_norm") && text(&applied.stdout).contains("verdict: "),
        "{applied:?}"
    );
    let view = cluster.get(&format!("/api/runs/{run}"));
    let [first, second] = attempts(&view) else {
        panic!("two attempts: {view}")
    };
    let ended = first["outcome"]["message"].as_str().unwrap();
    assert!(
        ended.starts_with("ended to apply grad_clip_norm=0.5, after step "),
        "{ended}"
    );
    assert_eq!(second["cause"], "knob applied");
    assert!(
        program(second).contains(" --grad-clip 0.5"),
        "{}",
        program(second)
    );
    assert!(!program(first).contains("--grad-clip"), "{}", program(first));
    let verdict = &second["change"]["verdict"];
    assert!(verdict["step_time"]["value"].as_f64().unwrap() > 0.0, "{verdict}");
    assert!(verdict["losses"]["steps"].as_u64().unwrap() > 0, "{verdict}");

    let compared = cluster.lockstep(&["run", "compare", &format!("{run}@1"), &format!("{run}@2")]);
    assert!(
        text(&compared.stdout).contains("knobs.grad_clip_norm"),
        "{compared:?}"
    );

    let reverted = cluster.lockstep(&["run", "revert", &run]);
    assert!(reverted.status.success(), "{reverted:?}");
    let third = cluster.wait_for("the third attempt to be started", || {
        let view = cluster.get(&format!("/api/runs/{run}"));
        let third = attempts(&view).get(2)?.clone();
        (!program(&third).is_empty()).then_some(third)
    });
    assert_eq!(third["cause"], "knob reverted");
    assert_eq!(program(&third), program(first), "the first command line again");

    let node = third["nodes"][0]["node"].as_str().unwrap();
    let alone = cluster.lockstep(&["run", "exclude", &run, node, "--dry-run"]);
    assert_eq!(alone.status.code(), Some(1), "{alone:?}");
    assert!(text(&alone.stderr).contains("no other node is free"), "{alone:?}");
    cluster.add_simulated_node("second");
    let shown = cluster.wait_for("the second node to be free", || {
        let shown = cluster.lockstep(&["run", "exclude", &run, node, "--dry-run"]);
        shown.status.success().then_some(shown)
    });
    assert!(
        text(&shown.stdout).contains("is excluded from this run"),
        "{shown:?}"
    );
    let unasked = cluster
        .command(&["run", "exclude", &run, node])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(unasked.status.code(), Some(2), "{unasked:?}");
    assert_eq!(
        attempts(&cluster.get(&format!("/api/runs/{run}"))).len(),
        3,
        "nothing was excluded yet"
    );
    let excluded = cluster.lockstep(&["run", "exclude", &run, node, "--yes", "--wait"]);
    assert!(excluded.status.success(), "{excluded:?}");
    let view = cluster.get(&format!("/api/runs/{run}"));
    let last = &attempts(&view)[3];
    assert_eq!(last["nodes"][0]["node"], "second", "{last}");
    assert_eq!(last["excluded"][0]["node"], node, "{last}");
    // The cluster waits only for the processes of its own node.
    let stopped = cluster.lockstep(&["run", "stop", &run, "--grace", "0s", "--wait"]);
    assert!(stopped.status.success(), "{stopped:?}");
}

fn attempts(view: &Value) -> &[Value] {
    view["attempts"].as_array().map_or(&[], Vec::as_slice)
}

/// Returns the recipe and its arguments, without the arguments that belong to one attempt.
fn program(attempt: &Value) -> String {
    let command = attempt["nodes"][0]["command"].as_str().unwrap_or_default();
    let (_, program) = command.split_once("main.py").unwrap_or_default();
    program.to_owned()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
