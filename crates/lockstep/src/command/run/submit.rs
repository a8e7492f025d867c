//! `lockstep run submit FILE.toml` or `--recipe NAME --set KEY=VALUE`.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use domain::api::runs::RunView;
use domain::run::spec::Spec;

use super::follow;
use crate::client::Client;
use crate::failure::Failure;

/// Start a run from a file or a recipe.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep run submit --recipe ddp --set steps=200 --wait
  lockstep run submit train.toml --nodes 2 --nproc-per-node 8

train.toml:
  name = \"my-model\"
  script = \"/home/me/train.py\"
  args = [\"--epochs\", \"3\"]
  python = \"/home/me/venv\"
  max_restarts = 2

Exit codes with --wait: 0 succeeded, 1 failed or stopped, 2 not a usable description, 3 no collector.")]
pub(super) struct Submit {
    /// A run's description in TOML; or use --recipe.
    #[arg(required_unless_present = "recipe", conflicts_with = "recipe")]
    file: Option<PathBuf>,
    /// A built-in recipe, like ddp.
    #[arg(long, value_name = "NAME")]
    recipe: Option<String>,
    /// A setting of the recipe, like steps=200 or lr=1e-3. May be repeated.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting)]
    settings: Vec<(String, String)>,
    /// Nodes to run on.
    #[arg(long)]
    nodes: Option<u32>,
    /// Processes on each node. Default: one for each GPU, or 2 on a node without.
    #[arg(long)]
    nproc_per_node: Option<u32>,
    /// A name for people.
    #[arg(long)]
    name: Option<String>,
    /// Follow the run until it ends; exit code 1 if it fails.
    #[arg(long)]
    wait: bool,
}

impl Submit {
    pub(super) async fn execute(self, client: &Client) -> Result<(), Failure> {
        let wait = self.wait;
        let spec = self.spec()?;
        let problems = spec.problems();
        if !problems.is_empty() {
            let lines: Vec<_> = problems
                .iter()
                .map(|p| format!("\n  {}: {}", p.field, p.message))
                .collect();
            return Err(Failure::Usage(format!(
                "the run cannot be submitted{}",
                lines.concat()
            )));
        }
        let run: RunView = client.post("/api/runs", &spec).await?;
        say!("{}", run.summary.id);
        if !wait {
            return Ok(());
        }
        follow::to_success(client, &run.summary.id).await
    }

    fn spec(self) -> Result<Spec, Failure> {
        let mut spec = match &self.file {
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))?;
                toml::from_str(&text)
                    .with_context(|| format!("{} is not a run's description", path.display()))
                    .map_err(|error| Failure::Usage(format!("{error:#}")))?
            }
            None => Spec {
                recipe: self.recipe,
                ..Spec::default()
            },
        };
        spec.set.extend(self.settings);
        spec.nodes = self.nodes.or(spec.nodes);
        spec.nproc_per_node = self.nproc_per_node.or(spec.nproc_per_node);
        spec.name = self.name.unwrap_or(spec.name);
        Ok(spec)
    }
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} is not NAME=VALUE"))?;
    if name.is_empty() {
        Err("the name before = is empty".to_owned())
    } else {
        Ok((name.to_owned(), value.to_owned()))
    }
}
