//! Every step waits for its batch. Worker processes load batches while the model computes.

use crate::cluster::Cluster;
use crate::repair::{Repair, checkpoints, spec, text};

#[test]
fn a_run_that_waits_for_data_gets_workers_and_is_faster() {
    let cluster = Cluster::start_without_gpus();
    let folder = checkpoints(&cluster);
    let args = ["--checkpoints", &text(&folder), "--num-workers", "0"];
    let mut spec = spec("data_stall.py", &folder, &args);
    spec["knobs"] = serde_json::json!({ "num_workers": "--num-workers" });
    let repair = Repair::submit(&cluster, &spec);
    repair.wait_for_step(1);
    repair.wait_for_diagnosis("DataLoadingSlow");

    let (number, id) = repair.wait_for_action("apply_knob:num_workers=");
    repair.fix(&number);
    let verdict = repair.wait_for_verdict("better");
    let step_s = |side: &str| verdict[side]["step_seconds"]["value"].as_f64().unwrap();
    assert!(
        step_s("before") > 0.35 && step_s("after") < 0.8 * step_s("before"),
        "{verdict}"
    );
    assert_eq!(verdict["losses"]["equal"], true, "{verdict}");

    let attempt = repair.attempt(1);
    let value = id.strip_prefix("apply_knob:num_workers=").unwrap();
    assert_eq!(attempt["knobs"]["num_workers"], value, "{attempt}");
    assert!(attempt["resumed_from"]["step"].as_u64().unwrap() > 0, "{attempt}");
}
