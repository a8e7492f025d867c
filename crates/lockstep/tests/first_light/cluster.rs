//! A collector and its agent in a folder of their own, on a free port; everything ends with it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// No single step of a test takes longer on two busy cores.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);

pub(crate) struct Cluster {
    folder: TempDir,
    up: Child,
    pub(crate) url: String,
    http: reqwest::Client,
    runtime: tokio::runtime::Runtime,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        Self::start_with(start_up)
    }

    /// A machine without a GPU, whatever this one has.
    pub(crate) fn start_without_gpus() -> Self {
        Self::start_with(|data, listen| {
            let mut command = up(data, listen);
            command.env("LOCKSTEP_NVML_LIBRARY", "/nonexistent/libnvidia-ml.so.1");
            spawn_up(command)
        })
    }

    fn start_with(start: impl FnOnce(&Path, &str) -> (Child, String)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (up, url) = start(folder.path(), "127.0.0.1:0");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let _already_there = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().timeout(PATIENCE).build().unwrap();
        let cluster = Self {
            folder,
            up,
            url,
            http,
            runtime,
        };
        cluster.wait_for("the agent to be up", || {
            let nodes = cluster.get("/api/nodes");
            (nodes[0]["state"] == "up").then_some(())
        });
        cluster
    }

    /// A client command of the binary, pointed at this collector.
    pub(crate) fn lockstep(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Starts a run and returns its id.
    pub(crate) fn submit(&self, arguments: &[&str]) -> String {
        let output = self.lockstep(&[&["run", "submit"], arguments].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
        command
            .args(arguments)
            .env("LOCKSTEP_URL", &self.url)
            .env("LOCKSTEP_DATA", self.folder.path());
        command.env_remove("LOCKSTEP_TOKEN");
        command
    }

    pub(crate) fn token(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("admin.token"))
            .unwrap()
            .trim()
            .to_owned()
    }

    pub(crate) fn data_dir(&self) -> &Path {
        self.folder.path()
    }

    /// `GET` of JSON; `null` when the collector does not answer or refuses.
    pub(crate) fn get(&self, path: &str) -> Value {
        self.request(self.http.get(format!("{}{path}", self.url)))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Value {
        self.request(self.http.post(format!("{}{path}", self.url)).json(body))
    }

    /// Where the agent serves its metrics, from its log.
    pub(crate) fn agent_metrics(&self) -> String {
        let log = std::fs::read_to_string(self.folder.path().join("agent/agent.log")).unwrap();
        let (_, rest) = log.split_once("http://").unwrap();
        format!("http://{}", rest.split_whitespace().next().unwrap())
    }

    pub(crate) fn text(&self, path: &str) -> String {
        self.text_at(&format!("{}{path}", self.url))
    }

    pub(crate) fn text_at(&self, url: &str) -> String {
        let request = self.http.get(url).bearer_auth(self.token());
        self.runtime
            .block_on(async { request.send().await.unwrap().text().await.unwrap() })
    }

    fn request(&self, request: reqwest::RequestBuilder) -> Value {
        let request = request.bearer_auth(self.token());
        self.runtime.block_on(async {
            let Ok(response) = request.send().await else {
                return Value::Null;
            };
            response.json().await.unwrap_or_default()
        })
    }

    /// Samples `(milliseconds, value)` of the first series a range selector gives.
    pub(crate) fn samples(&self, selector: &str) -> Vec<(i64, f64)> {
        let answer = self.request(
            self.http
                .get(format!("{}/api/v1/query", self.url))
                .query(&[("query", selector)]),
        );
        let values = answer["data"]["result"][0]["values"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let sample = |pair: &Value| {
            let value = pair[1].as_str().unwrap().parse().unwrap_or(f64::INFINITY);
            ((pair[0].as_f64().unwrap() * 1_000.0).round() as i64, value)
        };
        values.iter().map(sample).collect()
    }

    pub(crate) fn query(&self, query: &str) -> Vec<Value> {
        let answer = self.request(
            self.http
                .get(format!("{}/api/v1/query", self.url))
                .query(&[("query", query)]),
        );
        answer["data"]["result"].as_array().cloned().unwrap_or_default()
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

    /// Steps of a rank once its last one is stored: the end of a run is told at once, samples come every second.
    pub(crate) fn wait_for_last_step(&self, run: &str, rank: &str, last: f64) -> Vec<(i64, f64)> {
        self.wait_for(&format!("step {last} of rank {rank}"), || {
            let steps = self.samples(&format!("train_step{{run={run:?},rank={rank:?}}}[10m]"));
            (steps.last()?.1 >= last).then_some(steps)
        })
    }

    pub(crate) fn wait_for<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(
                Instant::now() < deadline,
                "waited in vain for {what}; agent's log:\n{}",
                self.agent_log()
            );
            std::thread::sleep(POLL);
        }
    }

    /// SIGKILL to the collector; the agent lives on.
    pub(crate) fn kill_collector(&mut self) {
        self.up.kill().unwrap();
        self.up.wait().unwrap();
    }

    /// Starts the collector again where it was.
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
    /// Stops what runs, then collector and agent, in order; what is left is killed.
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
    /// Processes that were started for this folder's runs and still live.
    pub(crate) fn shims(&self) -> Vec<i32> {
        let pids = std::fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
        let runs = self.folder.path().join("agent/runs");
        pids.filter(|pid| is_ours(*pid, &runs)).collect()
    }
}

/// Whether a process was started with `folder` in its arguments or environment.
fn is_ours(pid: i32, folder: &Path) -> bool {
    let needle = folder.as_os_str().as_encoded_bytes();
    ["cmdline", "environ"].iter().any(|file| {
        let text = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        text.windows(needle.len()).any(|window| window == needle)
    })
}

pub(crate) fn signal(pid: i32, name: &str) {
    let _gone_already = Command::new("kill")
        .arg(format!("-{name}"))
        .arg(pid.to_string())
        .output();
}

fn start_up(data: &Path, listen: &str) -> (Child, String) {
    let mut command = up(data, listen);
    command
        .args(["--simulate", "h100x2:healthy"])
        .env("LOCKSTEP_NVML_LIBRARY", simulator());
    spawn_up(command)
}

fn up(data: &Path, listen: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
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

fn spawn_up(mut command: Command) -> (Child, String) {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.next().expect("the collector says where it is").unwrap();
    let url = first
        .strip_prefix("Lockstep is at ")
        .expect("the address comes first")
        .to_owned();
    // Whatever it says later must find a reader.
    std::thread::spawn(move || lines.for_each(drop));
    (child, url)
}

/// The interpreter of the environment with PyTorch.
pub(crate) fn python() -> PathBuf {
    let venv = std::env::var_os("LOCKSTEP_TEST_VENV").map_or_else(|| cache().join("venv"), PathBuf::from);
    let python = venv.join("bin/python");
    assert!(
        python.exists(),
        "no PyTorch at {}; `cargo xtask test --only rust` installs it",
        venv.display()
    );
    python
}

fn cache() -> PathBuf {
    let given = std::env::var_os("LOCKSTEP_CACHE").map(PathBuf::from);
    given.unwrap_or_else(|| dirs::cache_dir().unwrap().join("lockstep"))
}

/// The simulator, built beside this test; a workspace build has it, and a test of this package alone builds it.
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
