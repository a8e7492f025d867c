//! `lockstep workspace stop NAME`

use std::path::Path;

use clap::Args;

use super::discovery::{self, ExistingWorkspace};
use super::engine::RuntimeChoice;
use super::keys::Keys;
use super::settings;
use crate::failure::Failure;

/// Stop a workspace. Its processes get SIGTERM, and time to end.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep workspace stop ann                    `start ann` starts it again, with what was installed in it
  lockstep workspace stop ann --remove           also removes its container, token and SSH key; keeps the folders")]
pub(super) struct Stop {
    /// Name of the workspace, from `list`.
    #[arg(value_parser = settings::name)]
    name: String,
    /// Also remove its container, token and SSH key. Code, data and logs are kept.
    #[arg(long)]
    remove: bool,
    /// Seconds that its processes have to end before they are killed.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(0..=86_400))]
    grace: u32,
}

impl Stop {
    pub(super) async fn execute(self, choice: RuntimeChoice, state: &Path) -> Result<(), Failure> {
        let Self { name, remove, grace } = self;
        let there = discovery::all(choice).await?;
        let keys = Keys::of(state, &name);
        let Some(workspace) = there.iter().find(|workspace| workspace.settings.name == name) else {
            if remove && keys.folder.exists() {
                keys.remove()?;
                say!("{name} had no container; its token and SSH key are removed");
                return Ok(());
            }
            return Err(unknown(&name, &there));
        };
        let ExistingWorkspace {
            engine, container, ..
        } = workspace;
        if workspace.runs() {
            eprintln!("Stopping {name}; its processes have {grace} s to end …");
            engine
                .run_without_timeout(&engine.runtime.stop(container, grace))
                .await?;
        }
        if remove {
            engine
                .run_without_timeout(&engine.runtime.remove(container))
                .await?;
            keys.remove()?;
            say!("{name} is removed; its folders are kept");
        } else {
            say!("{name} is stopped; `lockstep workspace start {name}` starts it again");
        }
        Ok(())
    }
}

fn unknown(name: &str, there: &[ExistingWorkspace]) -> Failure {
    let names: Vec<&str> = there
        .iter()
        .map(|workspace| workspace.settings.name.as_str())
        .collect();
    let known = if names.is_empty() {
        "no workspaces exist".to_owned()
    } else {
        format!("existing workspaces: {}", names.join(", "))
    };
    Failure::Failed(anyhow::anyhow!("no workspace {name} here; {known}"))
}
