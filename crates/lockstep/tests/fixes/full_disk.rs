//! The disk of the checkpoints is full. A prune removes old checkpoints of the run, and the next save succeeds. Needs root.

use std::path::Path;

use crate::cluster::Cluster;
use crate::disk::SmallDisk;
use crate::repair::{Repair, checkpoints, spec, text};

#[test]
fn a_run_whose_checkpoint_disk_is_full_is_pruned_and_saves_again() {
    let cluster = Cluster::start_without_gpus();
    let folder = checkpoints(&cluster);
    let _disk = SmallDisk::mount(&folder).unwrap();
    // Saves are seconds apart: the disk is not full again before the end of the alert is seen.
    let args = ["--checkpoints", &text(&folder), "--save-every", "30"];
    let repair = Repair::submit(&cluster, &spec("full_disk.py", &folder, &args));
    repair.wait_for_step(1);
    repair.wait_for_diagnosis("CheckpointSaveFailed");
    let before = repair.complete_checkpoints();
    assert!(before.len() > 3, "{before:?}");

    let (number, id) = repair.wait_for_action("prune_checkpoints");
    assert_eq!(id, "prune_checkpoints:keep_last=3");
    repair.fix(&number);
    let verdict = repair.wait_for_verdict("recovered");
    let recovery = &verdict["recovery"];
    assert_eq!(recovery["symptom"], "checkpoint_space", "{verdict}");
    let bytes = |field: &str| recovery[field].as_u64().unwrap();
    let removed = u64::try_from(before.len() - 3).unwrap();
    assert!(bytes("freed_bytes") >= removed * (3 << 20), "{verdict}");
    assert!(
        bytes("free_bytes_after") > bytes("free_bytes_before") + (2 << 20),
        "{verdict}"
    );
    let saved = recovery["saved"].as_str().unwrap();
    assert!(Path::new(saved).exists(), "{verdict}");

    cluster.wait_for("the alert to end with the next save", || {
        let firing = cluster.get("/api/diagnoses");
        let mut firing = firing.as_array()?.iter();
        firing
            .all(|diagnosis| diagnosis["rule"] != "CheckpointSaveFailed")
            .then_some(())
    });
    assert_eq!(repair.view()["state"], "running", "the run was never stopped");
    assert_eq!(repair.view()["attempts"].as_array().unwrap().len(), 1);
}
