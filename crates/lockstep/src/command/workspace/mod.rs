//! `lockstep workspace start|stop|list|dockerfile`: a container to work in, with GPUs, JupyterLab and SSH.
//!
//! ```text
//! start   options ─▶ settings ─▶ domain::container ─▶ docker run / podman run ─▶ Jupyter answers
//!                       │ stored as labels on the container: the only record of a workspace
//! list, stop   containers with the label ─▶ settings
//!
//! STATE/NAME/  jupyter.token, authorized_keys, the SSH server's key: mounted at /run/workspace, nowhere else
//! ```
//! Docker and Podman are used through their command lines only. There is deliberately no register of workspaces besides the containers.

mod container;
mod devices;
mod discovery;
mod engine;
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

use self::engine::RuntimeChoice;
use crate::failure::Failure;
use crate::locate;

/// Containers to work in: PyTorch with CUDA, this machine's GPUs, JupyterLab and SSH.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep workspace start --build               build the image, start a workspace, print its address
  lockstep workspace start ann --code ~/llama --data /datasets:ro --gpus 0,1
  lockstep workspace list                        workspaces of this machine, with their GPUs
  lockstep workspace stop ann                    keeps the container; `start ann` starts it again

The current folder is at /workspace/code, data at /workspace/data, logs at /workspace/logs. Jupyter (8888) and SSH (2222) listen on
127.0.0.1 only; from another machine: ssh -L 8888:127.0.0.1:8888 HOST.")]
pub(crate) struct Workspace {
    #[command(subcommand)]
    action: Action,
    /// Container runtime. auto uses Docker if its daemon answers, otherwise Podman.
    #[arg(long, env = "LOCKSTEP_WORKSPACE_RUNTIME", value_enum, default_value_t = RuntimeChoice::Auto, global = true)]
    runtime: RuntimeChoice,
    /// Folder for tokens and keys of workspaces. Default: workspaces in the data folder.
    #[arg(long, env = "LOCKSTEP_WORKSPACE_STATE", value_name = "DIR", global = true)]
    state: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Action {
    /// Start a workspace and print its address. A running workspace is not changed.
    Start(Box<start::Start>),
    /// Stop a workspace. Its processes get SIGTERM, and time to end.
    Stop(stop::Stop),
    /// List workspaces, running or not, with their GPUs.
    List(list::List),
    /// Print the Dockerfile of the image, or write it and the files it needs.
    Dockerfile(image::Dockerfile),
}

impl Workspace {
    pub(crate) async fn execute(self) -> Result<(), Failure> {
        let state = match self.state {
            Some(dir) => std::path::absolute(dir)?,
            None => locate::default_data_dir().join("workspaces"),
        };
        // The folder is mounted into the container.
        check::path(&state.to_string_lossy()).map_err(|why| Failure::Usage(format!("--state: {why}")))?;
        match self.action {
            Action::Start(start) => start.execute(self.runtime, &state).await,
            Action::Stop(stop) => stop.execute(self.runtime, &state).await,
            Action::List(list) => list.execute(self.runtime).await,
            Action::Dockerfile(dockerfile) => dockerfile.execute(),
        }
    }
}
