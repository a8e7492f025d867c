//! Docker and Podman, asked by their command lines. What they refuse is told with the next step.

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::process::Stdio;
use std::time::Duration;

use clap::ValueEnum;
use domain::container::Runtime;
use tokio::process::Command;

use crate::failure::Failure;
use crate::table::printable;

/// Who is asked something small answers within this, or hangs. Podman waits while another one, such as a build, holds its storage.
const ANSWER_WITHIN: Duration = Duration::from_secs(180);
/// What is said of a refusal, at most.
const WORDS_MAX: usize = 600;

/// What runs the containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Choice {
    /// Docker where its daemon answers, else Podman.
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

/// What a runtime said instead of doing it.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("{0} is not on the PATH")]
    Missing(Runtime),
    #[error("{0} did not answer within {seconds} s", seconds = ANSWER_WITHIN.as_secs())]
    Silent(Runtime),
    #[error("{runtime} says: {said}")]
    Said { runtime: Runtime, said: String },
    #[error("{runtime} cannot be started")]
    Unstartable {
        runtime: Runtime,
        source: std::io::Error,
    },
}

impl Choice {
    /// All that were chosen and answer, the preferred first; never none.
    pub(super) async fn engines(self) -> Result<Vec<Engine>, Failure> {
        let mut answering = Vec::new();
        let mut refused = Vec::new();
        for runtime in self.runtimes() {
            match Engine::probe(*runtime).await {
                Ok(engine) if answering.contains(&engine) => {}
                Ok(engine) => answering.push(engine),
                Err(refusal) => refused.push(refusal),
            }
        }
        if answering.is_empty() {
            return Err(Failure::Failed(anyhow::anyhow!("{}", none_answers(&refused))));
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

fn none_answers(refused: &[Refusal]) -> String {
    if refused
        .iter()
        .all(|refusal| matches!(refusal, Refusal::Missing(_)))
    {
        let names: Vec<String> = refused
            .iter()
            .filter_map(|refusal| match refusal {
                Refusal::Missing(runtime) => Some(runtime.to_string()),
                _ => None,
            })
            .collect();
        return format!(
            "{} is not on the PATH; install Docker (https://docs.docker.com/engine/install) or Podman (`apt-get install podman`)",
            names.join(" or ")
        );
    }
    let told = refused
        .iter()
        .filter(|refusal| !matches!(refusal, Refusal::Missing(_)) || refused.len() == 1);
    told.map(Refusal::with_next_step).collect::<Vec<_>>().join("; ")
}

impl Engine {
    /// Whether a runtime answers. `docker` may be Podman under another name.
    async fn probe(runtime: Runtime) -> Result<Self, Refusal> {
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
            let said = "it runs rootless, where a workspace's user could not write your folders; rootless Podman can: --runtime podman";
            return Err(Refusal::Said {
                runtime,
                said: said.to_owned(),
            });
        }
        Ok(Self { runtime })
    }

    /// Runs a command and gives what it prints.
    pub(super) async fn ask(self, line: &[String]) -> Result<String, Refusal> {
        ask(self.runtime, line).await
    }

    /// Runs a command of the kind that takes its time (stopping, starting): as [`ask`](Self::ask), for as long as it takes.
    pub(super) async fn carry_out(self, line: &[String]) -> Result<String, Refusal> {
        let output = command(line).output().await;
        judge(self.runtime, output)
    }

    /// Runs a command and gives all that it says, a line each, whatever becomes of it.
    pub(super) async fn lines(self, line: &[String]) -> Vec<String> {
        let Ok(Ok(output)) = tokio::time::timeout(ANSWER_WITHIN, command(line).output()).await else {
            return Vec::new();
        };
        let said = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&said).lines().map(printable).collect()
    }

    /// Runs a command whose output is its progress; it goes to stderr, where it does not mix with results.
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

async fn ask<S: AsRef<str>>(runtime: Runtime, line: &[S]) -> Result<String, Refusal> {
    match tokio::time::timeout(ANSWER_WITHIN, command(line).output()).await {
        Ok(output) => judge(runtime, output),
        Err(_) => Err(Refusal::Silent(runtime)),
    }
}

fn command<S: AsRef<str>>(line: &[S]) -> Command {
    let mut words = line.iter().map(AsRef::as_ref);
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).stdin(Stdio::null()).kill_on_drop(true);
    command
}

fn judge(runtime: Runtime, output: std::io::Result<std::process::Output>) -> Result<String, Refusal> {
    let output = match output {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(Refusal::Missing(runtime)),
        Err(source) => return Err(Refusal::Unstartable { runtime, source }),
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
    let said = if lines.is_empty() {
        output.status.to_string()
    } else {
        lines.join(" / ").chars().take(WORDS_MAX).collect()
    };
    Err(Refusal::Said { runtime, said })
}

impl Refusal {
    /// What happened, and what to do next where that is known.
    pub(super) fn with_next_step(&self) -> String {
        match self.next_step() {
            Some(next) => format!("{self}; {next}"),
            None => self.to_string(),
        }
    }

    fn next_step(&self) -> Option<&'static str> {
        let said = match self {
            Self::Missing(Runtime::Docker) => {
                return Some("install it (https://docs.docker.com/engine/install), or use --runtime podman");
            }
            Self::Missing(Runtime::Podman) => {
                return Some("install it (`apt-get install podman`), or use --runtime docker");
            }
            Self::Silent(Runtime::Docker) => {
                return Some("see whether its service works: `systemctl status docker`");
            }
            Self::Silent(Runtime::Podman) => {
                return Some(
                    "another command may hold its storage, such as a build: try again when that has ended",
                );
            }
            Self::Unstartable { .. } => return None,
            Self::Said { said, .. } => said.to_lowercase(),
        };
        NEXT_STEPS
            .iter()
            .find(|(words, _)| said.contains(words))
            .map(|(_, next)| *next)
    }
}

/// Words of a refusal, in small letters, and what helps.
const NEXT_STEPS: [(&str, &str); 9] = [
    (
        "permission denied while trying to connect",
        "let yourself use it (`sudo usermod -aG docker $USER`, then log in again), or use --runtime podman",
    ),
    (
        "is the docker daemon running",
        "start it (`sudo systemctl start docker`), or use --runtime podman",
    ),
    (
        "could not select device driver",
        "Docker cannot hand out GPUs: install the NVIDIA Container Toolkit (`nvidia-ctk runtime configure --runtime=docker`, restart Docker), or use --gpus none",
    ),
    (
        "nvidia-container-cli",
        "make `nvidia-smi` work on this machine first, or use --gpus none",
    ),
    (
        "nvidia.com/gpu",
        "Podman cannot hand out these GPUs: `sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml` and `nvidia-ctk cdi list` shows them; or use --gpus none",
    ),
    ("port is already allocated", TAKEN_PORT),
    ("address already in use", TAKEN_PORT),
    (
        "is already in use",
        "another container has the name; give the workspace another name",
    ),
    (
        "rlimit",
        "a limit of this machine is lower than asked for; see `ulimit -Hl` and `ulimit -Hs`",
    ),
];
const TAKEN_PORT: &str = "choose other ports with --jupyter-port and --ssh-port";

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Failed(anyhow::anyhow!("{}", refusal.with_next_step()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_both_runtimes_come_with_the_next_step() {
        for (said, next) in [
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
            let refusal = Refusal::Said {
                runtime: Runtime::Docker,
                said: said.to_owned(),
            };
            let told = refusal.with_next_step();
            assert!(told.contains(said) && told.contains(next), "{told}");
        }
        let unknown = Refusal::Said {
            runtime: Runtime::Podman,
            said: "no".into(),
        };
        assert_eq!(unknown.with_next_step(), "podman says: no");
    }

    #[test]
    fn a_missing_runtime_is_not_mentioned_beside_one_that_is_there_and_broken() {
        let broken = || Refusal::Said {
            runtime: Runtime::Docker,
            said: "is the docker daemon running".into(),
        };
        let told = none_answers(&[broken(), Refusal::Missing(Runtime::Podman)]);
        assert!(!told.contains("not on the PATH"), "{told}");
        let told = none_answers(&[
            Refusal::Missing(Runtime::Docker),
            Refusal::Missing(Runtime::Podman),
        ]);
        assert!(told.starts_with("docker or podman is not on the PATH"), "{told}");
    }
}
