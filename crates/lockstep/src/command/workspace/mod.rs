//! `lockstep workspace start|stop|list|dockerfile`: a container to work in, with its GPUs, JupyterLab and SSH.
//!
//! ```text
//! start   wish (options) ─▶ settings ─▶ domain::container ─▶ docker run / podman run ─▶ Jupyter answers
//!                              │ as labels on the container: all that is known of a workspace
//! list, stop   containers with the label ─▶ settings
//!
//! STATE/NAME/  jupyter.token, authorized_keys, the SSH server's key: in the container at /run/workspace, nowhere else
//! ```
//! Docker and Podman are asked by their command lines only. Absent by design: a register of workspaces beside the containers.

mod container;
mod devices;
mod engine;
mod found;
mod image;
mod keys;
mod list;
mod ready;
mod settings;
mod start;
mod stop;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use domain::container::check;

use self::engine::Choice;
use crate::failure::Failure;
use crate::locate;

/// A container to work in: PyTorch with CUDA, this machine's GPUs, JupyterLab and SSH.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep workspace start --build               from nothing: build the image, start, print where it is
  lockstep workspace start ann --code ~/llama --data /datasets:ro --gpus 0,1
  lockstep workspace list                        what runs here, with its GPUs
  lockstep workspace stop ann                    keeps the container; `start ann` goes on with it

The current folder is at /workspace/code, data at /workspace/data, logs at /workspace/logs. Jupyter (8888) and SSH (2222) listen on
127.0.0.1 only; from another machine: ssh -L 8888:127.0.0.1:8888 HOST.")]
pub(crate) struct Workspace {
    #[command(subcommand)]
    action: Action,
    /// What runs the containers: auto takes Docker where its daemon answers, else Podman.
    #[arg(long, env = "LOCKSTEP_WORKSPACE_RUNTIME", value_enum, default_value_t = Choice::Auto, global = true)]
    runtime: Choice,
    /// Where tokens and keys of workspaces are kept. Default: workspaces in the data folder.
    #[arg(long, env = "LOCKSTEP_WORKSPACE_STATE", value_name = "DIR", global = true)]
    state: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Action {
    /// Start a workspace and say where it is. One that runs already is left as it is.
    Start(Box<start::Start>),
    /// Stop a workspace: its processes get SIGTERM, and time to end.
    Stop(stop::Stop),
    /// List workspaces, running or not, with their GPUs.
    List(list::List),
    /// Print the Dockerfile of the image, or write it with what it needs.
    Dockerfile(image::Dockerfile),
}

impl Workspace {
    pub(crate) async fn execute(self) -> Result<(), Failure> {
        let state = match self.state {
            Some(dir) => std::path::absolute(dir)?,
            None => locate::default_data_dir().join("workspaces"),
        };
        // It is mounted.
        check::path(&state.to_string_lossy()).map_err(|why| Failure::Usage(format!("--state: {why}")))?;
        match self.action {
            Action::Start(start) => start.execute(self.runtime, &state).await,
            Action::Stop(stop) => stop.execute(self.runtime, &state).await,
            Action::List(list) => list.execute(self.runtime).await,
            Action::Dockerfile(dockerfile) => dockerfile.execute(),
        }
    }
}
