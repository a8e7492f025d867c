//! `lockstep workspace list`

use std::path::{Path, PathBuf};

use clap::Args;
use domain::container::Gpus;
use domain::time::DisplayDuration;
use jiff::Timestamp;
use serde::Serialize;

use super::devices::{self, Device};
use super::discovery::{self, ExistingWorkspace};
use super::engine::RuntimeChoice;
use super::settings::{gpus_text, url};
use crate::command::local_reading::read_machine;
use crate::failure::Failure;
use crate::table;

/// List workspaces, running or not, with their GPUs.
#[derive(Args)]
#[command(
    after_help = "`gpu_assignment_info` shows what uses a GPU now: its label `container` is the ID that --json shows."
)]
pub(super) struct List {
    /// Print a JSON array.
    #[arg(long)]
    json: bool,
    /// NVML library to open instead of the system's own.
    #[arg(long, env = "LOCKSTEP_NVML_LIBRARY", value_name = "PATH")]
    nvml_library: Option<PathBuf>,
    /// Simulate GPUs, for example h100x8.
    #[arg(long, env = "LOCKSTEP_SIMULATE", value_name = "SPEC")]
    simulate: Option<String>,
}

/// A workspace in the JSON output.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct View {
    name: String,
    state: String,
    runtime: String,
    /// The beginning of the container's ID.
    container: String,
    image: String,
    /// URL of Jupyter.
    url: String,
    jupyter_port: u16,
    ssh_port: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    uptime_s: Option<u64>,
    user: String,
    code: String,
    data: String,
    logs: String,
    gpus: GpusView,
}

/// The requested GPUs, and the devices that they are.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct GpusView {
    asked: String,
    devices: Vec<Device>,
    /// Why requested GPUs are not listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<String>,
}

impl List {
    pub(super) async fn execute(self, choice: RuntimeChoice) -> Result<(), Failure> {
        let found = discovery::all(choice).await?;
        let machine = self.machine(&found).await;
        let now = Timestamp::now();
        let views: Vec<View> = found
            .iter()
            .map(|workspace| view(workspace, &machine, now))
            .collect();
        if self.json {
            crate::say::json(&views)?;
        } else if views.is_empty() {
            say!(
                "No workspaces on this machine. `lockstep workspace start --build` creates one for the current folder"
            );
        } else {
            print(&views);
        }
        Ok(())
    }

    /// Reads this machine's GPUs. Skips this if no workspace has GPUs.
    async fn machine(&self, found: &[ExistingWorkspace]) -> Machine {
        if found
            .iter()
            .all(|workspace| workspace.settings.gpus == Gpus::None)
        {
            return Machine::default();
        }
        match read_machine(
            Path::new("/"),
            self.nvml_library.as_deref(),
            self.simulate.as_deref(),
        )
        .await
        {
            Ok(reading) => Machine {
                missing: reading.inventory.gpus_missing.clone(),
                inventory: (*reading.inventory).clone(),
            },
            Err(error) => Machine {
                missing: Some(format!("{:#}", anyhow::Error::new(error))),
                ..Machine::default()
            },
        }
    }
}

/// The GPUs of this machine, or why they cannot be read.
#[derive(Default)]
struct Machine {
    inventory: domain::topology::Inventory,
    missing: Option<String>,
}

fn view(workspace: &ExistingWorkspace, machine: &Machine, now: Timestamp) -> View {
    let settings = &workspace.settings;
    let uptime = |started: Timestamp| u64::try_from(now.as_second() - started.as_second()).unwrap_or(0);
    let asked = settings.gpus != Gpus::None;
    View {
        name: settings.name.clone(),
        state: workspace.state.clone(),
        runtime: workspace.engine.runtime.to_string(),
        container: workspace.id.clone(),
        image: settings.image.clone(),
        url: url(settings.jupyter_port),
        jupyter_port: settings.jupyter_port,
        ssh_port: settings.ssh_port,
        uptime_s: workspace.started.filter(|_| workspace.runs()).map(uptime),
        user: settings.user.to_string(),
        code: settings.code.to_string(),
        data: settings.data.to_string(),
        logs: settings.logs.to_string(),
        gpus: GpusView {
            asked: gpus_text(&settings.gpus),
            devices: devices::existing(&settings.gpus, &machine.inventory),
            missing: machine.missing.clone().filter(|_| asked),
        },
    }
}

fn print(views: &[View]) {
    let header = ["NAME", "STATE", "UPTIME", "JUPYTER", "SSH", "IMAGE", "GPUS"];
    let rows: Vec<Vec<String>> = views.iter().flat_map(rows).collect();
    table::print(&header, &rows);
    if let Some(why) = views.iter().find_map(|view| view.gpus.missing.as_deref()) {
        say!("\nGPUs cannot be listed: {}", table::printable(why));
    }
}

/// Returns one row per GPU. The first row also has the other columns.
fn rows(view: &View) -> Vec<Vec<String>> {
    let gpus: Vec<String> = view.gpus.devices.iter().map(shown).collect();
    let first = gpus.first().unwrap_or(&view.gpus.asked).clone();
    let address = |port: u16| format!("127.0.0.1:{port}");
    let head = vec![
        view.name.clone(),
        view.state.clone(),
        view.uptime_s.map_or_else(|| "-".to_owned(), uptime),
        view.url.clone(),
        address(view.ssh_port),
        view.image.clone(),
        first,
    ];
    let further = gpus.into_iter().skip(1).map(|gpu| {
        let mut row = vec![String::new(); head.len() - 1];
        row.push(gpu);
        row
    });
    std::iter::once(head.clone())
        .chain(further.collect::<Vec<_>>())
        .collect()
}

fn shown(device: &Device) -> String {
    format!("{} {} {}", device.index, device.name, device.uuid)
}

/// Formats an uptime: in seconds below one hour, in minutes above.
fn uptime(seconds: u64) -> String {
    let shown = if seconds < 3_600 {
        seconds
    } else {
        seconds / 60 * 60
    };
    DisplayDuration(i64::try_from(shown * 1_000).unwrap_or(i64::MAX)).to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use domain::container::Runtime;
    use domain::topology::{Gpu, Inventory};

    use super::*;
    use crate::command::workspace::engine::Engine;
    use crate::command::workspace::settings::example;

    fn existing(state: &str) -> ExistingWorkspace {
        ExistingWorkspace {
            engine: Engine {
                runtime: Runtime::Docker,
            },
            id: "0123456789ab".into(),
            container: "lockstep-workspace-ann".into(),
            state: state.into(),
            started: Some("2026-11-22T07:00:00Z".parse().unwrap()),
            settings: example(),
        }
    }

    #[test]
    fn a_workspace_is_shown_with_its_gpus_a_line_each() {
        let gpu = |index| Gpu {
            index,
            uuid: format!("GPU-{index}"),
            name: "NVIDIA H100".into(),
            ..Gpu::default()
        };
        let machine = Machine {
            inventory: Inventory {
                gpus: vec![gpu(0), gpu(1), gpu(2)],
                ..Inventory::default()
            },
            missing: None,
        };
        let now = "2026-11-22T09:30:20Z".parse().unwrap();
        let shown = rows(&view(&existing("running"), &machine, now));
        let expected = [
            "ann",
            "running",
            "2h30m",
            "http://127.0.0.1:8888/lab",
            "127.0.0.1:2222",
            "lockstep-workspace:uid1000",
            "0 NVIDIA H100 GPU-0",
        ];
        assert_eq!(shown[0], expected);
        assert_eq!(shown[1][5..], ["", "1 NVIDIA H100 GPU-1"]);
        assert_eq!(shown.len(), 2);
    }

    #[test]
    fn gpus_that_cannot_be_read_are_named_as_asked_and_one_that_ended_has_no_uptime() {
        let machine = Machine {
            missing: Some("no NVIDIA driver".into()),
            ..Machine::default()
        };
        let now = Timestamp::now();
        let view = view(&existing("exited"), &machine, now);
        assert_eq!(view.gpus.missing.as_deref(), Some("no NVIDIA driver"));
        let shown = rows(&view);
        assert_eq!((shown[0][2].as_str(), shown[0][6].as_str()), ("-", "0,1"));
    }
}
