//! kill -9 during a run: the training continues, no acknowledged data is lost, the gap is filled, and the run's final state is right
//! whatever dies when.

use std::time::{Duration, Instant};

use crate::cluster::{Cluster, signal};

/// The longest distance between samples that come every second. A tick may be late on two busy cores.
const GAP_MS_MAX: i64 = 3_000;

#[test]
fn a_killed_collector_leaves_the_training_alone_and_its_gap_is_filled() {
    let mut cluster = Cluster::start();
    let run = cluster.submit_small(&["steps=100000", "step-delay-ms=20"]);
    cluster.wait_for_step(&run, 10.0);
    let memory = "gpu_memory_used_bytes{gpu=\"0\"}[10m]";
    let steps = format!("train_step{{run={run:?},rank=\"0\"}}[10m]");
    let (memory_before, steps_before) = (cluster.samples(memory), cluster.samples(&steps));
    let agent = cluster.agent_pid();

    cluster.kill_collector();
    let killed = Instant::now();
    while killed.elapsed() < Duration::from_secs(5) {
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
fn a_training_survives_a_killed_agent_and_a_new_agent_adopts_it() {
    let cluster = Cluster::start();
    // At least five seconds of training, also on a fast machine: the new agent is there long before the end.
    let run = cluster.submit_small(&["steps=200", "step-delay-ms=25"]);
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
        let steps = cluster.wait_for_last_step(&run, rank, 200.0);
        assert_eq!(steps.last().unwrap().1, 200.0);
        assert!(
            widest_gap_ms(&steps) <= GAP_MS_MAX,
            "steps while no agent lived are there too: {steps:?}"
        );
    }
}

/// Kills of agent and collector in the everyday test; `LOCKSTEP_CHAOS_POINTS` sets another number.
const KILLS: u64 = 10;
/// The most kills during one run. Then the next run begins.
const KILLS_OF_A_RUN: u64 = 10;
/// The longest time between two kills.
const APART_MS: u64 = 1_200;

#[test]
fn kills_at_any_moment_leave_the_ranks_alone_and_the_end_of_the_run_true() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let kills = number("LOCKSTEP_CHAOS_POINTS").unwrap_or(KILLS);
    let seed = number("LOCKSTEP_CHAOS_SEED").unwrap_or_else(|| u64::from(std::process::id()) << 20);
    eprintln!("LOCKSTEP_CHAOS_SEED={seed}");
    let mut chaos = Chaos {
        cluster: Cluster::start(),
        draw: seed,
    };
    for round in 0..kills.div_ceil(KILLS_OF_A_RUN) {
        chaos.round((kills - round * KILLS_OF_A_RUN).min(KILLS_OF_A_RUN), round);
    }
}

struct Chaos {
    cluster: Cluster,
    draw: u64,
}

impl Chaos {
    /// One run with kills, and one of three ends.
    fn round(&mut self, kills: u64, round: u64) {
        let run = self.cluster.submit_small(&["steps=100000", "step-delay-ms=20"]);
        self.cluster.wait_for_step(&run, 3.0);
        let pids = self.rank_pids(&run);
        for _ in 0..kills.div_ceil(2) {
            self.kill_agent_and_collector();
            self.cluster.start_collector();
            self.cluster.wait_for("the agent to be back", || {
                let nodes = self.cluster.get("/api/nodes");
                (nodes[0]["state"] == "up").then_some(())
            });
            assert_eq!(self.rank_pids(&run), pids, "the same processes go on");
        }
        self.cluster.wait_for_state(&run, "running");
        let (state, cause) = match round % 3 {
            0 => {
                signal(self.shim_pid(&run), "KILL");
                ("failed", "shim_died")
            }
            1 => {
                signal(pids[1], "KILL");
                ("failed", "signal")
            }
            _ => {
                let stopped = self.cluster.lockstep(&["run", "stop", &run, "--grace", "5s"]);
                assert!(stopped.status.success(), "{stopped:?}");
                ("stopped", "stopped")
            }
        };
        self.kill_agent_and_collector();
        self.cluster.start_collector();
        let view = self.cluster.wait_for_state(&run, state);
        assert_eq!(view["outcome"]["cause"], cause, "{view}");
        assert_eq!(view["attempts"].as_array().map(Vec::len), Some(1), "{view}");
        assert!(self.cluster.shims().is_empty(), "a process of the run is left");
    }

    fn kill_agent_and_collector(&mut self) {
        let mut both = [true, false];
        if self.drawn(2) == 0 {
            both.reverse();
        }
        for agent in both {
            std::thread::sleep(Duration::from_millis(self.drawn(APART_MS)));
            if !agent {
                self.cluster.kill_collector();
            } else if let Some(pid) = self.cluster.agent_pid() {
                signal(pid, "KILL");
            }
        }
    }

    fn rank_pids(&self, run: &str) -> Vec<i32> {
        let view = self.cluster.get(&format!("/api/runs/{run}"));
        let ranks = view["attempts"][0]["nodes"][0]["ranks"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        ranks
            .iter()
            .filter_map(|rank| rank["pid"].as_i64()?.try_into().ok())
            .collect()
    }

    fn shim_pid(&self, run: &str) -> i32 {
        let status = self
            .cluster
            .data_dir()
            .join(format!("agent/runs/{run}.1/status.json"));
        let status: serde_json::Value = serde_json::from_slice(&std::fs::read(status).unwrap()).unwrap();
        status["shim_pid"].as_i64().unwrap().try_into().unwrap()
    }

    /// A pseudo-random number (xorshift).
    fn drawn(&mut self, below: u64) -> u64 {
        self.draw = self.draw.max(1);
        self.draw ^= self.draw << 13;
        self.draw ^= self.draw >> 7;
        self.draw ^= self.draw << 17;
        self.draw % below
    }
}

fn widest_gap_ms(samples: &[(i64, f64)]) -> i64 {
    samples
        .windows(2)
        .map(|pair| pair[1].0 - pair[0].0)
        .max()
        .unwrap_or(i64::MAX)
}
