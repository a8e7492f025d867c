//! `lockstep up --simulate SPEC,nodes=N`: each node has an agent or comes from the generator, a dead agent is reported, and nothing is
//! left behind.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::cluster::{TIMEOUT, simulator};
use crate::product::api::Api;
use crate::product::environment::program;
use crate::product::process::{is_ours, processes, signal};

const POLL: Duration = Duration::from_millis(100);

struct Simulated {
    folder: TempDir,
    up: Child,
    api: Api,
}

impl Simulated {
    fn start(simulate: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = File::create(folder.path().join("up.log")).unwrap();
        let mut up = command(&folder, simulate)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(up.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let url = lines.find_map(|line| line.strip_prefix("Lockstep is at ").map(str::to_owned));
        std::thread::spawn(move || lines.for_each(drop));
        let api = Api::new(url.expect("the collector says where it is"), folder.path());
        Self { folder, up, api }
    }

    /// Waits until this many nodes are up, each with all its GPUs. Returns all nodes.
    fn wait_for_nodes(&self, count: usize, gpus: usize) -> Vec<Value> {
        let is_ready = |node: &Value| {
            let known = node["inventory"]["gpus"].as_array().map_or(0, Vec::len);
            node["state"] == "up" && known == gpus
        };
        self.wait_for("the nodes with their GPUs", || {
            let nodes = self.nodes();
            (nodes.iter().filter(|node| is_ready(node)).count() == count).then_some(nodes)
        })
    }

    fn nodes(&self) -> Vec<Value> {
        self.api.get("/api/nodes").as_array().cloned().unwrap_or_default()
    }

    fn wait_for<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(
                Instant::now() < deadline,
                "waited in vain for {what}:\n{}",
                self.log()
            );
            std::thread::sleep(POLL);
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("up.log")).unwrap()
    }

    fn pid_of(&self, node: &str) -> i32 {
        let lock = self.folder.path().join("agents").join(node).join("agent.lock");
        std::fs::read_to_string(lock).unwrap().trim().parse().unwrap()
    }

    /// Returns the living processes that were started for this folder, without `up` itself.
    fn agents(&self) -> Vec<i32> {
        let up = i32::try_from(self.up.id()).unwrap();
        let all = processes().into_iter();
        all.filter(|pid| *pid != up && is_ours(*pid, self.folder.path()))
            .collect()
    }

    /// Ends `up` in order and returns its exit code.
    fn end(&mut self) -> Option<i32> {
        signal(i32::try_from(self.up.id()).unwrap(), "TERM");
        self.up.wait().unwrap().code()
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        let _ended_already = self.up.kill();
        let _reaped_already = self.up.wait();
        for pid in self.agents() {
            signal(pid, "KILL");
        }
    }
}

fn command(folder: &TempDir, simulate: &str) -> Command {
    let mut command = Command::new(program());
    command
        .args(["up", "--listen", "127.0.0.1:0", "--simulate", simulate, "--data"])
        .arg(folder.path())
        .env("LOCKSTEP_NVML_LIBRARY", simulator())
        .env_remove("LOCKSTEP_SIMULATE")
        .env_remove("LOCKSTEP_TOKEN")
        .env_remove("LOCKSTEP_ADMIN_TOKEN");
    command
}

fn names(nodes: &[Value]) -> Vec<&str> {
    nodes.iter().filter_map(|node| node["name"].as_str()).collect()
}

#[test]
fn each_simulated_node_has_an_agent_and_a_dead_one_is_reported() {
    let mut simulated = Simulated::start("h100x2,nodes=3");
    let nodes = simulated.wait_for_nodes(3, 2);
    assert_eq!(names(&nodes), ["sim-00", "sim-01", "sim-02"]);
    let gpus = nodes.iter().flat_map(|node| node["inventory"]["gpus"].as_array());
    let uuids: BTreeSet<&str> = gpus.flatten().filter_map(|gpu| gpu["uuid"].as_str()).collect();
    assert_eq!(uuids.len(), 6, "each GPU exists once: {uuids:?}");
    assert_eq!(simulated.agents().len(), 3);

    signal(simulated.pid_of("sim-01"), "KILL");
    let reported = simulated.wait_for("the report of the dead agent", || {
        let log = simulated.log();
        let mut lines = log.lines();
        let line = lines.find(|line| line.contains("the agent of a simulated node has ended"));
        line.map(str::to_owned)
    });
    for expected in ["sim-01", "SIGKILL"] {
        assert!(reported.contains(expected), "no {expected:?} in {reported}");
    }
    assert!(
        !reported.contains("is empty"),
        "the agent's last log lines: {reported}"
    );
    simulated.wait_for("its node to be down", || {
        let nodes = simulated.nodes();
        let states: Vec<_> = nodes.iter().filter_map(|node| node["state"].as_str()).collect();
        (states == ["up", "down", "up"]).then_some(())
    });
    assert_eq!(simulated.agents().len(), 2, "it was not started again");

    assert_eq!(simulated.end(), Some(0));
    assert_eq!(simulated.agents(), Vec::<i32>::new());
}

#[test]
fn the_agents_of_simulated_nodes_end_with_a_killed_collector() {
    let mut simulated = Simulated::start("h100x2,nodes=2");
    simulated.wait_for_nodes(2, 2);
    simulated.up.kill().unwrap();
    simulated.up.wait().unwrap();
    simulated.wait_for("the agents to end", || {
        simulated.agents().is_empty().then_some(())
    });
}

#[test]
fn a_generator_simulates_many_nodes_without_agents() {
    let mut simulated = Simulated::start("h100x8,nodes=128");
    let nodes = simulated.wait_for_nodes(128, 8);
    assert_eq!(names(&nodes)[127], "sim-127");
    assert_eq!(nodes[0]["inventory"]["simulated"], "h100x8,nodes=128");
    assert!(simulated.log().contains("a generator simulates the nodes"));
    assert_eq!(simulated.agents(), Vec::<i32>::new());
    assert_eq!(simulated.end(), Some(0));
}

#[test]
fn a_simulation_that_is_not_possible_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (simulate, code, expected) in [
        ("h100x8,nodes=0", 2, "expected a number from 1 to 1000"),
        ("h100x8:throttle,nodes=200", 2, "use fewer nodes"),
        ("h100x99,nodes=2", 1, "COUNT from 1 to 16"),
    ] {
        let Output { status, stderr, .. } = command(&folder, simulate).output().unwrap();
        let text = String::from_utf8_lossy(&stderr);
        assert_eq!(status.code(), Some(code), "{simulate}: {text}");
        assert!(text.contains(expected), "{simulate}: {text}");
    }
}
