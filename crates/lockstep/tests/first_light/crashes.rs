//! kill -9 in the middle of a run: the training goes on, nothing acknowledged is lost, the gap is filled.

use std::time::{Duration, Instant};

use crate::cluster::{Cluster, signal};

/// The longest distance between samples that come every second: a tick may be late on two busy cores.
const GAP_MS_MAX: i64 = 3_000;

#[test]
fn a_killed_collector_leaves_the_training_alone_and_its_gap_is_filled() {
    let mut cluster = Cluster::start();
    let run = cluster.submit(&["--recipe", "ddp", "--set", "steps=100000"]);
    cluster.wait_for_step(&run, 10.0);
    let memory = "gpu_memory_used_bytes{gpu=\"0\"}[10m]";
    let steps = format!("train_step{{run={run:?},rank=\"0\"}}[10m]");
    let (memory_before, steps_before) = (cluster.samples(memory), cluster.samples(&steps));
    let agent = cluster.agent_pid();

    cluster.kill_collector();
    let killed = Instant::now();
    while killed.elapsed() < Duration::from_secs(8) {
        std::thread::sleep(Duration::from_millis(100));
    }
    cluster.start_collector();

    let last_before = steps_before.last().unwrap().1;
    cluster.wait_for_step(&run, last_before + 50.0);
    cluster.wait_for_state(&run, "running");
    assert_eq!(cluster.agent_pid(), agent, "the living agent was adopted");
    for (what, selector, before) in [
        ("GPU memory", memory, memory_before),
        ("steps", steps.as_str(), steps_before),
    ] {
        let after = cluster.wait_for(&format!("the gap in {what} to be filled"), || {
            let after = cluster.samples(selector);
            (widest_gap_ms(&after) <= GAP_MS_MAX).then_some(after)
        });
        let lost: Vec<_> = before.iter().filter(|sample| !after.contains(sample)).collect();
        assert!(lost.is_empty(), "{what}: {lost:?} were there before the kill");
    }
    assert!(
        cluster
            .lockstep(&["run", "stop", &run, "--grace", "5s", "--wait"])
            .status
            .success()
    );
}

#[test]
fn a_killed_agent_leaves_the_training_alone_and_a_new_one_takes_it_up() {
    let cluster = Cluster::start();
    let run = cluster.submit(&["--recipe", "ddp", "--set", "steps=400"]);
    cluster.wait_for_step(&run, 10.0);
    let ranks = |view: &serde_json::Value| view["attempts"][0]["nodes"][0]["ranks"].clone();
    let before = ranks(&cluster.get(&format!("/api/runs/{run}")));
    let agent = cluster.agent_pid().unwrap();

    signal(agent, "KILL");
    cluster.wait_for("a new agent", || cluster.agent_pid().filter(|pid| *pid != agent));
    let view = cluster.wait_for_state(&run, "succeeded");
    for (before, after) in before
        .as_array()
        .unwrap()
        .iter()
        .zip(ranks(&view).as_array().unwrap())
    {
        assert_eq!(before["pid"], after["pid"], "the same processes went on");
        assert_eq!(after["exit"]["code"], 0, "{after}");
    }
    assert_eq!(
        view["attempts"].as_array().unwrap().len(),
        1,
        "no second attempt was made"
    );
    for rank in ["0", "1"] {
        let steps = cluster.wait_for_last_step(&run, rank, 400.0);
        assert_eq!(steps.last().unwrap().1, 400.0);
        assert!(
            widest_gap_ms(&steps) <= GAP_MS_MAX,
            "steps while no agent lived are there too: {steps:?}"
        );
    }
}

fn widest_gap_ms(samples: &[(i64, f64)]) -> i64 {
    samples
        .windows(2)
        .map(|pair| pair[1].0 - pair[0].0)
        .max()
        .unwrap_or(i64::MAX)
}
