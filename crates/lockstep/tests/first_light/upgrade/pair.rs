//! A collector and an agent in a separate folder, each with its own version. Each can be replaced by another version during a run.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cluster::{python, signal};
use crate::product::api::Api;
use crate::product::process::{is_ours, processes, spawn_collector};

/// The longest wait for a condition. It only ends a test that hangs: PyTorch is imported three times in turn until the first step.
pub(super) const TIMEOUT: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(100);

/// Returns the program of the earlier release, which `cargo xtask lab upgrade` builds.
pub(super) fn old_program() -> PathBuf {
    let named = std::env::var_os("LOCKSTEP_TEST_OLD_BINARY");
    named
        .expect("`cargo xtask lab upgrade` names the old program")
        .into()
}

/// A collector and an agent.
pub(super) struct Pair {
    pub(super) api: Api,
    collector: Child,
    agent: Option<Child>,
    folder: TempDir,
}

impl Pair {
    /// Starts only the collector.
    pub(super) fn collector(program: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (collector, url) = spawn_collector(collector(program, folder.path(), "127.0.0.1:0"));
        let api = Api::new(url, &folder.path().join("collector"));
        Self {
            api,
            collector,
            agent: None,
            folder,
        }
    }

    /// Starts both.
    pub(super) fn start(collector: &Path, agent: &Path) -> Self {
        let mut pair = Self::collector(collector);
        let url = pair.api.url.clone();
        pair.start_agent(agent, &url);
        pair
    }

    /// Starts the agent with this collector address, and waits until it is connected.
    pub(super) fn start_agent(&mut self, program: &Path, url: &str) {
        let join = self.api.post("/api/tokens/join", &json!({}));
        let join = join["token"].as_str().expect("a token").to_owned();
        self.agent = Some(agent(program, &self.folder.path().join("agent"), url, &join));
        self.wait("the agent to be up", || {
            let nodes = self.api.get("/api/nodes");
            (nodes[0]["state"] == "up").then_some(())
        });
    }

    /// Ends the collector in an orderly way, and starts another program on its data.
    pub(super) fn replace_collector(&mut self, program: &Path) {
        end(&mut self.collector);
        let address = self.api.url.strip_prefix("http://").unwrap().to_owned();
        (self.collector, _) = spawn_collector(collector(program, self.folder.path(), &address));
    }

    /// Ends the agent in an orderly way, which leaves its shims running, and starts another program on its data.
    pub(super) fn replace_agent(&mut self, program: &Path) {
        end(self.agent.as_mut().unwrap());
        let url = self.api.url.clone();
        self.start_agent(program, &url);
    }

    /// Submits the recipe `ddp` with two ranks. Returns the ID of the run.
    pub(super) fn submit(&self, steps: u64, step_delay_ms: u64) -> String {
        let set = json!({
            "steps": steps.to_string(),
            "step_delay_ms": step_delay_ms.to_string(),
            "log_every": "1",
        });
        let spec = json!({"recipe": "ddp", "nproc_per_node": 2, "set": set});
        let answer = self.api.post("/api/runs", &spec);
        answer["id"]
            .as_str()
            .unwrap_or_else(|| panic!("not submitted: {answer}"))
            .to_owned()
    }

    pub(super) fn view(&self, run: &str) -> Value {
        self.api.get(&format!("/api/runs/{run}"))
    }

    /// Waits until the run has ended.
    pub(super) fn ended(&self, run: &str) -> Value {
        self.wait("the run to end", || {
            let view = self.view(run);
            let state = view["state"].as_str().unwrap_or_default();
            ["succeeded", "failed", "stopped"]
                .contains(&state)
                .then_some(view)
        })
    }

    /// Returns the stored steps of a rank, each with its time, in order of time.
    pub(super) fn steps(&self, run: &str, rank: u32) -> Vec<(i64, u64)> {
        let curves = self
            .api
            .curves(&format!("train_step{{run={run:?},rank=\"{rank}\"}}[1h]"));
        let mut samples = curves.concat();
        samples.sort_by_key(|(at_ms, _)| *at_ms);
        samples
            .into_iter()
            .map(|(at_ms, step)| (at_ms, step as u64))
            .collect()
    }

    /// Waits until a step of rank 0 is stored.
    pub(super) fn reached(&self, run: &str, step: u64) {
        self.wait(&format!("step {step}"), || {
            let last = self.steps(run, 0).last().copied();
            last.is_some_and(|(_, last)| last >= step).then_some(())
        });
    }

    /// Returns everything that a rank wrote to its standard output, as the collector has it.
    pub(super) fn log(&self, run: &str, rank: u32) -> String {
        let piece = self.api.get(&format!(
            "/api/runs/{run}/logs?rank={rank}&stream=stdout&offset=0&limit=1000000"
        ));
        piece["text"].as_str().unwrap_or_default().to_owned()
    }

    pub(super) fn wait<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(Instant::now() < deadline, "waited in vain for {what}");
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for Pair {
    /// Kills everything that was started for the folder. The agent comes first, because it could start other processes.
    fn drop(&mut self) {
        for process in self.agent.iter_mut().chain([&mut self.collector]) {
            let _gone_already = process.kill();
            let _gone_already = process.wait();
        }
        kill_all_of(self.folder.path());
    }
}

/// Kills every process that was started for a folder.
pub(super) fn kill_all_of(folder: &Path) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let mut left = processes();
        left.retain(|pid| is_ours(*pid, folder));
        left.iter().for_each(|pid| signal(*pid, "KILL"));
        if left.is_empty() || Instant::now() > deadline {
            return;
        }
        std::thread::sleep(POLL);
    }
}

fn end(process: &mut Child) {
    signal(i32::try_from(process.id()).unwrap(), "TERM");
    process.wait().unwrap();
}

fn collector(program: &Path, folder: &Path, listen: &str) -> Command {
    let mut command = Command::new(program);
    command
        .args(["collector", "--listen", listen, "--data"])
        .arg(folder.join("collector"))
        .env_remove("LOCKSTEP_ADMIN_TOKEN")
        .stdin(Stdio::null());
    command
}

/// Starts the agent of a node without GPUs.
pub(super) fn agent(program: &Path, data: &Path, url: &str, join: &str) -> Child {
    std::fs::create_dir_all(data).unwrap();
    let log = File::options()
        .create(true)
        .append(true)
        .open(data.join("agent.log"))
        .unwrap();
    Command::new(program)
        .args([
            "agent",
            "--name",
            "n1",
            "--metrics-listen",
            "off",
            "--collector",
            url,
            "--data",
        ])
        .arg(data)
        .env("LOCKSTEP_JOIN", join)
        .env("LOCKSTEP_PYTHON", python())
        .env("LOCKSTEP_NVML_LIBRARY", "/nonexistent/libnvidia-ml.so.1")
        .env_remove("LOCKSTEP_SIMULATE")
        .env_remove("LOCKSTEP_TOKEN")
        .env_remove("LOCKSTEP_ADMIN_TOKEN")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}
