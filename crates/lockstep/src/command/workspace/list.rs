//! `lockstep workspace list`

use std::path::{Path, PathBuf};

use clap::Args;
use domain::container::Gpus;
use domain::time::DisplayDuration;
use jiff::Timestamp;
use serde::Serialize;

use super::devices::{self, Device};
use super::engine::Choice;
use super::found::{self, Found};
use super::settings::{gpus_text, url};
use crate::command::look::look;
use crate::failure::Failure;
use crate::table;

/// List workspaces, running or not, with their GPUs.
#[derive(Args)]
#[command(
    after_help = "What uses a GPU now is in `gpu_assignment_info`: its label `container` is the id that --json shows."
)]
pub(super) struct List {
    /// Print a JSON array.
    #[arg(long)]
    json: bool,
    /// The NVML library to open instead of the machine's own.
    #[arg(long, env = "LOCKSTEP_NVML_LIBRARY", value_name = "PATH")]
    nvml_library: Option<PathBuf>,
    /// Simulated GPUs, like h100x8.
    #[arg(long, env = "LOCKSTEP_SIMULATE", value_name = "SPEC")]
    simulate: Option<String>,
}

/// A workspace as programs read it.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct View {
    name: String,
    state: String,
    runtime: String,
    /// The beginning of the container's id.
    container: String,
    image: String,
    /// Where Jupyter is, while it runs.
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

/// What was asked for, and the GPUs that this is.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct GpusView {
    asked: String,
    devices: Vec<Device>,
    /// Why GPUs that were asked for are not listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<String>,
}

impl List {
    pub(super) async fn execute(self, choice: Choice) -> Result<(), Failure> {
        let found = found::all(choice).await?;
        let machine = self.machine(&found).await;
        let now = Timestamp::now();
        let views: Vec<View> = found
            .iter()
            .map(|workspace| view(workspace, &machine, now))
            .collect();
        if self.json {
            let text = serde_json::to_string_pretty(&views).map_err(|error| Failure::Failed(error.into()))?;
            say!("{text}");
        } else if views.is_empty() {
            say!("no workspace here; `lockstep workspace start --build` makes one of the current folder");
        } else {
            print(&views);
        }
        Ok(())
    }

    /// This machine's GPUs; not asked for when no workspace has any.
    async fn machine(&self, found: &[Found]) -> Machine {
        if found
            .iter()
            .all(|workspace| workspace.settings.gpus == Gpus::None)
        {
            return Machine::default();
        }
        match look(
            Path::new("/"),
            self.nvml_library.as_deref(),
            self.simulate.as_deref(),
        )
        .await
        {
            Ok(seen) => Machine {
                missing: seen.inventory.gpus_missing.clone(),
                inventory: (*seen.inventory).clone(),
            },
            Err(error) => Machine {
                missing: Some(format!("{:#}", anyhow::Error::new(error))),
                ..Machine::default()
            },
        }
    }
}

/// GPUs, or why there are none.
#[derive(Default)]
struct Machine {
    inventory: domain::topology::Inventory,
    missing: Option<String>,
}

fn view(workspace: &Found, machine: &Machine, now: Timestamp) -> View {
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
        user: settings.person.to_string(),
        code: settings.code.to_string(),
        data: settings.data.to_string(),
        logs: settings.logs.to_string(),
        gpus: GpusView {
            asked: gpus_text(&settings.gpus),
            devices: devices::seen(&settings.gpus, &machine.inventory),
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

/// A line a GPU; the first has the rest.
fn rows(view: &View) -> Vec<Vec<String>> {
    let gpus: Vec<String> = view.gpus.devices.iter().map(shown).collect();
    let first = gpus.first().unwrap_or(&view.gpus.asked).clone();
    let place = |port: u16| format!("127.0.0.1:{port}");
    let head = vec![
        view.name.clone(),
        view.state.clone(),
        view.uptime_s.map_or_else(|| "-".to_owned(), uptime),
        view.url.clone(),
        place(view.ssh_port),
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

/// Seconds below an hour, minutes above.
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

    fn found(state: &str) -> Found {
        Found {
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
        let shown = rows(&view(&found("running"), &machine, now));
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
        let view = view(&found("exited"), &machine, now);
        assert_eq!(view.gpus.missing.as_deref(), Some("no NVIDIA driver"));
        let shown = rows(&view);
        assert_eq!((shown[0][2].as_str(), shown[0][6].as_str()), ("-", "0,1"));
    }
}
