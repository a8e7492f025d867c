//! The schedule raises the learning rate too far, and the loss explodes. Checkpoints that are saved meanwhile contain diverged weights. The run
//! continues from the last one before, at half of the rate.

use std::path::Path;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::repair::{Repair, checkpoints, spec, text};

/// The rate is raised this many steps, of 0.1 s each, after the last step that is known: all ranks read the file before. The collector knows
/// a step one or two seconds later.
const STEPS_AHEAD: u64 = 40;

#[test]
fn a_run_that_explodes_goes_on_from_before_the_explosion_at_a_lower_rate() {
    let cluster = Cluster::start_without_gpus();
    let folder = checkpoints(&cluster);
    let (saved_to, dir) = (text(&folder), text(cluster.data_dir()));
    let args = ["--checkpoints", &saved_to, "--save-every", "5", "--dir", &dir];
    let mut spec = spec("explosion.py", &folder, &args);
    spec["nproc_per_node"] = 2.into();
    let repair = Repair::submit(&cluster, &spec);
    repair.wait_for_step(40);
    cluster.wait_for("a checkpoint to resume from", || {
        repair.complete_checkpoints().last().copied()
    });
    let jump = repair.last_step().unwrap() + STEPS_AHEAD;
    raise_rate(cluster.data_dir(), jump);
    repair.wait_for_diagnosis("GradientExplosion");
    let last_good = repair.attempt(0)["last_good_step"].as_u64().unwrap();
    assert!((jump - 16..jump + 40).contains(&last_good), "{last_good}, {jump}");
    let diverged = cluster.wait_for("a checkpoint that was saved too late", || {
        let all = repair.checkpoint_list();
        all.into_iter().find(is_diverged)
    });
    assert_eq!(diverged["complete"], false, "{diverged}");
    assert!(diverged["step"].as_u64().unwrap() > last_good, "{diverged}");
    let good = repair.complete_checkpoints().last().copied().unwrap();

    let (_, id) = repair.wait_for_action("apply_knob:lr_scale=0.5");
    repair.fix(&id);
    let verdict = repair.wait_for_verdict("recovered");
    let recovery = &verdict["recovery"];
    assert_eq!(recovery["symptom"], "divergence", "{verdict}");
    assert!(recovery["worst_loss"].as_f64().unwrap() > 2.0, "{verdict}");
    assert!(recovery["loss"].as_f64().unwrap() < 0.6, "{verdict}");
    assert!(recovery["reached_step"].as_u64().unwrap() > jump, "{verdict}");

    let attempt = repair.attempt(1);
    assert_eq!(attempt["resumed_from"]["step"], good, "{attempt}");
    assert!(good <= last_good);
    assert_eq!(attempt["last_good_step"], Value::Null, "{attempt}");
    let path = Path::new(diverged["path"].as_str().unwrap());
    assert!(path.exists(), "it is kept: {diverged}");
}

fn raise_rate(dir: &Path, step: u64) {
    let beside = dir.join("jump.new");
    std::fs::write(&beside, step.to_string()).unwrap();
    std::fs::rename(beside, dir.join("jump")).unwrap();
}

fn is_diverged(checkpoint: &Value) -> bool {
    checkpoint["problem"]
        .as_str()
        .is_some_and(|problem| problem.contains("the loss had begun to diverge"))
}
