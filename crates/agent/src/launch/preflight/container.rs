//! Whether a run's container could start here: a runtime that answers, the image, and what Python says inside it.

use std::io;
use std::process::Output;
use std::time::{Duration, Instant};

use domain::container::{Container, Runtime};
use domain::run::container::{ContainerWish, Place};
use domain::run::spec::Spec;
use serde::Deserialize;
use shim::{Folder, boot_id, files};
use tokio::process::Command;

use super::asked::{Asked, Surroundings};
use crate::launch::container::{self, Needs, Noted, RemovedOnDrop};

/// A daemon that works answers at once.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);
/// For a pull, as far as it leaves the check its time.
const PULLED_WITHIN: Duration = Duration::from_secs(180);
/// PyTorch wants to be imported afterwards, maybe from a cold file system.
const CHECKED_WITHIN: Duration = Duration::from_secs(75);
/// How much of a runtime's complaint is passed on.
const COMPLAINT_CHARS: usize = 600;
/// `docker run` itself failed, not what it ran; Podman says the same.
const RUNTIME_FAILED: i32 = 125;
/// The program is not there, or none.
const NO_PROGRAM: [i32; 2] = [126, 127];
/// Its user may not do what the ranks will have to.
const CANNOT_WRITE: i32 = 77;
/// The attempt's folder takes the ranks' logs. A virtual environment is as good as its interpreter.
const ENTER: &str =
    r#"true >"$1" || exit 77; rm -f "$1"; p="$2"; shift 2; [ -d "$p" ] && p="$p/bin/python"; exec "$p" "$@""#;

/// Why there can be no container. Each says how to get what is missing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContainerError {
    /// Nobody to start it.
    #[error(
        "no container runtime answers on this node ({0}); install Docker or Podman, start Docker's daemon, and let the agent's \
         user use it (group docker)"
    )]
    NoRuntime(String),
    /// No image.
    #[error(
        "the image {image} is not on this node and could not be fetched: {complaint}. Try `{runtime} pull {image}` there"
    )]
    NoImage {
        /// Which.
        image: String,
        /// By what.
        runtime: Runtime,
        /// What it said.
        complaint: String,
    },
    /// It does not start.
    #[error(
        "a container of {image} does not start: {complaint}. For GPUs, a node needs the NVIDIA Container Toolkit, and Podman \
         `nvidia-ctk cdi generate` besides; `backend = \"gloo\"` asks for none"
    )]
    Start {
        /// Of which.
        image: String,
        /// What the runtime said.
        complaint: String,
    },
    /// No interpreter.
    #[error(
        "there is no Python {python} in the image {image}; name the interpreter or virtual environment in it with `python`"
    )]
    NoPython {
        /// Which was looked for.
        python: String,
        /// Where.
        image: String,
    },
    /// No PyTorch.
    #[error(
        "PyTorch cannot be imported by {python} in the image {image}: {complaint}. Choose an image that has it"
    )]
    NoTorch {
        /// By which interpreter.
        python: String,
        /// Where.
        image: String,
        /// The last of what it said.
        complaint: String,
    },
    /// The ids of processes mean something else inside.
    #[error(
        "processes of containers are not seen under their ids here: the runtime is another machine's, or this agent is in a \
         container that does not share the machine's process ids (--pid=host)"
    )]
    Hidden,
    /// A user whose processes are not ours to watch.
    #[error(
        "container.user is {0:?}, and this agent, which is not root, could neither watch nor end that user's processes; leave \
         it out to run as the agent's user"
    )]
    User(String),
    /// A path.
    #[error("{0}; it cannot be mounted into a container")]
    Mount(String),
    /// Its user is a stranger to the folder.
    #[error(
        "the user of a container of {image} cannot write into the attempt's folder: {complaint}; name another in container.user \
         (root, or the agent's own), or run the agent as that user"
    )]
    CannotWrite {
        /// The image.
        image: String,
        /// What its shell said.
        complaint: String,
    },
    /// Something else of the system.
    #[error("the container could not be prepared")]
    Io(#[from] io::Error),
}

/// A container that can be started here.
#[derive(Debug)]
pub(in crate::launch) struct Found {
    place: Place,
    wish: ContainerWish,
    /// Its image, by a digest.
    pub(in crate::launch) image: String,
}

/// Finds the runtime and the image, which is fetched when it is missing, and notes the runtime for the start.
///
/// # Errors
/// When there is none.
pub(in crate::launch) async fn find(
    spec: &Spec,
    wish: &ContainerWish,
    asked: &Asked,
    around: &Surroundings,
    until: Instant,
) -> Result<Found, ContainerError> {
    let runtime = runtime(wish).await?;
    check_user(wish, runtime)?;
    let image = image(runtime, &wish.image, until).await?;
    let folder = Folder::at(&asked.folder);
    let needs = Needs {
        resume_from: asked.resume_from.as_deref(),
        // What is made at the start only.
        ..Needs::default()
    };
    let noted = Noted {
        runtime,
        has_gpus: Some(container::gets_gpus(spec, around)),
    };
    let place = container::place(spec, noted, &folder, around, needs).map_err(ContainerError::Mount)?;
    folder.write_json(files::CONTAINER, &noted)?;
    Ok(Found {
        place,
        wish: wish.clone(),
        image,
    })
}

/// The first that answers.
async fn runtime(wish: &ContainerWish) -> Result<Runtime, ContainerError> {
    let mut complaints = Vec::new();
    for runtime in wish.runtime.candidates() {
        match container::ask(&runtime.answers(), ANSWERS_WITHIN).await {
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

fn check_user(wish: &ContainerWish, runtime: Runtime) -> Result<(), ContainerError> {
    let own = rustix::process::geteuid();
    let Some(user) = wish.user.as_ref().filter(|_| !own.is_root()) else {
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

/// What a runtime tells of an image.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Described {
    id: String,
    repo_digests: Option<Vec<String>>,
}

/// The image's digest where it came from a registry, else its name and id.
async fn image(runtime: Runtime, image: &str, until: Instant) -> Result<String, ContainerError> {
    if let Some(described) = describe(runtime, image).await? {
        return Ok(described);
    }
    tracing::info!(image, %runtime, "a run's image is fetched");
    let left = until.saturating_duration_since(Instant::now() + CHECKED_WITHIN);
    let fetched = container::ask(&runtime.pull(image), left.min(PULLED_WITHIN)).await;
    let complaint = match fetched {
        Ok(output) if output.status.success() => match describe(runtime, image).await? {
            Some(described) => return Ok(described),
            None => "it was fetched, and is not there".to_owned(),
        },
        Ok(output) => complaint(&output.stderr),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            "that takes longer than a preparation may; fetch it before the run".to_owned()
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
    /// Has Python answer a question inside. `output` is what it printed.
    ///
    /// # Errors
    /// When the container does not start, or has no such Python.
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
            // Not where a stray file would be taken for a module.
            workdir: Some("/".into()),
            ..self.wish.container(&self.place, command, names, &env_file)
        };
        // Left by an agent that was killed while it asked.
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
                image: self.wish.image.clone(),
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

    /// Python ended well and said nothing that can be read.
    pub(in crate::launch) fn no_answer(&self, python: &str) -> ContainerError {
        ContainerError::NoTorch {
            python: python.to_owned(),
            image: self.wish.image.clone(),
            complaint: "its answer cannot be read".into(),
        }
    }

    fn judge(&self, python: &str, output: Output) -> Result<Output, ContainerError> {
        let (image, python) = (self.wish.image.clone(), python.to_owned());
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

/// Whether ids of processes mean the same in the container and here: the same start of the same machine, and one namespace.
pub(in crate::launch) fn shares_process_ids(told: &str) -> bool {
    let own = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    told == format!("{} {}", boot_id(), own.display())
}

/// The last line says what is wrong.
fn complaint(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let said = text.lines().rev().find(|line| {
        let line = line.trim();
        // Docker ends with a pointer to its help.
        !line.is_empty() && !line.starts_with("See '") && !line.starts_with("Run '")
    });
    said.unwrap_or("it said nothing")
        .trim()
        .chars()
        .take(COMPLAINT_CHARS)
        .collect()
}
