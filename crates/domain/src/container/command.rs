//! The settings of a container, and the command lines for them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

/// A container runtime, named after its command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// Docker Engine.
    Docker,
    /// Podman.
    Podman,
}

/// One container to start. Its texts are not checked here; use [`check`](super::check) before.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Container {
    /// Image reference.
    pub image: String,
    /// Program and arguments in the container. If empty, those of the image are used.
    pub command: Vec<String>,
    /// Program that replaces the entry point of the image.
    pub entrypoint: Option<String>,
    /// Name of the container. If absent, the runtime chooses one.
    pub name: Option<String>,
    /// Labels by which the container can be found.
    pub labels: BTreeMap<String, String>,
    /// True to run in the background: the command returns at once.
    pub detach: bool,
    /// True to keep the container and its files after it ends.
    pub keep: bool,
    /// True to add an init process (process 1) that reaps zombies, for programs that do not.
    pub init: bool,
    /// Whether the image may be pulled.
    pub pull: Pull,
    /// GPUs that the container sees.
    pub gpus: Gpus,
    /// Shared memory of its processes.
    pub shared_memory: SharedMemory,
    /// True to use the process ids of the host: the container and the host see each other's processes.
    pub pid_host: bool,
    /// Network of the container.
    pub network: Network,
    /// Published ports.
    pub ports: Vec<Port>,
    /// Limits as `name=soft[:hard]`.
    pub ulimits: Vec<String>,
    /// Folders, files and volumes of the host that are mounted.
    pub mounts: Vec<Mount>,
    /// User, or `user:group`, as names or numbers. If absent, that of the image.
    pub user: Option<String>,
    /// Working directory in the container.
    pub workdir: Option<String>,
    /// Names of environment variables that are passed from the environment of the command.
    pub env: BTreeSet<String>,
    /// File with `NAME=value` lines, for variables that the container command itself would interpret.
    pub env_file: Option<String>,
    /// Log driver of the runtime, or `none`. If absent, the runtime's default.
    pub log_driver: Option<String>,
    /// Additional options, each one word.
    pub options: Vec<String>,
}

/// When to pull an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pull {
    /// If it is missing on the machine.
    #[default]
    Missing,
    /// Never.
    Never,
}

/// GPUs of a container.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Gpus {
    /// No GPUs.
    #[default]
    None,
    /// All GPUs of the machine.
    All,
    /// Only these: indexes, or UUIDs of GPUs or MIG instances.
    Devices(Vec<String>),
}

/// Shared memory of a container. PyTorch's data loaders pass batches through it, and NCCL its buffers. The runtimes' default of 64 MiB is
/// too small for either.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SharedMemory {
    /// Its own shared memory of 64 MiB.
    #[default]
    Default,
    /// The shared memory of the host.
    Host,
    /// Its own shared memory of this size, like `16g`.
    Size(String),
}

/// Network of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Network {
    /// The network of the runtime, reached through published ports.
    #[default]
    Default,
    /// The network of the host.
    Host,
}

/// A published port: a port of the host that leads to a port of the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Address of the host. With `127.0.0.1` the port is reachable only from the host.
    pub address: String,
    /// Port of the host; 0 for any free port.
    pub host: u16,
    /// Port of the container.
    pub container: u16,
}

/// A folder, file or volume that is mounted in a container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mount {
    /// Absolute path on the host, or name of a volume.
    pub source: String,
    /// Absolute path in the container.
    pub target: String,
    /// True if the container cannot write to it.
    pub read_only: bool,
}

// === impl Runtime ===

impl Runtime {
    /// Returns the name of the runtime's program.
    #[must_use]
    pub fn program(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }

    /// Returns the command that succeeds if the runtime can be used, including Docker's daemon.
    #[must_use]
    pub fn check_command(self) -> Vec<String> {
        let version = match self {
            Self::Docker => "{{.Server.Version}}",
            Self::Podman => "{{.Client.Version}}",
        };
        words(self, ["version", "--format", version])
    }

    /// Returns the command that kills and removes a container. It also succeeds if there is no such container.
    #[must_use]
    pub fn remove(self, name: &str) -> Vec<String> {
        words(self, ["rm", "--force", "--volumes", name])
    }

    /// Returns the command that sends a signal to the first process of a container.
    #[must_use]
    pub fn kill(self, name: &str, signal: &str) -> Vec<String> {
        words(self, ["kill", "--signal", signal, name])
    }

    /// Returns the command that stops a container: SIGTERM, and SIGKILL after `grace_s` seconds.
    #[must_use]
    pub fn stop(self, name: &str, grace_s: u32) -> Vec<String> {
        words(self, ["stop", "--time", &grace_s.to_string(), name])
    }

    /// Returns the command that starts an ended container again with the same settings.
    #[must_use]
    pub fn start(self, name: &str) -> Vec<String> {
        words(self, ["start", name])
    }

    /// Returns the command that prints the last lines of a container's output.
    #[must_use]
    pub fn logs(self, name: &str, lines: u32) -> Vec<String> {
        words(self, ["logs", "--tail", &lines.to_string(), name])
    }

    /// Returns the command that prints the description of a container as a JSON array.
    #[must_use]
    pub fn inspect(self, name: &str) -> Vec<String> {
        words(self, ["container", "inspect", name])
    }

    /// Returns the command that prints the names of all containers with a label, running or not, one per line.
    #[must_use]
    pub fn list(self, label: &str) -> Vec<String> {
        let filter = format!("label={label}");
        words(
            self,
            ["ps", "--all", "--filter", &filter, "--format", "{{.Names}}"],
        )
    }

    /// Returns the command that prints the description of an image as a JSON array. It fails if the image is missing.
    #[must_use]
    pub fn inspect_image(self, image: &str) -> Vec<String> {
        words(self, ["image", "inspect", image])
    }

    /// Returns the command that builds an image from the `Dockerfile` in a folder.
    #[must_use]
    pub fn build(self, image: &str, arguments: &[(&str, String)], folder: &str) -> Vec<String> {
        let mut line = Line(words(self, ["build"]));
        for (name, value) in arguments {
            line.option("--build-arg", format!("{name}={value}"));
        }
        line.option("--tag", image);
        line.0.push(folder.to_owned());
        line.0
    }

    /// Returns the command that pulls an image.
    #[must_use]
    pub fn pull(self, image: &str) -> Vec<String> {
        words(self, ["pull", "--quiet", image])
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.program())
    }
}

fn words<const N: usize>(runtime: Runtime, rest: [&str; N]) -> Vec<String> {
    let program = std::iter::once(runtime.program());
    program.chain(rest).map(str::to_owned).collect()
}

// === impl Container ===

impl Container {
    /// Returns the command that starts the container.
    #[must_use]
    pub fn run(&self, runtime: Runtime) -> Vec<String> {
        let mut line = Line(words(runtime, ["run"]));
        self.lifetime(&mut line);
        self.gpus(runtime, &mut line);
        self.isolation(&mut line);
        for mount in &self.mounts {
            line.option("-v", mount.to_string());
        }
        line.optional("--user", self.user.as_ref());
        line.optional("--workdir", self.workdir.as_ref());
        for name in &self.env {
            line.option("-e", name);
        }
        line.optional("--env-file", self.env_file.as_ref());
        line.optional("--entrypoint", self.entrypoint.as_ref());
        line.0.extend(self.options.iter().cloned());
        line.0.push(self.image.clone());
        line.0.extend(self.command.iter().cloned());
        line.0
    }

    fn lifetime(&self, line: &mut Line) {
        line.word_if(!self.keep, "--rm");
        line.word_if(self.detach, "--detach");
        line.word_if(self.init, "--init");
        line.word_if(self.pull == Pull::Never, "--pull=never");
        line.optional("--name", self.name.as_ref());
        for (name, value) in &self.labels {
            line.option("--label", format!("{name}={value}"));
        }
        line.optional("--log-driver", self.log_driver.as_ref());
    }

    fn gpus(&self, runtime: Runtime, line: &mut Line) {
        match (runtime, &self.gpus) {
            (_, Gpus::None) => {}
            (Runtime::Docker, Gpus::All) => line.option("--gpus", "all"),
            // Docker parses the value as CSV. Without the inner quotes, the second device would be parsed as another key.
            (Runtime::Docker, Gpus::Devices(devices)) => {
                line.option("--gpus", format!("\"device={}\"", devices.join(",")));
            }
            (Runtime::Podman, Gpus::All) => line.cdi_devices(["all"]),
            (Runtime::Podman, Gpus::Devices(devices)) => line.cdi_devices(devices),
        }
    }

    fn isolation(&self, line: &mut Line) {
        match &self.shared_memory {
            SharedMemory::Default => {}
            SharedMemory::Host => line.0.push("--ipc=host".into()),
            SharedMemory::Size(size) => line.0.push(format!("--shm-size={size}")),
        }
        line.word_if(self.pid_host, "--pid=host");
        if self.network == Network::Host {
            line.option("--network", "host");
        }
        for port in &self.ports {
            line.option("-p", port.to_string());
        }
        for limit in &self.ulimits {
            line.option("--ulimit", limit);
        }
    }
}

/// Prints `127.0.0.1:8888:8888`, or `127.0.0.1::8888` for any free port.
impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host {
            0 => write!(f, "{}::{}", self.address, self.container),
            host => write!(f, "{}:{host}:{}", self.address, self.container),
        }
    }
}

/// Prints `/data:/mnt/data:ro`.
impl fmt::Display for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = if self.read_only { ":ro" } else { "" };
        write!(f, "{}:{}{mode}", self.source, self.target)
    }
}

struct Line(Vec<String>);

impl Line {
    fn option(&mut self, name: &str, value: impl Into<String>) {
        self.0.extend([name.to_owned(), value.into()]);
    }

    fn optional(&mut self, name: &str, value: Option<&String>) {
        if let Some(value) = value {
            self.option(name, value);
        }
    }

    fn word_if(&mut self, wished: bool, word: &str) {
        if wished {
            self.0.push(word.to_owned());
        }
    }

    /// Adds GPUs through the Container Device Interface, and disables SELinux labels, with which a confined container could not use the
    /// devices.
    fn cdi_devices<T: fmt::Display>(&mut self, devices: impl IntoIterator<Item = T>) {
        for device in devices {
            self.option("--device", format!("nvidia.com/gpu={device}"));
        }
        self.0.push("--security-opt=label=disable".into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(container: &Container, runtime: Runtime) -> String {
        container.run(runtime).join(" ")
    }

    fn texts<const N: usize>(words: [&str; N]) -> Vec<String> {
        words.map(str::to_owned).to_vec()
    }

    fn training(gpus: Gpus) -> Container {
        Container {
            image: "nvcr.io/nvidia/pytorch:25.01-py3".into(),
            command: texts(["python", "-m", "torch.distributed.run", "/code/train.py"]),
            name: Some("lockstep-ddp-1.2.n1".into()),
            labels: [("lockstep".to_owned(), "ddp-1.2".to_owned())].into(),
            pull: Pull::Never,
            gpus,
            shared_memory: SharedMemory::Host,
            pid_host: true,
            network: Network::Host,
            ulimits: texts(["memlock=-1", "stack=67108864"]),
            mounts: vec![
                Mount {
                    source: "/data/runs/ddp-1.2".into(),
                    target: "/data/runs/ddp-1.2".into(),
                    read_only: false,
                },
                Mount {
                    source: "/datasets".into(),
                    target: "/mnt/datasets".into(),
                    read_only: true,
                },
            ],
            user: Some("1000:1000".into()),
            workdir: Some("/code".into()),
            env: ["LOCKSTEP_RUN", "WANDB_API_KEY"].map(str::to_owned).into(),
            env_file: Some("/data/runs/ddp-1.2/container.env".into()),
            log_driver: Some("none".into()),
            options: texts(["--cap-add=SYS_PTRACE"]),
            ..Container::default()
        }
    }

    #[test]
    fn a_training_container_under_docker() {
        let rest = "--ipc=host --pid=host --network host --ulimit memlock=-1 --ulimit stack=67108864 \
                    -v /data/runs/ddp-1.2:/data/runs/ddp-1.2 -v /datasets:/mnt/datasets:ro --user 1000:1000 \
                    --workdir /code -e LOCKSTEP_RUN -e WANDB_API_KEY --env-file /data/runs/ddp-1.2/container.env \
                    --cap-add=SYS_PTRACE nvcr.io/nvidia/pytorch:25.01-py3 python -m torch.distributed.run /code/train.py";
        for (gpus, words) in [
            (Gpus::None, ""),
            (Gpus::All, "--gpus all "),
            (Gpus::Devices(texts(["0", "1"])), "--gpus \"device=0,1\" "),
        ] {
            assert_eq!(
                line(&training(gpus), Runtime::Docker),
                format!(
                    "docker run --rm --pull=never --name lockstep-ddp-1.2.n1 --label lockstep=ddp-1.2 \
                     --log-driver none {words}{rest}"
                )
            );
        }
    }

    #[test]
    fn a_training_container_under_podman() {
        let rest = "--ipc=host --pid=host --network host --ulimit memlock=-1 --ulimit stack=67108864 \
                    -v /data/runs/ddp-1.2:/data/runs/ddp-1.2 -v /datasets:/mnt/datasets:ro --user 1000:1000 \
                    --workdir /code -e LOCKSTEP_RUN -e WANDB_API_KEY --env-file /data/runs/ddp-1.2/container.env \
                    --cap-add=SYS_PTRACE nvcr.io/nvidia/pytorch:25.01-py3 python -m torch.distributed.run /code/train.py";
        for (gpus, words) in [
            (Gpus::None, ""),
            (
                Gpus::All,
                "--device nvidia.com/gpu=all --security-opt=label=disable ",
            ),
            (
                Gpus::Devices(texts(["0", "1"])),
                "--device nvidia.com/gpu=0 --device nvidia.com/gpu=1 --security-opt=label=disable ",
            ),
        ] {
            assert_eq!(
                line(&training(gpus), Runtime::Podman),
                format!(
                    "podman run --rm --pull=never --name lockstep-ddp-1.2.n1 --label lockstep=ddp-1.2 \
                     --log-driver none {words}{rest}"
                )
            );
        }
    }

    #[test]
    fn a_service_in_the_background_with_ports_and_volumes() {
        let service = Container {
            image: "workspace".into(),
            command: texts(["lab"]),
            entrypoint: Some("/usr/bin/jupyter".into()),
            name: Some("lockstep-workspace-ann".into()),
            detach: true,
            keep: true,
            init: true,
            shared_memory: SharedMemory::Size("16g".into()),
            ports: vec![
                Port {
                    address: "127.0.0.1".into(),
                    host: 8888,
                    container: 8888,
                },
                Port {
                    address: "127.0.0.1".into(),
                    host: 0,
                    container: 22,
                },
            ],
            mounts: vec![Mount {
                source: "ann-code".into(),
                target: "/workspace/code".into(),
                read_only: false,
            }],
            ..Container::default()
        };
        for runtime in [Runtime::Docker, Runtime::Podman] {
            assert_eq!(
                line(&service, runtime),
                format!(
                    "{runtime} run --detach --init --name lockstep-workspace-ann --shm-size=16g -p 127.0.0.1:8888:8888 \
                     -p 127.0.0.1::22 -v ann-code:/workspace/code --entrypoint /usr/bin/jupyter workspace lab"
                )
            );
        }
    }

    #[test]
    fn what_is_done_to_containers_and_images() {
        for (words, expected) in [
            (Runtime::Docker.remove("a"), "docker rm --force --volumes a"),
            (Runtime::Podman.kill("a", "TERM"), "podman kill --signal TERM a"),
            (Runtime::Docker.stop("a", 10), "docker stop --time 10 a"),
            (Runtime::Podman.start("a"), "podman start a"),
            (Runtime::Docker.logs("a", 20), "docker logs --tail 20 a"),
            (Runtime::Docker.inspect("a"), "docker container inspect a"),
            (
                Runtime::Podman.list("lockstep=workspace"),
                "podman ps --all --filter label=lockstep=workspace --format {{.Names}}",
            ),
            (Runtime::Docker.inspect_image("x:1"), "docker image inspect x:1"),
            (Runtime::Podman.pull("x:1"), "podman pull --quiet x:1"),
            (
                Runtime::Docker.build(
                    "x:1",
                    &[("BASE", "debian:12".into()), ("UID", "7".into())],
                    "/tmp/x",
                ),
                "docker build --build-arg BASE=debian:12 --build-arg UID=7 --tag x:1 /tmp/x",
            ),
        ] {
            assert_eq!(words.join(" "), expected);
        }
    }
}
