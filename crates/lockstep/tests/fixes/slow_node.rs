//! The rank on one node is three times as slow as its peer. The run goes on without that node, on a spare one.

use serde_json::Value;

use crate::cluster::Cluster;
use crate::repair::{Repair, checkpoints, spec, text};

const SLOW: &str = "slow";

#[test]
fn a_run_goes_on_without_its_slow_node_and_is_faster() {
    let mut cluster = Cluster::start_without_gpus();
    cluster.add_node(SLOW);
    let folder = checkpoints(&cluster);
    let args = ["--checkpoints", &text(&folder), "--slow-node", SLOW];
    let mut spec = spec("slow_node.py", &folder, &args);
    spec["nodes"] = 2.into();
    let run = Repair::submit(&cluster, &spec).run;
    // Both nodes have a rank before the spare one is there.
    Repair {
        cluster: &cluster,
        run: run.clone(),
    }
    .wait_for_step(1);
    cluster.add_node("spare");
    let repair = Repair {
        cluster: &cluster,
        run,
    };
    let first = nodes(&repair.attempt(0));
    assert!(first.contains(&SLOW.to_owned()), "{first:?}");

    let (_, id) = repair.wait_for_action("exclude_node:");
    assert_eq!(id, format!("exclude_node:{SLOW}"));
    repair.fix(&id);
    let verdict = repair.wait_for_verdict("better");
    let step_s = |side: &str| verdict[side]["step_seconds"]["value"].as_f64().unwrap();
    assert!(
        step_s("before") > 0.25 && step_s("after") < 0.8 * step_s("before"),
        "{verdict}"
    );

    let attempt = repair.attempt(1);
    let second = nodes(&attempt);
    assert!(
        second.contains(&"spare".to_owned()) && !second.contains(&SLOW.to_owned()),
        "{second:?}"
    );
    assert_eq!(attempt["excluded"][0]["node"], SLOW, "{attempt}");
    assert!(attempt["resumed_from"]["step"].as_u64().unwrap() > 0, "{attempt}");
    // The cluster waits only for the processes of its own node.
    let stopped = cluster.lockstep(&["run", "stop", &repair.run, "--grace", "0s", "--wait"]);
    assert!(stopped.status.success(), "{stopped:?}");
}

fn nodes(attempt: &Value) -> Vec<String> {
    let nodes = attempt["nodes"].as_array().unwrap().iter();
    nodes
        .map(|node| node["node"].as_str().unwrap().to_owned())
        .collect()
}
