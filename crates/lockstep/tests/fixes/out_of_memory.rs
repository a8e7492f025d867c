//! A batch that is larger than the earlier ones does not fit into memory. With activation checkpointing it does.
//!
//! No GPU is needed: `limited_memory.py` is a stand-in. It counts the bytes that the forward pass of the recipe `activation-checkpointing`
//! keeps for the backward pass, and raises torch's own `OutOfMemoryError` when they exceed a limit. The recipe's knob is the real one.

use serde_json::json;

use crate::cluster::Cluster;
use crate::repair::{Repair, checkpoints, spec, text};

/// The last step with a small batch, see `limited_memory.py`.
const LAST_STEP: u64 = 12;

#[test]
fn a_run_that_ran_out_of_memory_checkpoints_activations_and_passes_that_step() {
    let cluster = Cluster::start_without_gpus();
    let folder = checkpoints(&cluster);
    let saved_to = text(&folder);
    let flags = "--granularity none --compare-steps 0 --checkpoint-every 5 \
                 --steps 1000000 --validate-every 1000000 --batch-size 4 --step-delay-ms 50";
    let args: Vec<&str> = flags.split(' ').chain(["--checkpoint-dir", &saved_to]).collect();
    let mut spec = spec("limited_memory.py", &folder, &args);
    spec["nproc_per_node"] = 2.into();
    spec["knobs"] = json!({ "activation_checkpointing": "--granularity" });
    spec["env"]["MEMORY_DIR"] = text(cluster.data_dir()).into();
    let repair = Repair::submit(&cluster, &spec);
    repair.wait_for_diagnosis("RunFailed");
    let view = repair.view();
    assert_eq!(view["outcome"]["cause"], "out_of_memory", "{view}");

    let (number, id) = repair.wait_for_action("apply_knob:activation_checkpointing=");
    assert_eq!(id, "apply_knob:activation_checkpointing=block");
    repair.fix(&number);
    let verdict = repair.wait_for_verdict("recovered");
    let recovery = &verdict["recovery"];
    assert_eq!(
        (&recovery["symptom"], &recovery["failed_after_step"]),
        (&json!("out_of_memory"), &json!(LAST_STEP)),
        "{verdict}"
    );
    assert!(
        recovery["reached_step"].as_u64().unwrap() > LAST_STEP,
        "{verdict}"
    );

    let attempt = repair.attempt(1);
    assert_eq!(attempt["resumed_from"]["step"], 10, "{attempt}");
    let command = attempt["nodes"][0]["command"].as_str().unwrap();
    assert!(command.contains("--granularity block"), "{command}");
}
