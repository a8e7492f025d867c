//! Runs Docker and Podman through their command lines. Errors include the next step.

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::process::Stdio;
use std::time::Duration;

use clap::ValueEnum;
use domain::container::Runtime;
use tokio::process::Command;

use crate::failure::Failure;
use crate::table::printable;

/// Timeout of short commands. Podman waits while another command, such as a build, holds its storage.
const ANSWER_WITHIN: Duration = Duration::from_secs(180);
/// Most characters of a runtime's error message.
const WORDS_MAX: usize = 600;

/// The container runtime to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum RuntimeChoice {
    /// Docker if its daemon answers, otherwise Podman.
    Auto,
    /// Docker.
    Docker,
    /// Podman.
    Podman,
}

/// A runtime that answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Engine {
    pub(super) runtime: Runtime,
}

/// Why a runtime did not do what it should.
#[derive(Debug, thiserror::Error)]
pub(super) enum RuntimeError {
    #[error("{0} is not on the PATH")]
    Missing(Runtime),
    #[error("{0} did not answer within {seconds} s", seconds = ANSWER_WITHIN.as_secs())]
    TimedOut(Runtime),
    #[error("{runtime} says: {message}")]
    Failed { runtime: Runtime, message: String },
    #[error("{runtime} cannot be started")]
    Unstartable {
        runtime: Runtime,
        source: std::io::Error,
    },
}

impl RuntimeChoice {
    /// Returns the chosen runtimes that answer, preferred first. Never empty.
    pub(super) async fn engines(self) -> Result<Vec<Engine>, Failure> {
        let mut answering = Vec::new();
        let mut errors = Vec::new();
        for runtime in self.runtimes() {
            match Engine::probe(*runtime).await {
                Ok(engine) if answering.contains(&engine) => {}
                Ok(engine) => answering.push(engine),
                Err(error) => errors.push(error),
            }
        }
        if answering.is_empty() {
            return Err(Failure::Failed(anyhow::anyhow!("{}", none_answers(&errors))));
        }
        Ok(answering)
    }

    fn runtimes(self) -> &'static [Runtime] {
        match self {
            Self::Auto => &[Runtime::Docker, Runtime::Podman],
            Self::Docker => &[Runtime::Docker],
            Self::Podman => &[Runtime::Podman],
        }
    }
}

fn none_answers(errors: &[RuntimeError]) -> String {
    let missing: Vec<String> = errors
        .iter()
        .filter_map(|error| match error {
            RuntimeError::Missing(runtime) => Some(runtime.to_string()),
            _ => None,
        })
        .collect();
    if missing.len() == errors.len() {
        return format!(
            "{} is not on the PATH; install Docker (https://docs.docker.com/engine/install) or Podman (`apt-get install podman`)",
            missing.join(" or ")
        );
    }
    let shown = errors
        .iter()
        .filter(|error| !matches!(error, RuntimeError::Missing(_)) || errors.len() == 1);
    shown
        .map(RuntimeError::with_next_step)
        .collect::<Vec<_>>()
        .join("; ")
}

impl Engine {
    /// Checks that a runtime answers. `docker` may be an alias of Podman.
    async fn probe(runtime: Runtime) -> Result<Self, RuntimeError> {
        let program = runtime.program();
        let version = ask(runtime, &[program, "--version"]).await?;
        if runtime == Runtime::Podman || version.to_lowercase().starts_with("podman") {
            let runtime = Runtime::Podman;
            return Ok(Self { runtime });
        }
        let options = ask(
            runtime,
            &[program, "info", "--format", "{{json .SecurityOptions}}"],
        )
        .await?;
        if options.contains("name=rootless") {
            let message = "it runs rootless, so a workspace's user could not write to your folders; rootless Podman can: use --runtime podman";
            return Err(RuntimeError::Failed {
                runtime,
                message: message.to_owned(),
            });
        }
        Ok(Self { runtime })
    }

    /// Runs a command and returns its output.
    pub(super) async fn ask(self, line: &[String]) -> Result<String, RuntimeError> {
        ask(self.runtime, line).await
    }

    /// Runs a slow command (start, stop) without a timeout, and returns its output.
    pub(super) async fn run_without_timeout(self, line: &[String]) -> Result<String, RuntimeError> {
        let output = command(line).output().await;
        check_output(self.runtime, output)
    }

    /// Runs a command and returns the lines of both outputs. Ignores errors.
    pub(super) async fn lines(self, line: &[String]) -> Vec<String> {
        let Ok(Ok(output)) = tokio::time::timeout(ANSWER_WITHIN, command(line).output()).await else {
            return Vec::new();
        };
        let bytes = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&bytes).lines().map(printable).collect()
    }

    /// Runs a command whose output is its progress. The output goes to stderr, so that it does not mix with results.
    pub(super) async fn show(self, line: &[String]) -> anyhow::Result<()> {
        let stderr = std::io::stderr().as_fd().try_clone_to_owned()?;
        let status = command(line)
            .stdout(Stdio::from(stderr))
            .stderr(Stdio::inherit())
            .status()
            .await?;
        anyhow::ensure!(status.success(), "{status}");
        Ok(())
    }
}

async fn ask<S: AsRef<str>>(runtime: Runtime, line: &[S]) -> Result<String, RuntimeError> {
    match tokio::time::timeout(ANSWER_WITHIN, command(line).output()).await {
        Ok(output) => check_output(runtime, output),
        Err(_) => Err(RuntimeError::TimedOut(runtime)),
    }
}

fn command<S: AsRef<str>>(line: &[S]) -> Command {
    let mut words = line.iter().map(AsRef::as_ref);
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).stdin(Stdio::null()).kill_on_drop(true);
    command
}

fn check_output(
    runtime: Runtime,
    output: std::io::Result<std::process::Output>,
) -> Result<String, RuntimeError> {
    let output = match output {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(RuntimeError::Missing(runtime)),
        Err(source) => return Err(RuntimeError::Unstartable { runtime, source }),
    };
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<String> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(printable)
        .collect();
    let message = if lines.is_empty() {
        output.status.to_string()
    } else {
        lines.join(" / ").chars().take(WORDS_MAX).collect()
    };
    Err(RuntimeError::Failed { runtime, message })
}

impl RuntimeError {
    /// Describes what happened, and the next step if it is known.
    pub(super) fn with_next_step(&self) -> String {
        match self.next_step() {
            Some(next) => format!("{self}; {next}"),
            None => self.to_string(),
        }
    }

    fn next_step(&self) -> Option<&'static str> {
        let message = match self {
            Self::Missing(Runtime::Docker) => {
                return Some("install it (https://docs.docker.com/engine/install), or use --runtime podman");
            }
            Self::Missing(Runtime::Podman) => {
                return Some("install it (`apt-get install podman`), or use --runtime docker");
            }
            Self::TimedOut(Runtime::Docker) => {
                return Some("check its service: `systemctl status docker`");
            }
            Self::TimedOut(Runtime::Podman) => {
                return Some(
                    "another command, such as a build, may hold its storage; try again when it has ended",
                );
            }
            Self::Unstartable { .. } => return None,
            Self::Failed { message, .. } => message.to_lowercase(),
        };
        NEXT_STEPS
            .iter()
            .find(|(words, _)| message.contains(words))
            .map(|(_, next)| *next)
    }
}

/// Parts of error messages, in lower case, and the next step for each.
const NEXT_STEPS: [(&str, &str); 9] = [
    (
        "permission denied while trying to connect",
        "get access to it (`sudo usermod -aG docker $USER`, then log in again), or use --runtime podman",
    ),
    (
        "is the docker daemon running",
        "start it (`sudo systemctl start docker`), or use --runtime podman",
    ),
    (
        "could not select device driver",
        "Docker has no access to GPUs: install the NVIDIA Container Toolkit (`nvidia-ctk runtime configure --runtime=docker`, restart Docker), or use --gpus none",
    ),
    (
        "nvidia-container-cli",
        "make `nvidia-smi` work on this machine first, or use --gpus none",
    ),
    (
        "nvidia.com/gpu",
        "Podman has no access to these GPUs: run `sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml` and check with `nvidia-ctk cdi list`, or use --gpus none",
    ),
    ("port is already allocated", TAKEN_PORT),
    ("address already in use", TAKEN_PORT),
    (
        "is already in use",
        "another container has the name; give the workspace another name",
    ),
    (
        "rlimit",
        "a limit of this machine is lower than required; see `ulimit -Hl` and `ulimit -Hs`",
    ),
];
const TAKEN_PORT: &str = "choose other ports with --jupyter-port and --ssh-port";

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Self {
        Self::Failed(anyhow::anyhow!("{}", error.with_next_step()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_both_runtimes_come_with_the_next_step() {
        for (message, next) in [
            (
                "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
                "systemctl start docker",
            ),
            (
                "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
                "usermod -aG docker",
            ),
            (
                "docker: Error response from daemon: could not select device driver \"\" with capabilities: [[gpu]].",
                "nvidia-ctk runtime configure",
            ),
            (
                "Error: stat nvidia.com/gpu=all: no such file or directory",
                "nvidia-ctk cdi generate",
            ),
            (
                "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=9",
                "nvidia-ctk cdi list",
            ),
            (
                "Bind for 127.0.0.1:8888 failed: port is already allocated.",
                "--jupyter-port",
            ),
            (
                "Conflict. The container name \"/x\" is already in use by container \"1\".",
                "another name",
            ),
        ] {
            let error = RuntimeError::Failed {
                runtime: Runtime::Docker,
                message: message.to_owned(),
            };
            let text = error.with_next_step();
            assert!(text.contains(message) && text.contains(next), "{text}");
        }
        let unknown = RuntimeError::Failed {
            runtime: Runtime::Podman,
            message: "no".into(),
        };
        assert_eq!(unknown.with_next_step(), "podman says: no");
    }

    #[test]
    fn a_missing_runtime_is_not_mentioned_beside_one_that_is_there_and_broken() {
        let broken = || RuntimeError::Failed {
            runtime: Runtime::Docker,
            message: "is the docker daemon running".into(),
        };
        let text = none_answers(&[broken(), RuntimeError::Missing(Runtime::Podman)]);
        assert!(!text.contains("not on the PATH"), "{text}");
        let text = none_answers(&[
            RuntimeError::Missing(Runtime::Docker),
            RuntimeError::Missing(Runtime::Podman),
        ]);
        assert!(text.starts_with("docker or podman is not on the PATH"), "{text}");
    }
}
