//! `lockstep doctor`: checks what works on this machine, what does not, and which step is next.
//!
//! ```text
//! gpus        ten checks of one reading of the agent      training   interpreter of runs, torch, NCCL
//! host        files that an agent reads, disk, cgroups    collector  reachable, token, clock
//! ```
//! Every check reports one thing. A part that is only absent (a machine without GPUs, a node without InfiniBand) gives a note, because
//! the rest works without it. The exit code is 1 if a part is present and does not work.

mod check;
mod collector;
mod gpu_health;
mod gpus;
mod host;
mod training;

use std::path::PathBuf;

use clap::Args;
use listener::OpenFiles;

use self::check::{Check, State};
use crate::client::Target;
use crate::failure::Failure;
use crate::{locate, table};

/// Check what works on this machine, what does not, and which step is next.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep doctor                                this machine, and the collector at --url
  lockstep doctor --json                         as JSON
  lockstep doctor --root /host                   in a container with the host's files mounted at /host

Exit codes: 0 no check fails, 1 a check fails.")]
pub(crate) struct Doctor {
    /// Print the checks as a JSON array.
    #[arg(long)]
    json: bool,
    /// Folder where the host's /proc and /sys are mounted; for use in a container.
    #[arg(long, env = "LOCKSTEP_ROOT", value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// NVML library to open instead of the system's own.
    #[arg(long, env = "LOCKSTEP_NVML_LIBRARY", value_name = "PATH")]
    nvml_library: Option<PathBuf>,
    /// Check simulated GPUs, for example h100x8.
    #[arg(long, env = "LOCKSTEP_SIMULATE", value_name = "SPEC")]
    simulate: Option<String>,
    /// Python interpreter or virtual environment for runs that do not name one.
    #[arg(long, env = "LOCKSTEP_PYTHON", value_name = "PATH")]
    python: Option<PathBuf>,
    /// Folder for the agent's spool and runs.
    #[arg(long, env = "LOCKSTEP_AGENT_DATA", value_name = "DIR")]
    data: Option<PathBuf>,
    #[command(flatten)]
    target: Target,
}

impl Doctor {
    pub(crate) async fn execute(self) -> Result<(), Failure> {
        let checks = self.checks().await;
        if self.json {
            crate::say::json(&checks)?;
        } else {
            print(&checks);
        }
        let failed: Vec<&str> = checks
            .iter()
            .filter(|check| check.state == State::Fails)
            .map(|check| &*check.name)
            .collect();
        if failed.is_empty() {
            return Ok(());
        }
        Err(Failure::Failed(anyhow::anyhow!(
            "failed checks: {}",
            failed.join(", ")
        )))
    }

    async fn checks(&self) -> Vec<Check> {
        let data = self
            .data
            .clone()
            .unwrap_or_else(|| locate::default_data_dir().join("agent"));
        let mut checks =
            gpus::checks(&self.root, self.nvml_library.as_deref(), self.simulate.as_deref()).await;
        checks.push(gpus::simulator());
        checks.extend(host::checks(&self.root, &data));
        checks.push(host::open_files(OpenFiles::current()));
        checks.extend(training::checks(self.python.as_deref()).await);
        checks.extend(collector::checks(&self.target).await);
        checks
    }
}

fn print(checks: &[Check]) {
    let rows: Vec<Vec<String>> = checks
        .iter()
        .map(|check| {
            vec![
                check.state.word().to_owned(),
                check.name.to_string(),
                check.found.clone(),
            ]
        })
        .collect();
    table::print(&["", "CHECK", "RESULT"], &rows);
    let steps = checks
        .iter()
        .filter_map(|check| Some((check, check.next.as_deref()?)));
    for (n, (check, next)) in steps.enumerate() {
        if n == 0 {
            say!("\nNext steps:");
        }
        say!("  {}: {}", check.name, table::printable(next));
    }
}
