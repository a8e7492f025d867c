//! A backup is restored while runs train that began after it: their ranks stay alive and end successfully.

use serde_json::Value;

use crate::cluster::{Cluster, signal};

/// Each rank works until a file tells it to end.
const SCRIPT: &str = "
import os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.1)
";

fn pids(view: &Value, attempt: usize) -> Vec<i32> {
    let ranks = view["attempts"][attempt]["nodes"][0]["ranks"].as_array();
    let pid = |rank: &Value| i32::try_from(rank["pid"].as_i64()?).ok();
    ranks.into_iter().flatten().filter_map(pid).collect()
}

/// Returns the live processes with their start times, so that another process with the same PID is not mistaken for one of them.
fn alive(pids: &[i32]) -> Vec<(i32, String)> {
    let began = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // After the name, which may contain anything, field 22 is the start time in clock ticks.
        let (_, fields) = stat.rsplit_once(')')?;
        Some((*pid, fields.split_whitespace().nth(19)?.to_owned()))
    };
    pids.iter().filter_map(began).collect()
}

#[test]
fn training_that_began_after_a_backup_continues_when_it_is_restored() {
    let mut cluster = Cluster::start();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    std::fs::write(file("train.py"), SCRIPT).unwrap();
    let submit = |cluster: &Cluster, name: &str| {
        let spec = file(&format!("{name}.toml"));
        let text = format!(
            "script = {:?}\nargs = [{:?}]\nnproc_per_node = 2\nbackend = \"gloo\"\nmax_restarts = 3\n",
            file("train.py"),
            file("end"),
        );
        std::fs::write(&spec, text).unwrap();
        cluster.submit(&[spec.to_str().unwrap()])
    };
    let ranks_of = |cluster: &Cluster, run: &str, attempt: usize| {
        cluster.wait_for("two ranks", || {
            let view = cluster.get(&format!("/api/runs/{run}"));
            Some(pids(&view, attempt)).filter(|pids| pids.len() == 2 && view["state"] == "running")
        })
    };
    let run = submit(&cluster, "run");
    let first = ranks_of(&cluster, &run, 0);
    let archive = folder.path().join("backup.tar");
    let made = cluster.lockstep(&["store", "backup", archive.to_str().unwrap()]);
    assert!(made.status.success(), "{made:?}");

    // Another attempt of the same run, and another run. Both start at the same time.
    signal(first[0], "KILL");
    let other = submit(&cluster, "other");
    let second = ranks_of(&cluster, &run, 1);
    let others = ranks_of(&cluster, &other, 0);
    let ranks = [second, others].concat();
    let before = alive(&ranks);
    assert_eq!(before.len(), 4);

    cluster.kill_collector();
    let data = cluster.data_dir().to_str().unwrap().to_owned();
    let restored = cluster.lockstep(&[
        "store",
        "restore",
        archive.to_str().unwrap(),
        "--force",
        "--data",
        &data,
    ]);
    assert!(restored.status.success(), "{restored:?}");
    cluster.start_collector();

    cluster.wait_for("the collector to know what the node holds", || {
        assert_eq!(
            alive(&ranks),
            before,
            "ranks that began after the backup were stopped"
        );
        let held = cluster.get("/api/unknown-attempts");
        (held.as_array()?.len() == 2).then_some(())
    });
    let view = cluster.get(&format!("/api/runs/{run}"));
    assert_eq!(view["unknown_attempts"][0]["attempt"], 2, "{view}");
    let listed = cluster.lockstep(&["run", "list"]);
    let listed = String::from_utf8_lossy(&listed.stderr).into_owned();
    assert!(
        listed.contains(&format!("attempt 2 of {run}")) && listed.contains(&format!("attempt 1 of {other}")),
        "{listed}"
    );
    let waiting = submit(&cluster, "waiting");
    cluster.wait_for("the reason to wait", || {
        let view = cluster.get(&format!("/api/runs/{waiting}"));
        let message = view["outcome"]["message"].as_str()?.to_owned();
        message.contains("unknown to this collector").then_some(())
    });
    assert_eq!(alive(&ranks), before, "the same processes train on");

    // A user stops one of them; the other ends by itself.
    let stopped = cluster.lockstep(&["run", "stop", &other, "--grace", "5s", "--wait"]);
    assert!(stopped.status.success(), "{stopped:?}");
    assert_eq!(alive(&ranks).len(), 2, "only the other run was stopped");
    std::fs::write(file("end"), "").unwrap();
    cluster.wait_for("the end of attempt 2", || {
        let events = cluster.get("/api/events");
        let ended = events.as_array()?.iter().find(|event| {
            let message = event["message"].as_str().unwrap_or_default();
            event["run"] == run.as_str() && message.contains("has ended")
        })?;
        assert!(ended["message"].as_str()?.ends_with("has ended: well"), "{ended}");
        Some(())
    });
    assert_eq!(cluster.get("/api/unknown-attempts"), serde_json::json!([]));
    cluster.wait_for_state(&waiting, "succeeded");
    let view = cluster.get(&format!("/api/runs/{run}"));
    assert_eq!(
        (&view["state"], view["attempts"].as_array().map(Vec::len)),
        (&"failed".into(), Some(1)),
        "no attempt has begun by itself: {view}"
    );
}
