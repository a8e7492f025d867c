//! The compared programs, and how each is started: as its users run it, on the simulated library, once per second.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::ValueEnum;

use crate::layout::Layout;
use crate::measure::http::Address;
use crate::measure::server::{Plan, Server, free_port};
use crate::measure::{build, folder};
use crate::toolchain::{all_smi, venv};

/// A compared program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Watcher {
    NvitopExporter,
    AllSmi,
    Lockstep,
    LockstepWithCollector,
}

/// A running program, and its collector. On drop, both are killed and their data is removed.
pub(super) struct Running {
    pub(super) server: Server,
    _collector: Option<Server>,
    folder: PathBuf,
}

impl Watcher {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::NvitopExporter => "nvitop-exporter",
            Self::AllSmi => "all-smi",
            Self::Lockstep => "Lockstep",
            Self::LockstepWithCollector => "Lockstep, with a collector",
        }
    }

    fn step(self) -> &'static str {
        match self {
            Self::NvitopExporter => "bench-nvitop-exporter",
            Self::AllSmi => "bench-all-smi",
            Self::Lockstep => "bench-agent",
            Self::LockstepWithCollector => "bench-agent-linked",
        }
    }

    /// Starts the program in an empty folder and waits until it answers.
    pub(super) fn start(self, layout: &Layout, simulated: &str) -> Result<Running> {
        let folder = layout.target().join("bench").join(self.step());
        folder::empty(&folder)?;
        let collector = match self {
            Self::LockstepWithCollector => Some(collector(layout, &folder)?),
            _ => None,
        };
        let mut plan = self.plan(layout, &folder, simulated)?;
        if let Some(collector) = &collector {
            plan.arguments.push(format!("--collector={}", collector.url()));
            plan.variables.push(collector.join_secret()?);
        }
        let server = Server::start(layout, plan)?;
        Ok(Running {
            server,
            _collector: collector,
            folder,
        })
    }

    fn plan(self, layout: &Layout, folder: &Path, simulated: &str) -> Result<Plan> {
        let port = free_port()?;
        let port_text = port.to_string();
        let listen = format!("--metrics-listen=127.0.0.1:{port}");
        let data = format!("--data={}", folder.join("data").display());
        let (program, arguments) = match self {
            Self::NvitopExporter => (
                venv::tool(layout, &venv::NVITOP_EXPORTER)?,
                vec![
                    "--bind-address",
                    "127.0.0.1",
                    "--port",
                    &port_text,
                    "--interval",
                    "1",
                ],
            ),
            Self::AllSmi => (
                all_smi::ensure(layout)?,
                vec!["api", "--port", &port_text, "--interval", "1"],
            ),
            Self::Lockstep | Self::LockstepWithCollector => (
                build::program(layout, "lockstep"),
                vec!["agent", "--simulate", simulated, &listen, &data, "--no-runs"],
            ),
        };
        let variables = self.variables(layout, folder, &program, simulated)?;
        Ok(Plan {
            step: self.step().to_owned(),
            arguments: arguments.into_iter().map(str::to_owned).collect(),
            program,
            variables,
            folder: folder.to_owned(),
            address: Address { port, token: None },
            ready: "/metrics",
        })
    }

    /// The other programs load NVML by its usual names; all-smi also calls `nvidia-smi`, which is in the same folder.
    fn variables(
        self,
        layout: &Layout,
        folder: &Path,
        program: &Path,
        simulated: &str,
    ) -> Result<Vec<(&'static str, OsString)>> {
        if matches!(self, Self::Lockstep | Self::LockstepWithCollector) {
            return Ok(Vec::new());
        }
        let library = build::program(layout, "libsim_nvml.so");
        for name in ["libnvidia-ml.so.1", "libnvidia-ml.so"] {
            symlink(&library, folder.join(name)).with_context(|| format!("cannot link {name}"))?;
        }
        let beside = program.parent().context("a program lies in a folder")?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path =
            std::env::join_paths(std::iter::once(beside.to_owned()).chain(std::env::split_paths(&path)));
        Ok(vec![
            ("LD_LIBRARY_PATH", folder.into()),
            ("LOCKSTEP_SIMULATE", simulated.into()),
            ("PATH", path.context("the folder's name cannot be in PATH")?),
        ])
    }
}

fn collector(layout: &Layout, folder: &Path) -> Result<Server> {
    let data = folder.join("collector");
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Server::start(
        layout,
        Plan::collector(layout, "bench-agent-collector", &data, &[])?,
    )
}

impl Drop for Running {
    fn drop(&mut self) {
        self.server.kill();
        fs::remove_dir_all(&self.folder).ok();
    }
}
