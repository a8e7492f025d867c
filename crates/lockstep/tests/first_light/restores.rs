//! A backup is restored while training runs that began after it: real ranks live on and end well.

use serde_json::Value;

use crate::cluster::{Cluster, signal};

/// Enough that the ranks outlive the restore on two busy cores, and end soon after it.
const STEPS: &str = "1500";

fn pids(view: &Value, attempt: usize) -> Vec<i32> {
    let ranks = view["attempts"][attempt]["nodes"][0]["ranks"].as_array();
    let pid = |rank: &Value| i32::try_from(rank["pid"].as_i64()?).ok();
    ranks.into_iter().flatten().filter_map(pid).collect()
}

/// The processes with the moment each began, so that another one with the same number is not taken for it.
fn alive(pids: &[i32]) -> Vec<(i32, String)> {
    let began = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Behind the name, which may hold anything, field 22 is the start in clock ticks.
        let (_, fields) = stat.rsplit_once(')')?;
        Some((*pid, fields.split_whitespace().nth(19)?.to_owned()))
    };
    pids.iter().filter_map(began).collect()
}

#[test]
fn training_that_began_after_a_backup_goes_on_when_it_is_restored() {
    let mut cluster = Cluster::start();
    let folder = tempfile::tempdir().unwrap();
    let spec = folder.path().join("run.toml");
    let text = format!("recipe = \"ddp\"\nmax_restarts = 3\n[set]\nsteps = \"{STEPS}\"\n");
    std::fs::write(&spec, text).unwrap();
    let run = cluster.submit(&[spec.to_str().unwrap()]);
    cluster.wait_for_step(&run, 5.0);
    let archive = folder.path().join("backup.tar");
    let made = cluster.lockstep(&["store", "backup", archive.to_str().unwrap()]);
    assert!(made.status.success(), "{made:?}");

    // Another attempt of the same run, and another run.
    let first = pids(&cluster.get(&format!("/api/runs/{run}")), 0);
    signal(first[0], "KILL");
    let second = cluster.wait_for("attempt 2 to run", || {
        let view = cluster.get(&format!("/api/runs/{run}"));
        Some(pids(&view, 1)).filter(|pids| pids.len() == 2 && view["state"] == "running")
    });
    let other = cluster.submit(&["--recipe", "ddp", "--set", &format!("steps={STEPS}")]);
    let others = cluster.wait_for("the other run", || {
        let view = cluster.get(&format!("/api/runs/{other}"));
        Some(pids(&view, 0)).filter(|pids| pids.len() == 2 && view["state"] == "running")
    });
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
    let waiting = cluster.submit(&["--recipe", "ddp", "--set", "steps=5"]);
    cluster.wait_for("the reason to wait", || {
        let view = cluster.get(&format!("/api/runs/{waiting}"));
        let message = view["outcome"]["message"].as_str()?.to_owned();
        message.contains("not known to this collector").then_some(())
    });
    assert_eq!(alive(&ranks), before, "the same processes train on");

    cluster.wait_for("both to end well", || {
        let events = cluster.get("/api/events");
        let ended = |of: &str| {
            events.as_array()?.iter().find(|event| {
                let message = event["message"].as_str().unwrap_or_default();
                event["run"] == of && message.contains("has ended")
            })
        };
        let (one, two) = (ended(&run)?, ended(&other)?);
        for event in [one, two] {
            assert!(event["message"].as_str()?.ends_with("has ended: well"), "{event}");
        }
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
