//! Runs from the command line.

use crate::cluster::{Cluster, SMALL, signal};

#[test]
fn a_run_succeeds_and_each_rank_leaves_its_series() {
    let cluster = Cluster::start();
    let mut submit = vec!["run", "submit", "--recipe", "ddp", "--nodes", "1", "--wait"];
    // Its steps take longer than a second together, so that a range query with steps of one second finds some of them.
    let settings = SMALL.iter().chain(&["steps=60", "step-delay-ms=30"]);
    submit.extend(settings.flat_map(|&setting| ["--set", setting]));
    let output = cluster.lockstep(&submit);
    assert!(output.status.success(), "{output:?}");
    let run = String::from_utf8(output.stdout).unwrap().trim().to_owned();

    for rank in ["0", "1"] {
        let of = |metric: &str| format!("{metric}{{run={run:?},rank={rank:?}}}");
        let steps = cluster.wait_for_last_step(&run, rank, 60.0);
        assert_eq!(steps.last().unwrap().1, 60.0);
        assert!(
            cluster
                .samples(&format!("{}[10m]", of("train_step_seconds")))
                .len()
                > 2,
            "rank {rank}"
        );
        let losses = cluster.samples(&format!("{}[10m]", of("train_loss")));
        assert!(
            losses.last().unwrap().1 < losses[0].1,
            "the loss falls: {losses:?}"
        );
    }
    let end = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let range = format!(
        "/api/v1/query_range?query=train_step_seconds&start={}&end={end}&step=1",
        end - 120
    );
    assert_eq!(
        cluster.get(&range)["data"]["result"].as_array().map(Vec::len),
        Some(2)
    );

    let shown = cluster.lockstep(&[
        "query",
        "train_step_seconds",
        "--range",
        "10m",
        "--step",
        "1s",
        "--format",
        "csv",
    ]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.contains("rank=\"\"0\"\"") && shown.contains("rank=\"\"1\"\""),
        "{shown}"
    );

    let log = cluster.lockstep(&["run", "logs", &run]);
    assert!(
        String::from_utf8(log.stdout).unwrap().contains("step 60 "),
        "the log of rank 0 has its last step"
    );
    let list = cluster.lockstep(&["run", "logs", "--level", "all", &run]);
    let list = String::from_utf8(list.stdout).unwrap();
    let last = list.lines().find(|line| line.contains("] step 60 "));
    assert!(
        last.is_some_and(|line| line.contains("Z [rank 0 ")),
        "the list of all ranks has it too: {list}"
    );
    cluster.wait_for("the ended run's series to be stale", || {
        cluster.query("train_step_seconds").is_empty().then_some(())
    });
    assert!(cluster.shims().is_empty(), "a process of the run is left");
}

#[test]
fn a_killed_rank_ends_the_run_in_the_true_state_with_the_true_cause() {
    let cluster = Cluster::start();
    let run = cluster.submit_small(&["steps=100000", "step-delay-ms=20"]);
    cluster.wait_for_step(&run, 5.0);
    let view = cluster.get(&format!("/api/runs/{run}"));
    let pid = view["attempts"][0]["nodes"][0]["ranks"][1]["pid"]
        .as_i64()
        .unwrap();
    signal(pid.try_into().unwrap(), "KILL");
    let view = cluster.wait_for_state(&run, "failed");
    assert_eq!(view["outcome"]["cause"], "signal", "{view}");
    assert_eq!(view["outcome"]["rank"], 1, "{view}");
    assert_eq!(
        view["attempts"][0]["nodes"][0]["ranks"][1]["exit"]["signal"], 9,
        "{view}"
    );
    assert!(cluster.shims().is_empty(), "a process of the run is left");
    let again = cluster.lockstep(&["run", "stop", &run]);
    assert_eq!(again.status.code(), Some(1), "what has ended cannot be stopped");
}

#[test]
fn stop_ends_the_whole_process_tree() {
    let cluster = Cluster::start();
    let script = cluster.data_dir().join("train.py");
    // A rank that ignores SIGTERM and leaves a child process with its own session.
    let text = "import os, signal, subprocess, sys, time\n\
        signal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
        subprocess.Popen(['sleep', '600'], start_new_session=True)\n\
        print('up', flush=True)\n\
        time.sleep(600)\n";
    std::fs::write(&script, text).unwrap();
    let spec = cluster.data_dir().join("run.toml");
    std::fs::write(
        &spec,
        format!(
            "script = {:?}\nnproc_per_node = 2\nbackend = \"gloo\"\n",
            script.display().to_string()
        ),
    )
    .unwrap();
    let run = cluster.submit(&[spec.to_str().unwrap()]);
    cluster.wait_for("both ranks to be up", || {
        let log = |rank| cluster.get(&format!("/api/runs/{run}/logs?rank={rank}"))["text"] == "up\n";
        (log(0) && log(1)).then_some(())
    });
    assert!(
        cluster.shims().len() >= 6,
        "shim, torchrun, two ranks and their children: {:?}",
        cluster.shims()
    );
    let stopped = cluster.lockstep(&["run", "stop", &run, "--grace", "1s", "--wait"]);
    assert!(stopped.status.success(), "{stopped:?}");
    assert_eq!(cluster.state_of(&run), "stopped");
    assert_eq!(cluster.shims(), Vec::<i32>::new(), "a process of the run is left");
}

#[test]
fn what_cannot_be_run_is_refused_with_a_reason_and_the_right_exit_code() {
    let cluster = Cluster::start();
    let wrong = cluster.lockstep(&["run", "submit", "--recipe", "nope"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&wrong.stderr).contains("available recipes: ddp"),
        "{wrong:?}"
    );

    let spec = cluster.data_dir().join("run.toml");
    std::fs::write(&spec, "recipe = \"ddp\"\nnodes = \"two\"\n").unwrap();
    let wrong = cluster.lockstep(&["run", "check", spec.to_str().unwrap()]);
    assert_eq!(wrong.status.code(), Some(1), "{wrong:?}");
    assert!(
        String::from_utf8_lossy(&wrong.stderr).contains("run.toml:2:9: nodes: "),
        "{wrong:?}"
    );

    std::fs::write(&spec, "script = \"/nowhere/train.py\"\n").unwrap();
    let valid = cluster.lockstep(&["run", "check", spec.to_str().unwrap()]);
    assert!(valid.status.success(), "{valid:?}");
    assert!(
        String::from_utf8_lossy(&valid.stdout).contains("program   script /nowhere/train.py"),
        "{valid:?}"
    );
    let runs = cluster.get("/api/runs");
    assert_eq!(
        runs.as_array().map(Vec::len),
        Some(0),
        "a check starts nothing: {runs}"
    );
    let failed = cluster.lockstep(&["run", "submit", spec.to_str().unwrap(), "--wait"]);
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    assert!(
        String::from_utf8_lossy(&failed.stderr).contains("/nowhere/train.py"),
        "{failed:?}"
    );

    let raised = cluster.data_dir().join("raises.py");
    std::fs::write(&raised, "raise ValueError('no data at /data/train')\n").unwrap();
    std::fs::write(&spec, format!("script = {:?}\n", raised.display().to_string())).unwrap();
    let failed = cluster.lockstep(&["run", "submit", spec.to_str().unwrap(), "--wait"]);
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    assert!(
        String::from_utf8_lossy(&failed.stderr).contains("no data at /data/train"),
        "{failed:?}"
    );

    let nobody = cluster
        .command(&["run", "list", "--url", "http://127.0.0.1:9"])
        .output()
        .unwrap();
    assert_eq!(nobody.status.code(), Some(3), "{nobody:?}");
}
