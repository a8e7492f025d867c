//! An agent under test: in its own folder, with its own collector, and removed when dropped.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use agent::{AgentConfig, NvmlSource, Secret};
use domain::ident::NodeName;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The longest wait for a condition. It only ends a test that hangs, so it is long enough for a machine that is busy or stalls for seconds.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(90);

/// Returns the path of the simulator: as configured, otherwise where cargo puts it. Builds it if it is missing.
fn simulator() -> PathBuf {
    if let Ok(path) = std::env::var("LOCKSTEP_SIM_LIBRARY") {
        return path.into();
    }
    let executable = std::env::current_exe().unwrap();
    let built = executable
        .parent()
        .unwrap()
        .parent()
        .unwrap()
        .join("libsim_nvml.so");
    if !built.is_file() {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let done = Command::new(cargo)
            .args(["build", "--quiet", "--package", "sim-nvml"])
            .status()
            .unwrap();
        assert!(
            done.success() && built.is_file(),
            "no simulator at {built:?}; set LOCKSTEP_SIM_LIBRARY"
        );
    }
    built
}

/// Copies the simulator. Each copy is a separate library with its own machine, also within one process.
pub(crate) fn simulated(folder: &Path, spec: &str) -> NvmlSource {
    let copy = folder.join("libsim_nvml.so");
    std::fs::copy(simulator(), &copy).unwrap();
    NvmlSource::Simulated {
        library: Some(copy),
        spec: spec.into(),
    }
}

/// The configuration of a node without GPUs and without a collector.
pub(crate) fn config(folder: &Path) -> AgentConfig {
    AgentConfig {
        collector: None,
        join_token: None,
        node: NodeName::new("n1").unwrap(),
        rack: None,
        data_dir: folder.join("data"),
        root: "/".into(),
        nvml: NvmlSource::Path("/nonexistent/libnvidia-ml.so.1".into()),
        metrics: agent::MetricsConfig::default(),
        accepts_runs: false,
        python: None,
        tls_ca: None,
        watch_jobs: Some(false),
        spool_bytes_max: 64 << 20,
    }
}

/// The configuration of the same node with a collector.
pub(crate) fn config_towards(folder: &Path, collector: &str) -> AgentConfig {
    AgentConfig {
        collector: Some(collector.to_owned()),
        join_token: Some(Secret::new("lsj_test")),
        ..config(folder)
    }
}

/// An agent that runs.
pub(crate) struct Running {
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), agent::AgentError>>,
}

impl Running {
    pub(crate) fn start(config: AgentConfig) -> Self {
        let shutdown = CancellationToken::new();
        Self {
            task: tokio::spawn(agent::run(config, shutdown.clone())),
            shutdown,
        }
    }

    /// Stops the agent and waits until it has ended.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(WAIT_MAX, self.task)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }
}

/// Waits for a condition. If it does not become true, the panic names it.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT_MAX;
    while !holds() {
        assert!(
            Instant::now() < deadline,
            "{what} did not come within {WAIT_MAX:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}
