//! A collector and its agent in a separate folder, on a free port. They end when this is dropped.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::product::api::Api;
use crate::product::environment::program;
pub(crate) use crate::product::environment::python;
pub(crate) use crate::product::process::signal;
use crate::product::process::{is_ours, processes, spawn_collector};

/// The longest wait for a condition. It only ends a test that hangs: PyTorch is imported three times in turn until the first step, and each
/// import may take a minute on two busy cores.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(300);
/// The longest wait for data of ranks that train or have ended. A test reports what is missing, and may then wait for something else.
const ARRIVES_WITHIN: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(100);
/// Settings of the recipe `ddp` for tests whose subject is not its training. A step takes about a tenth of the processor time, which the other
/// processes of the test and the test beside it use. The tests of torch-probe train with the same sizes: the loss falls within 30 steps.
pub(crate) const SMALL: &[&str] = &["layers=1", "width=64", "batch-size=8"];

pub(crate) struct Cluster {
    folder: TempDir,
    up: Child,
    others: Vec<Child>,
    api: Api,
}

/// Requests to the collector.
impl Deref for Cluster {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

impl Cluster {
    pub(crate) fn start() -> Self {
        Self::start_with(start_up)
    }

    /// Starts a machine without GPUs, whatever this machine has.
    pub(crate) fn start_without_gpus() -> Self {
        Self::start_without_gpus_with(&[])
    }

    /// Starts the same, with more environment variables.
    pub(crate) fn start_without_gpus_with(environment: &[(&str, &Path)]) -> Self {
        Self::start_with(|data, listen| {
            let mut command = up(data, listen);
            command.envs(environment.iter().copied());
            command.env("LOCKSTEP_NVML_LIBRARY", "/nonexistent/libnvidia-ml.so.1");
            spawn_collector(command)
        })
    }

    /// Starts with additional rules.
    pub(crate) fn start_with_rules(rules: &str) -> Self {
        Self::start_on(tempfile::tempdir().unwrap(), rules, &[])
    }

    /// Starts on a data folder that may already contain data, with additional rules and environment variables.
    pub(crate) fn start_on(folder: TempDir, rules: &str, environment: &[(&str, &str)]) -> Self {
        Self::start_in(folder, |data, listen| {
            let file = data.join("test.rules.yaml");
            std::fs::write(&file, rules).unwrap();
            let mut command = simulating(up(data, listen));
            command.arg("--rules").arg(file).envs(environment.iter().copied());
            spawn_collector(command)
        })
    }

    fn start_with(start: impl FnOnce(&Path, &str) -> (Child, String)) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), start)
    }

    fn start_in(folder: TempDir, start: impl FnOnce(&Path, &str) -> (Child, String)) -> Self {
        let (up, url) = start(folder.path(), "127.0.0.1:0");
        let api = Api::new(url, folder.path());
        let cluster = Self {
            folder,
            up,
            others: Vec::new(),
            api,
        };
        cluster.wait_for("the agent to be up", || {
            let nodes = cluster.get("/api/nodes");
            (nodes[0]["state"] == "up").then_some(())
        });
        cluster
    }

    /// Adds a node on this machine, without GPUs.
    pub(crate) fn add_node(&mut self, name: &str) {
        self.add(name, |mut agent| {
            agent
                .env("LOCKSTEP_NVML_LIBRARY", "/nonexistent/libnvidia-ml.so.1")
                .env_remove("LOCKSTEP_SIMULATE");
            agent
        });
    }

    /// Returns the process ID of the agent of an added node.
    pub(crate) fn pid_of_node(&self, name: &str) -> i32 {
        let lock = self.folder.path().join(name).join("agent.lock");
        std::fs::read_to_string(lock).unwrap().trim().parse().unwrap()
    }

    /// Adds a node on this machine, with simulated GPUs.
    pub(crate) fn add_simulated_node(&mut self, name: &str) {
        self.add(name, simulating);
    }

    fn add(&mut self, name: &str, with: impl FnOnce(Command) -> Command) {
        let join = self.post("/api/tokens/join", &serde_json::json!({}));
        let mut command = Command::new(program());
        command
            .args([
                "agent",
                "--name",
                name,
                "--metrics-listen",
                "off",
                "--collector",
                &self.url,
            ])
            .arg("--data")
            .arg(self.folder.path().join(name))
            .env("LOCKSTEP_JOIN", join["token"].as_str().unwrap())
            .env("LOCKSTEP_PYTHON", python())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.others.push(with(command).spawn().unwrap());
        let nodes = self.others.len() + 1;
        self.wait_for("the other node to be up", || {
            let known = self.get("/api/nodes");
            let up = known.as_array()?.iter().filter(|node| node["state"] == "up");
            (up.count() == nodes).then_some(())
        });
    }

    /// Runs a client command of the binary with this collector.
    pub(crate) fn lockstep(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Starts a run and returns its ID.
    pub(crate) fn submit(&self, arguments: &[&str]) -> String {
        let output = self.lockstep(&[&["run", "submit"], arguments].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Starts the recipe `ddp` with two ranks, a small model and these settings, `NAME=VALUE`. Returns the ID of the run.
    pub(crate) fn submit_small(&self, settings: &[&str]) -> String {
        let settings = SMALL.iter().chain(settings);
        let mut arguments = vec!["--recipe", "ddp", "--nproc-per-node", "2"];
        arguments.extend(settings.flat_map(|&setting| ["--set", setting]));
        self.submit(&arguments)
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program());
        command
            .args(arguments)
            .env("LOCKSTEP_URL", &self.url)
            .env("LOCKSTEP_DATA", self.folder.path());
        command.env_remove("LOCKSTEP_TOKEN");
        command
    }

    pub(crate) fn data_dir(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the URL of the agent's metrics, from its log.
    pub(crate) fn agent_metrics(&self) -> String {
        let log = std::fs::read_to_string(self.folder.path().join("agent/agent.log")).unwrap();
        let (_, rest) = log.split_once("http://").unwrap();
        format!("http://{}", rest.split_whitespace().next().unwrap())
    }

    pub(crate) fn text(&self, path: &str) -> String {
        self.text_at(&format!("{}{path}", self.url))
    }

    pub(crate) fn text_at(&self, url: &str) -> String {
        self.api.text_at(url).unwrap()
    }

    /// Returns the samples `(milliseconds, value)` of the first series that matches a range selector.
    pub(crate) fn samples(&self, selector: &str) -> Vec<(i64, f64)> {
        self.api.curves(selector).into_iter().next().unwrap_or_default()
    }

    pub(crate) fn state_of(&self, run: &str) -> String {
        self.get(&format!("/api/runs/{run}"))["state"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    pub(crate) fn wait_for_state(&self, run: &str, state: &str) -> Value {
        self.wait_for(&format!("{run} to be {state}"), || {
            let view = self.get(&format!("/api/runs/{run}"));
            let now = view["state"].as_str().unwrap_or_default().to_owned();
            assert!(
                now == state || !["failed", "stopped", "succeeded"].contains(&now.as_str()),
                "{run} is {now}, not {state}: {view}"
            );
            (now == state).then_some(view)
        })
    }

    /// Waits until rank 0 has reported a step.
    pub(crate) fn wait_for_step(&self, run: &str, step: f64) {
        self.wait_for(&format!("step {step} of {run}"), || {
            let query = format!("max(last_over_time(train_step{{run={run:?}}}[1h])) >= {step}");
            (!self.query(&query).is_empty()).then_some(())
        });
    }

    /// Returns the steps of a rank once its last step is stored: the end of a run is reported at once, but samples come every second.
    pub(crate) fn wait_for_last_step(&self, run: &str, rank: &str, last: f64) -> Vec<(i64, f64)> {
        self.wait_for(&format!("step {last} of rank {rank}"), || {
            let steps = self.samples(&format!("train_step{{run={run:?},rank={rank:?}}}[10m]"));
            (steps.last()?.1 >= last).then_some(steps)
        })
    }

    pub(crate) fn wait_for<T>(&self, what: &str, look: impl FnMut() -> Option<T>) -> T {
        poll(TIMEOUT, look)
            .unwrap_or_else(|| panic!("waited in vain for {what}; agent's log:\n{}", self.agent_log()))
    }

    /// Returns `None` if nothing is found in time.
    pub(crate) fn poll_for<T>(&self, look: impl FnMut() -> Option<T>) -> Option<T> {
        poll(ARRIVES_WITHIN, look)
    }

    /// Sends SIGKILL to the collector. The agent stays alive.
    pub(crate) fn kill_collector(&mut self) {
        self.up.kill().unwrap();
        self.up.wait().unwrap();
    }

    /// Sends SIGKILL to collector and agent. Shims and ranks stay alive.
    pub(crate) fn kill_services(&mut self) {
        self.kill_collector();
        if let Some(agent) = self.agent_pid() {
            signal(agent, "KILL");
        }
    }

    /// Starts the collector again at the same address.
    pub(crate) fn start_collector(&mut self) {
        let address = self.url.strip_prefix("http://").unwrap().to_owned();
        (self.up, _) = start_up(self.folder.path(), &address);
    }

    pub(crate) fn agent_pid(&self) -> Option<i32> {
        std::fs::read_to_string(self.folder.path().join("agent/agent.lock"))
            .ok()?
            .trim()
            .parse()
            .ok()
    }

    fn agent_log(&self) -> String {
        let log = std::fs::read_to_string(self.folder.path().join("agent/agent.log")).unwrap_or_default();
        log.lines()
            .rev()
            .take(20)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .collect::<Vec<_>>()
            .join("\n")
    }
}

impl Drop for Cluster {
    /// Stops the runs, then the collector and the agent, in order. Kills what is left.
    fn drop(&mut self) {
        for run in self.get("/api/runs").as_array().cloned().unwrap_or_default() {
            let id = run["id"].as_str().unwrap_or_default().to_owned();
            if self.state_of(&id) != "succeeded" {
                self.post(
                    &format!("/api/runs/{id}/stop"),
                    &serde_json::json!({ "grace_ms": 0 }),
                );
            }
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline && !self.shims().is_empty() {
            std::thread::sleep(POLL);
        }
        for other in &mut self.others {
            let _gone_already = other.kill();
            let _gone_already = other.wait();
        }
        signal(self.up.id().try_into().unwrap(), "TERM");
        while Instant::now() < deadline + Duration::from_secs(10) && matches!(self.up.try_wait(), Ok(None)) {
            std::thread::sleep(POLL);
        }
        let _gone_already = self.up.kill();
        let _gone_already = self.up.wait();
        let agent = self.agent_pid().filter(|pid| is_ours(*pid, self.folder.path()));
        for pid in self.shims().into_iter().chain(agent) {
            signal(pid, "KILL");
        }
    }
}

impl Cluster {
    /// Returns the processes that were started for this folder's runs and are still alive.
    pub(crate) fn shims(&self) -> Vec<i32> {
        let runs = self.folder.path().join("agent/runs");
        processes()
            .into_iter()
            .filter(|pid| is_ours(*pid, &runs))
            .collect()
    }
}

fn poll<T>(within: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + within;
    loop {
        let found = look();
        if found.is_some() || Instant::now() >= deadline {
            return found;
        }
        std::thread::sleep(POLL);
    }
}

fn start_up(data: &Path, listen: &str) -> (Child, String) {
    spawn_collector(simulating(up(data, listen)))
}

/// For commands of `up` and `agent`.
fn simulating(mut command: Command) -> Command {
    command
        .args(["--simulate", "h100x2:healthy"])
        .env("LOCKSTEP_NVML_LIBRARY", simulator());
    command
}

fn up(data: &Path, listen: &str) -> Command {
    let mut command = Command::new(program());
    command
        .args(["up", "--listen", listen, "--data"])
        .arg(data)
        .env("LOCKSTEP_PYTHON", python())
        .env("LOCKSTEP_METRICS_LISTEN", "127.0.0.1:0")
        .env_remove("LOCKSTEP_SIMULATE")
        .env_remove("LOCKSTEP_TOKEN")
        .env_remove("LOCKSTEP_ADMIN_TOKEN");
    command
}

/// Returns the simulator library beside this test. A workspace build includes it; a test of this package alone builds it here.
pub(crate) fn simulator() -> PathBuf {
    let binary = Path::new(env!("CARGO_BIN_EXE_lockstep"));
    let library = binary.with_file_name("libsim_nvml.so");
    if !library.exists() {
        let target = binary.parent().and_then(Path::parent).unwrap();
        let built = Command::new(env!("CARGO"))
            .args(["build", "-p", "sim-nvml", "--target-dir"])
            .arg(target)
            .status();
        assert!(built.unwrap().success(), "the simulator cannot be built");
    }
    library
}
