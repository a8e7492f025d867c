//! `lockstep run submit FILE.toml` or `--recipe NAME --set KEY=VALUE`.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use domain::api::runs::RunView;
use domain::run::secret::SecretValue;
use domain::run::spec::Spec;

use super::follow;
use crate::client::Client;
use crate::failure::Failure;

/// Start a run from a file or a recipe.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep run submit --recipe ddp --set steps=200 --wait
  lockstep run submit --recipe ddp --label team=vision --label stage=pretrain
  lockstep run submit train.toml --nodes 2 --nproc-per-node 8
  lockstep run submit train.toml --container pytorch/pytorch:2.7.0-cuda12.6-cudnn9-runtime
  lockstep run submit train.toml --secret HF_TOKEN --secret WANDB_API_KEY=@wandb.key

train.toml:
  name = \"my-model\"
  script = \"/home/me/train.py\"
  args = [\"--epochs\", \"3\"]
  python = \"/home/me/venv\"
  max_restarts = 2

With `container = \"IMAGE\"` instead of `python`, the ranks run in a container, with Docker or Podman. With `[git]`, `repository`
and `revision`, each node checks the code out. A secret is an environment variable for the ranks whose value is not stored with the
run, is never shown, and is replaced in logs and exceptions. Other variables go into [env].

Exit codes with --wait: 0 succeeded, 1 failed or stopped, 2 invalid specification, 3 no collector.")]
pub(super) struct Submit {
    /// Specification of the run: TOML, or JSON if the file name ends in .json. Alternative: --recipe.
    #[arg(required_unless_present = "recipe", conflicts_with = "recipe")]
    file: Option<PathBuf>,
    /// Name of a built-in recipe, for example ddp.
    #[arg(long, value_name = "NAME")]
    recipe: Option<String>,
    /// Setting of the recipe, for example steps=200 or lr=1e-3. Can be repeated.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting)]
    settings: Vec<(String, String)>,
    /// Number of nodes.
    #[arg(long)]
    nodes: Option<u32>,
    /// Processes per node. Default: one per GPU, or 2 on a node without GPUs.
    #[arg(long)]
    nproc_per_node: Option<u32>,
    /// Run the ranks in a container of this image, with Docker or Podman. `container` in the file has more settings.
    #[arg(long, value_name = "IMAGE")]
    container: Option<String>,
    /// Name of the run, for users.
    #[arg(long)]
    name: Option<String>,
    /// Label by which people find and group the run, for example team=vision. Can be repeated. Added to the labels in the file.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = setting)]
    labels: Vec<(String, String)>,
    /// Environment variable for the ranks with a secret value, which no user can see. The value comes from this command's environment, or
    /// with NAME=@FILE from a file. Can be repeated.
    #[arg(long = "secret", value_name = "NAME[=@FILE]", value_parser = secret)]
    secrets: Vec<(String, SecretValue)>,
    /// Make PyTorch's profiler in each rank wait for `lockstep run trace`. Same as `kineto = true` in the file.
    #[arg(long)]
    kineto: bool,
    /// Follow the run until it ends. Exit code 1 if it fails.
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
        for hint in spec.hints() {
            eprintln!("hint: {hint}");
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
                let is_json = path.extension().is_some_and(|extension| extension == "json");
                let read = if is_json {
                    serde_json::from_str(&text).map_err(anyhow::Error::from)
                } else {
                    toml::from_str(&text).map_err(anyhow::Error::from)
                };
                read.with_context(|| format!("{} is not a run specification", path.display()))
                    .map_err(|error| Failure::Usage(format!("{error:#}")))?
            }
            None => Spec {
                recipe: self.recipe,
                ..Spec::default()
            },
        };
        spec.set.extend(self.settings);
        spec.labels.extend(self.labels);
        spec.secrets.extend(self.secrets);
        spec.nodes = self.nodes.or(spec.nodes);
        spec.nproc_per_node = self.nproc_per_node.or(spec.nproc_per_node);
        spec.kineto |= self.kineto;
        spec.name = self.name.unwrap_or(spec.name);
        if let Some(image) = self.container {
            spec.container.get_or_insert_default().image = image;
        }
        Ok(spec)
    }
}

/// Parses NAME or NAME=@FILE. Rejects `NAME=VALUE`: other users of the machine can read arguments, and the shell's history keeps them.
fn secret(text: &str) -> Result<(String, SecretValue), String> {
    match text.split_once('=') {
        None => {
            let value = std::env::var(text).map_err(|_| {
                format!("the environment variable {text} is not set; set it, or use a file: {text}=@FILE")
            })?;
            Ok((text.to_owned(), SecretValue::new(value)))
        }
        Some((name, value)) => {
            let path = value.strip_prefix('@').ok_or_else(|| {
                format!("other users can read arguments; export {name} and use --secret {name}, or --secret {name}=@FILE")
            })?;
            let value = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
            // Editors add the line end.
            Ok((
                name.to_owned(),
                SecretValue::new(value.trim_end_matches(['\r', '\n'])),
            ))
        }
    }
}

pub(super) fn setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} is not NAME=VALUE"))?;
    if name.is_empty() {
        Err("the name before = is empty".to_owned())
    } else {
        Ok((name.to_owned(), value.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_comes_from_the_environment_or_a_file_and_never_from_an_argument() {
        let refused = secret("HF_TOKEN=hf_visible").expect_err("visible to all");
        assert!(
            refused.contains("--secret HF_TOKEN") && !refused.contains("hf_visible"),
            "{refused}"
        );
        assert!(secret("LOCKSTEP_TEST_NO_SUCH_VARIABLE").is_err());
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        std::fs::write(&path, "two\nlines\n").expect("writes");
        let (name, value) = secret(&format!("KEY=@{}", path.display())).expect("a secret");
        assert_eq!((name.as_str(), value.expose()), ("KEY", "two\nlines"));
    }
}
