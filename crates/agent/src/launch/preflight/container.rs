//! Checks whether a run's container could start on this node: a runtime that answers, the image, and Python inside it.

use std::io;
use std::process::Output;
use std::time::{Duration, Instant};

use domain::container::{Container, Runtime};
use domain::run::container::{ContainerOptions, Place};
use domain::run::spec::Spec;
use serde::Deserialize;
use shim::{Folder, boot_id, files};
use tokio::process::Command;

use super::request::{NodeContext, PrepareRequest};
use crate::launch::container::{self, ContainerNeeds, RemovedOnDrop, StoredContainerCheck};

/// A working daemon answers at once.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);
/// Time limit for a pull, if enough time is left for the check.
const PULLED_WITHIN: Duration = Duration::from_secs(180);
/// Time reserved for importing PyTorch afterwards, possibly from a cold file system.
const CHECKED_WITHIN: Duration = Duration::from_secs(75);
/// Maximum length of a runtime's error output that is passed on.
const COMPLAINT_CHARS: usize = 600;
/// The exit code if `docker run` itself failed, not the program in it; Podman uses the same.
const RUNTIME_FAILED: i32 = 125;
/// The exit codes if the program does not exist or cannot be executed.
const NO_PROGRAM: [i32; 2] = [126, 127];
/// The exit code if the container's user cannot write to the attempt's folder, as the ranks must.
const CANNOT_WRITE: i32 = 77;
/// The check inside the container. It writes to the attempt's folder, as the ranks' logs do, and starts Python from an interpreter or a
/// virtual environment.
const ENTER: &str =
    r#"true >"$1" || exit 77; rm -f "$1"; p="$2"; shift 2; [ -d "$p" ] && p="$p/bin/python"; exec "$p" "$@""#;

/// Why a container cannot be started. Each message says how to correct it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContainerError {
    /// No container runtime answers.
    #[error(
        "no container runtime answers on this node ({0}); install Docker or Podman, start Docker's daemon, and let the agent's \
         user use it (group docker)"
    )]
    NoRuntime(String),
    /// The image is missing.
    #[error(
        "the image {image} is not on this node and could not be fetched: {complaint}. Try `{runtime} pull {image}` there"
    )]
    NoImage {
        /// The image.
        image: String,
        /// The runtime that tried to fetch it.
        runtime: Runtime,
        /// The error output of the runtime.
        complaint: String,
    },
    /// The container does not start.
    #[error(
        "a container of {image} does not start: {complaint}. For GPUs, a node needs the NVIDIA Container Toolkit, and with Podman \
         also `nvidia-ctk cdi generate`; `backend = \"gloo\"` needs none"
    )]
    Start {
        /// The image of the container.
        image: String,
        /// The error output of the runtime.
        complaint: String,
    },
    /// The image has no Python interpreter at this path.
    #[error(
        "there is no Python {python} in the image {image}; name the interpreter or virtual environment in it with `python`"
    )]
    NoPython {
        /// The interpreter.
        python: String,
        /// The image.
        image: String,
    },
    /// Python cannot import PyTorch.
    #[error(
        "PyTorch cannot be imported by {python} in the image {image}: {complaint}. Choose an image that has it"
    )]
    NoTorch {
        /// The interpreter.
        python: String,
        /// The image.
        image: String,
        /// The last line of the error output.
        complaint: String,
    },
    /// Process ids have another meaning inside the container.
    #[error(
        "this agent does not see the processes of containers under their ids: the runtime belongs to another machine, or this agent is in a \
         container that does not share the machine's process ids (--pid=host)"
    )]
    Hidden,
    /// The agent cannot watch the processes of this user.
    #[error(
        "container.user is {0:?}, but this agent is not root and could neither watch nor end that user's processes; remove \
         the setting to run as the agent's user"
    )]
    User(String),
    /// A path cannot be mounted.
    #[error("{0}; it cannot be mounted into a container")]
    Mount(String),
    /// The container's user cannot write to the attempt's folder.
    #[error(
        "the user of a container of {image} cannot write into the attempt's folder: {complaint}; name another in container.user \
         (root, or the agent's own), or run the agent as that user"
    )]
    CannotWrite {
        /// The image.
        image: String,
        /// The error output of its shell.
        complaint: String,
    },
    /// Another system error.
    #[error("the container could not be prepared")]
    Io(#[from] io::Error),
}

/// A container that can be started on this node.
#[derive(Debug)]
pub(in crate::launch) struct Found {
    place: Place,
    options: ContainerOptions,
    /// The image with its digest.
    pub(in crate::launch) image: String,
}

/// Finds the runtime and the image, which is pulled if it is missing, and stores the runtime for the start.
///
/// # Errors
/// If no runtime answers, or the image or a mount is not possible.
pub(in crate::launch) async fn find(
    spec: &Spec,
    options: &ContainerOptions,
    request: &PrepareRequest,
    node: &NodeContext,
    until: Instant,
) -> Result<Found, ContainerError> {
    let runtime = runtime(options).await?;
    check_user(options, runtime)?;
    let image = image(runtime, &options.image, until).await?;
    let folder = Folder::at(&request.folder);
    let needs = ContainerNeeds {
        resume_from: request.resume_from.as_deref(),
        // The rest is created only at the start.
        ..ContainerNeeds::default()
    };
    let check = StoredContainerCheck {
        runtime,
        has_gpus: Some(container::gets_gpus(spec, node)),
    };
    let place = container::place(spec, check, &folder, node, needs).map_err(ContainerError::Mount)?;
    folder.write_json(files::CONTAINER, &check)?;
    Ok(Found {
        place,
        options: options.clone(),
        image,
    })
}

/// Returns the first runtime that answers.
async fn runtime(options: &ContainerOptions) -> Result<Runtime, ContainerError> {
    let mut complaints = Vec::new();
    for runtime in options.runtime.candidates() {
        match container::ask(&runtime.check_command(), ANSWERS_WITHIN).await {
            Ok(output) if output.status.success() => return Ok(*runtime),
            Ok(output) => complaints.push(format!("{runtime}: {}", complaint(&output.stderr))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                complaints.push(format!("{runtime} is not installed"));
            }
            Err(error) => complaints.push(format!("{runtime}: {error}")),
        }
    }
    Err(ContainerError::NoRuntime(complaints.join("; ")))
}

fn check_user(options: &ContainerOptions, runtime: Runtime) -> Result<(), ContainerError> {
    let own = rustix::process::geteuid();
    let Some(user) = options.user.as_ref().filter(|_| !own.is_root()) else {
        return Ok(());
    };
    let id = user.split(':').next().unwrap_or_default();
    let is_own = match runtime {
        Runtime::Docker => id == own.as_raw().to_string(),
        Runtime::Podman => id == "0" || id == "root",
    };
    if is_own {
        return Ok(());
    }
    Err(ContainerError::User(user.clone()))
}

/// A runtime's description of an image.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Described {
    id: String,
    repo_digests: Option<Vec<String>>,
}

/// Returns the image's digest if it came from a registry, otherwise its name and id.
async fn image(runtime: Runtime, image: &str, until: Instant) -> Result<String, ContainerError> {
    if let Some(described) = describe(runtime, image).await? {
        return Ok(described);
    }
    tracing::info!(image, %runtime, "pulling a run's image");
    let left = until.saturating_duration_since(Instant::now() + CHECKED_WITHIN);
    let fetched = container::ask(&runtime.pull(image), left.min(PULLED_WITHIN)).await;
    let complaint = match fetched {
        Ok(output) if output.status.success() => match describe(runtime, image).await? {
            Some(described) => return Ok(described),
            None => "it was pulled, but does not exist".to_owned(),
        },
        Ok(output) => complaint(&output.stderr),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            "the pull takes longer than a preparation may; pull it before the run".to_owned()
        }
        Err(error) => error.to_string(),
    };
    let image = image.to_owned();
    Err(ContainerError::NoImage {
        image,
        runtime,
        complaint,
    })
}

async fn describe(runtime: Runtime, image: &str) -> Result<Option<String>, ContainerError> {
    let output = container::ask(&runtime.inspect_image(image), ANSWERS_WITHIN).await?;
    if !output.status.success() {
        return Ok(None);
    }
    let described: Vec<Described> = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let described = described.into_iter().next().unwrap_or_default();
    let digest = described.repo_digests.unwrap_or_default().into_iter().next();
    let id = described.id.trim_start_matches("sha256:");
    Ok(Some(
        digest.unwrap_or_else(|| format!("{image} (id sha256:{id})")),
    ))
}

impl Found {
    /// Runs Python with these arguments in the container and returns its output.
    ///
    /// # Errors
    /// If the container does not start, or has no such Python.
    pub(in crate::launch) async fn ask_python(
        &self,
        python: &str,
        arguments: &[&str],
        spec: &Spec,
        folder: &Folder,
        until: Instant,
    ) -> Result<Output, ContainerError> {
        let name = format!("{}-check", self.place.name);
        let runtime = self.place.runtime;
        let variables = self.place.env.iter().chain(&spec.env);
        let (by_name, file) = shim::split_env(variables.map(|(name, value)| (name.as_str(), value.as_str())));
        folder.write_private(files::CONTAINER_CHECK_ENV, file.as_bytes())?;
        let mut command = vec![
            "-c".to_owned(),
            ENTER.to_owned(),
            "lockstep".to_owned(),
            folder.file(files::CONTAINER_CHECK).display().to_string(),
            python.to_owned(),
        ];
        command.extend(arguments.iter().map(|&argument| argument.to_owned()));
        let names = container::names(&self.place.env)
            .into_iter()
            .chain(container::names(&spec.env));
        let env_file = folder.file(files::CONTAINER_CHECK_ENV).display().to_string();
        let check = Container {
            name: Some(name.clone()),
            // A folder in which no stray file can be imported as a module.
            workdir: Some("/".into()),
            ..self.options.container(&self.place, command, names, &env_file)
        };
        // A previous agent may have left this container if it was killed during the check.
        let _none = container::remove(runtime, &name).await;
        let guard = RemovedOnDrop(runtime, name);
        let words = check.run(runtime);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).envs(by_name);
        command.stdin(std::process::Stdio::null()).kill_on_drop(true);
        let left = until.saturating_duration_since(Instant::now());
        let output = tokio::time::timeout(left, command.output()).await;
        let _gone = folder.remove(files::CONTAINER_CHECK_ENV);
        let Ok(output) = output else {
            return Err(ContainerError::Start {
                image: self.options.image.clone(),
                complaint: format!(
                    "importing PyTorch in it took longer than the {} s that were left for it; are its file systems reachable?",
                    left.as_secs()
                ),
            });
        };
        let output = output?;
        guard.done();
        self.judge(python, output)
    }

    /// Returns the error for a Python that succeeded without a readable answer.
    pub(in crate::launch) fn no_answer(&self, python: &str) -> ContainerError {
        ContainerError::NoTorch {
            python: python.to_owned(),
            image: self.options.image.clone(),
            complaint: "its answer cannot be read".into(),
        }
    }

    fn judge(&self, python: &str, output: Output) -> Result<Output, ContainerError> {
        let (image, python) = (self.options.image.clone(), python.to_owned());
        let complaint = complaint(&output.stderr);
        match output.status.code() {
            Some(0) => Ok(output),
            Some(RUNTIME_FAILED) => Err(ContainerError::Start { image, complaint }),
            Some(CANNOT_WRITE) => Err(ContainerError::CannotWrite { image, complaint }),
            Some(code) if NO_PROGRAM.contains(&code) => Err(ContainerError::NoPython { python, image }),
            _ => Err(ContainerError::NoTorch {
                python,
                image,
                complaint,
            }),
        }
    }
}

/// Returns true if process ids have the same meaning in the container and here: the same boot of the same machine, and the same namespace.
pub(in crate::launch) fn shares_process_ids(told: &str) -> bool {
    let own = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    told == format!("{} {}", boot_id(), own.display())
}

/// Returns the last line, which contains the error.
fn complaint(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let said = text.lines().rev().find(|line| {
        let line = line.trim();
        // Docker's last line refers to its help.
        !line.is_empty() && !line.starts_with("See '") && !line.starts_with("Run '")
    });
    said.unwrap_or("no error output")
        .trim()
        .chars()
        .take(COMPLAINT_CHARS)
        .collect()
}
