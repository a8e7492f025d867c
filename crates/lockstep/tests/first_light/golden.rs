//! Folders that an earlier revision wrote: this revision opens them and finds their contents.
//!
//! ```text
//! tests/data/golden/REVISION/
//!   folder.tar.gz   the data folder of `lockstep up`, all processes killed at once: series and state, the run folders of a run
//!                   that had ended and of one that was training; without checkpoints and unpacked companions
//!   backup.tar.gz   the output of `lockstep store backup` while that run was training
//!   facts.json      the contents of both, as the API of that revision showed them
//! ```
//! `cargo xtask lab golden REV` records them. A recorded folder is never changed afterwards.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::product::api::curves;

/// The name of the node in every recorded folder, because a node's credential is valid for one name.
const NODE: &str = "golden-node";
/// Keeps a webhook message in the queue: the receiver does not exist.
const RULES: &str = "groups: [{ name: golden, interval: 1s, rules: [{ alert: AlwaysFiring, expr: vector(1), labels: { severity: info } }] }]";
const RECEIVER: &str = "http://127.0.0.1:9/hook";
/// Series whose samples are compared. Both are written until the recording ends.
const SELECTORS: [&str; 2] = ["gpu_memory_used_bytes{gpu=\"0\"}", "train_loss{rank=\"0\"}"];
/// Range selector for the samples before the recording.
const RANGE: &str = "[30m]";

/// Recorded samples are years old when a later test reads them.
const KEEP_EVERYTHING: [(&str, &str); 4] = [
    ("LOCKSTEP_NAME", NODE),
    ("LOCKSTEP_RETENTION", "36500d"),
    ("LOCKSTEP_RETENTION_1M", "40000d"),
    ("LOCKSTEP_RETENTION_1H", "45000d"),
];

fn recorded(revision: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/golden/{revision}"))
}

fn facts(revision: &str) -> Value {
    serde_json::from_slice(&std::fs::read(recorded(revision).join("facts.json")).unwrap()).unwrap()
}

fn unpack(archive: &Path, into: &Path) {
    std::fs::create_dir_all(into).unwrap();
    succeeded(
        Command::new("tar")
            .arg("-xzf")
            .arg(archive)
            .arg("-C")
            .arg(into)
            .output()
            .unwrap(),
    );
}

fn succeeded(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn open(folder: tempfile::TempDir) -> Cluster {
    Cluster::start_on(folder, RULES, &KEEP_EVERYTHING)
}

#[test]
fn folders_of_b49bf1d_open() {
    let facts = facts("b49bf1d");
    let folder = tempfile::tempdir().unwrap();
    unpack(&recorded("b49bf1d").join("folder.tar.gz"), folder.path());
    let cluster = open(folder);
    check_samples(&cluster, &facts);
    check_ended_run(&cluster, &facts);

    // The shim of the run that was training does not exist any more. The agent finds this out from the run's folder.
    let live = facts["live"].as_str().unwrap();
    let view = cluster.wait_for_state(live, "failed");
    let cause = view["attempts"][0]["outcome"]["cause"].as_str();
    assert_eq!(cause, facts["live_cause_without_shim"].as_str(), "{view}");

    let hooks = cluster.get("/api/webhooks");
    // The path is not shown, because it may be a secret. The queued message is gone, because it is older than the retention of messages by
    // now.
    assert_eq!(hooks[0]["url"], "http://127.0.0.1:9", "{hooks}");
    let checked = cluster.lockstep(&["store", "check"]);
    assert!(checked.status.success(), "{checked:?}");
}

#[test]
fn a_backup_of_b49bf1d_is_restored() {
    let facts = facts("b49bf1d");
    let unpacked = tempfile::tempdir().unwrap();
    unpack(&recorded("b49bf1d").join("backup.tar.gz"), unpacked.path());
    let data = tempfile::tempdir().unwrap();
    let mut restore = Command::new(crate::product::environment::program());
    restore
        .args(["store", "restore"])
        .arg(unpacked.path().join("backup.tar"))
        .arg("--data")
        .arg(data.path());
    succeeded(restore.output().unwrap());
    let cluster = open(data);
    check_samples(&cluster, &facts);
    check_ended_run(&cluster, &facts);
    // The collector waits for the node that trained. This node never trained.
    let live = cluster.get(&format!("/api/runs/{}", facts["live"].as_str().unwrap()));
    assert_eq!(live["name"], "live", "{live}");
}

fn check_samples(cluster: &Cluster, facts: &Value) {
    for (selector, expected) in facts["samples"].as_object().unwrap() {
        let found = samples(cluster, selector, facts["recorded_ms"].as_i64().unwrap());
        assert_eq!(&found, expected, "{selector}");
    }
}

fn check_ended_run(cluster: &Cluster, facts: &Value) {
    let ended = facts["ended"].as_str().unwrap();
    let view = cluster.get(&format!("/api/runs/{ended}"));
    assert_eq!(view["state"], "succeeded", "{view}");
    assert_eq!(view["name"], "ended", "{view}");
    assert_eq!(view["attempts"].as_array().map(Vec::len), Some(1), "{view}");
    let steps: Vec<_> = checkpoint_steps(cluster, ended);
    assert_eq!(json!(steps), facts["ended_checkpoint_steps"]);
}

/// Returns the steps of the checkpoints, newest first, as the API lists them.
fn checkpoint_steps(cluster: &Cluster, run: &str) -> Vec<Value> {
    let list = cluster.get(&format!("/api/runs/{run}/checkpoints"));
    let checkpoints = list["checkpoints"].as_array().cloned().unwrap_or_default();
    checkpoints.iter().map(|one| one["step"].clone()).collect()
}

/// Returns for each series `[milliseconds, value]` of every sample up to the recording.
fn samples(cluster: &Cluster, selector: &str, at_ms: i64) -> Value {
    let query = format!("{selector}{RANGE}");
    let time = format!("{}.{:03}", at_ms / 1_000, at_ms % 1_000);
    let mut curves = curves(&cluster.ask(&[("query", &query), ("time", &time)]));
    curves.sort_by_key(|curve| curve.first().map(|sample| sample.0));
    json!(curves)
}

#[test]
#[ignore = "records what another revision writes: cargo xtask lab golden REV"]
fn record() {
    let into = PathBuf::from(std::env::var_os("LOCKSTEP_GOLDEN_FOLDER").unwrap());
    std::fs::create_dir_all(&into).unwrap();
    let mut cluster = Cluster::start_on(tempfile::tempdir().unwrap(), RULES, &KEEP_EVERYTHING);
    cluster.post("/api/webhooks", &json!({ "url": RECEIVER }));
    let checkpoints = cluster.data_dir().join("checkpoints");
    let submit = |name: &str, recipe: &str, steps: &str| {
        let spec = json!({
            "name": name,
            "recipe": recipe,
            "args": ["--steps", steps],
            "nproc_per_node": 2,
            "backend": "gloo",
            "checkpoint_dir": checkpoints.join(name),
        });
        let file = cluster.data_dir().join(format!("{name}.json"));
        std::fs::write(&file, spec.to_string()).unwrap();
        let run = cluster.submit(&[file.to_str().unwrap()]);
        std::fs::remove_file(file).unwrap();
        run
    };
    let ended = submit("ended", "ddp", "20");
    cluster.wait_for_state(&ended, "succeeded");
    cluster.wait_for("its checkpoints", || {
        (!checkpoint_steps(&cluster, &ended).is_empty()).then_some(())
    });
    let live = submit("live", "resume", "1000000");
    cluster.wait_for_step(&live, 20.0);
    let recorded_ms = now_ms() - 2_000;
    let found: serde_json::Map<String, Value> = SELECTORS
        .iter()
        .map(|selector| ((*selector).to_owned(), samples(&cluster, selector, recorded_ms)))
        .collect();
    let facts = json!({
        "recorded_ms": recorded_ms,
        "ended": ended,
        "ended_checkpoint_steps": checkpoint_steps(&cluster, &ended),
        "live": live,
        "live_cause_without_shim": "shim_died",
        "samples": found,
    });
    let backup = into.join("backup.tar");
    let made = cluster.lockstep(&["store", "backup", backup.to_str().unwrap()]);
    succeeded(made);
    pack(&into, "backup.tar", &into.join("backup.tar.gz"), &[]);
    std::fs::remove_file(backup).unwrap();

    // Stop the processes so that the folder does not change while it is packed; then kill them so that nothing is cleaned up.
    cluster.kill_services();
    let ranks = cluster.shims();
    ranks.iter().for_each(|pid| crate::cluster::signal(*pid, "STOP"));
    let left_out = ["./checkpoints", "./agent/lib", "*.sock"];
    pack(cluster.data_dir(), ".", &into.join("folder.tar.gz"), &left_out);
    ranks.iter().for_each(|pid| crate::cluster::signal(*pid, "KILL"));
    std::fs::write(into.join("facts.json"), format!("{facts}\n")).unwrap();
}

fn pack(folder: &Path, what: &str, archive: &Path, left_out: &[&str]) {
    let mut tar = Command::new("tar");
    tar.arg("-czf").arg(archive);
    for pattern in left_out {
        tar.arg(format!("--exclude={pattern}"));
    }
    succeeded(tar.arg("-C").arg(folder).arg(what).output().unwrap());
}

fn now_ms() -> i64 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap();
    since.as_millis().try_into().unwrap()
}
