//! A real run that keeps only its last checkpoint, in a folder that also contains files of others. It is stopped at once.

use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::cluster::Cluster;

/// Files of another user, two days older than the run: name and content.
const FOREIGN: [(&str, &[u8]); 4] = [
    ("best_model.pt", FULL),
    ("pretrained/base.pt", FULL),
    ("step-000900/model.pt", FULL),
    ("0/metrics.csv", b"step,loss\n1,2.5\n"),
];
/// A model with its optimizer, written by `torch.save`.
const FULL: &[u8] = include_bytes!("../../../agent/testdata/checkpoint/full.pt");
/// Number of steps from one checkpoint to the next: so many that the run hardly ever stops at one that it saves anyway.
const SAVE_EVERY: u32 = 30;

fn put(folder: &Path, name: &str, bytes: &[u8]) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, bytes).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(2 * 86_400))
        .unwrap();
}

fn steps(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut steps: Vec<String> = names.filter(|name| name.starts_with("step-")).collect();
    steps.sort();
    steps
}

fn lines(list: &Value, part: &str, kind: &str) -> Vec<String> {
    let lines = list[part].as_array().into_iter().flatten();
    let of_kind = lines.filter(|line| line["kind"] == kind);
    let path = |line: &Value| line["path"].as_str().unwrap_or_default().to_owned();
    of_kind.map(path).collect()
}

/// Stops a run of the recipe `resume` at once. Its ranks agree on a last step through the store that torchrun runs, on SIGTERM alone, and
/// save it. Returns the folder name of that checkpoint.
fn stop(cluster: &Cluster, run: &str) -> String {
    let stopped = cluster.lockstep(&["run", "stop", run, "--wait"]);
    assert!(stopped.status.success(), "{stopped:?}");
    let log = cluster.get(&format!("/api/runs/{run}/logs?rank=0"));
    let log = log["text"].as_str().unwrap();
    let last = log
        .split_once("stopped after step ")
        .and_then(|(_, rest)| rest.split_once(", as asked for"));
    let (step, _) = last.unwrap_or_else(|| panic!("{log}"));
    let name = format!("step-{:06}", step.parse::<u32>().unwrap());
    assert!(
        log.contains(&format!("/{name} in ")),
        "{name} was not saved: {log}"
    );
    name
}

/// Incident: a run of the recipe `resume` with `keep_checkpoints = 1` removed `best_model.pt` and `pretrained/base.pt` of another project;
/// and the run would have resumed from another project's checkpoint of step 900.
#[test]
fn retention_removes_the_older_checkpoints_of_a_run_that_is_stopped_at_once_and_nothing_else() {
    let cluster = Cluster::start_without_gpus();
    let saved = cluster.data_dir().join("saved");
    for (name, bytes) in FOREIGN {
        put(&saved, name, bytes);
    }
    let file = cluster.data_dir().join("run.json");
    let spec = json!({
        "recipe": "resume", "nproc_per_node": 2, "backend": "gloo", "checkpoint_dir": saved, "keep_checkpoints": 1,
        "set": {
            "steps": "100000", "checkpoint-every": SAVE_EVERY.to_string(), "step-delay-ms": "60",
            "layers": "1", "width": "32", "context": "16", "batch-size": "4",
        },
        "env": { "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1" },
    });
    std::fs::write(&file, spec.to_string()).unwrap();
    let run = cluster.submit(&[file.to_str().unwrap()]);
    cluster.wait_for_step(&run, f64::from(2 * SAVE_EVERY + 1));
    let last = stop(&cluster, &run);

    cluster.wait_for("the older checkpoints of the run to be removed", || {
        (steps(&saved) == [last.as_str(), "step-000900"]).then_some(())
    });
    for (name, bytes) in FOREIGN {
        assert_eq!(
            std::fs::read(saved.join(name)).ok().as_deref(),
            Some(bytes),
            "{name}"
        );
    }
    assert!(saved.join("best.pth").exists() && saved.join("latest").exists());

    let path = |name: &str| saved.join(name).display().to_string();
    let foreign = ["best_model.pt", "pretrained/base.pt", "step-000900"].map(path);
    let list = cluster.wait_for("the list to show what is left", || {
        let list = cluster.get(&format!("/api/runs/{run}/checkpoints"));
        (list["retention"]["removed"] == json!([])).then_some(list)
    });
    let mut kept = lines(&list["retention"], "kept", "not_proven");
    kept.sort();
    assert_eq!(kept, foreign, "{list}");
    assert_eq!(
        lines(&list["retention"], "kept", "last_complete"),
        [path(&last)],
        "{list}"
    );
    let dry = cluster.post(
        &format!("/api/runs/{run}/checkpoints/prune"),
        &json!({ "dry_run": true }),
    );
    assert_eq!(dry, list["retention"], "the page shows the list of the dry run");
    let dry = cluster.lockstep(&["run", "checkpoints", "prune", &run, "--dry-run"]);
    let stdout = String::from_utf8(dry.stdout).unwrap();
    assert!(
        stdout.contains("not proven to be this run's") && !stdout.contains("metrics.csv"),
        "{stdout}"
    );

    // The newest checkpoint that the run saved itself, not the other project's checkpoint of step 900.
    let resumed = cluster.post(&format!("/api/runs/{run}/resume"), &json!({}));
    assert_eq!(
        resumed["attempts"][1]["resumed_from"]["path"],
        path(&last),
        "{resumed}"
    );
}
