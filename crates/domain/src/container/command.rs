//! What a container is made of, and the command lines that say so.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

/// A container runtime, by the command line it speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// Docker Engine.
    Docker,
    /// Podman.
    Podman,
}

/// One container to be started. Text in it is taken as it is; [`check`](super::check) tells beforehand what cannot be meant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Container {
    /// The image's reference.
    pub image: String,
    /// Program and arguments inside; the image's own when empty.
    pub command: Vec<String>,
    /// What runs instead of the image's entry point.
    pub entrypoint: Option<String>,
    /// Its name on the machine; the runtime makes one up when empty.
    pub name: Option<String>,
    /// What it can be found by.
    pub labels: BTreeMap<String, String>,
    /// Runs in the background, the command ends at once.
    pub detach: bool,
    /// Stays when it has ended, with what it wrote.
    pub keep: bool,
    /// A process 1 that reaps, for programs that do not.
    pub init: bool,
    /// Whether the image may be fetched.
    pub pull: Pull,
    /// Which GPUs it sees.
    pub gpus: Gpus,
    /// Memory that its processes share.
    pub shared_memory: SharedMemory,
    /// Sees and is seen by the machine's processes under the machine's ids.
    pub pid_host: bool,
    /// Its network.
    pub network: Network,
    /// Ports of the machine that lead into it.
    pub ports: Vec<Port>,
    /// Limits as `name=soft[:hard]`.
    pub ulimits: Vec<String>,
    /// Folders, files and volumes of the machine inside it.
    pub mounts: Vec<Mount>,
    /// User, or `user:group`, by name or number; the image's own when empty.
    pub user: Option<String>,
    /// Working directory inside.
    pub workdir: Option<String>,
    /// Names of variables that go in from the environment of the command.
    pub env: BTreeSet<String>,
    /// A file with `NAME=value` lines, for variables that the command itself would take for its own.
    pub env_file: Option<String>,
    /// Where the runtime keeps its output beside what the command shows: `none`, or a driver; its default when empty.
    pub log_driver: Option<String>,
    /// Further options, each one word.
    pub options: Vec<String>,
}

/// When an image is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pull {
    /// When the machine lacks it.
    #[default]
    Missing,
    /// Not now.
    Never,
}

/// GPUs of a container.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Gpus {
    /// None.
    #[default]
    None,
    /// All of the machine.
    All,
    /// These: indices, or UUIDs of GPUs or MIG devices.
    Devices(Vec<String>),
}

/// Shared memory of a container. PyTorch's data loaders pass batches through it, NCCL its buffers: 64 MiB, the runtimes'
/// default, is too little for either.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SharedMemory {
    /// 64 MiB of its own.
    #[default]
    Default,
    /// The machine's.
    Host,
    /// As much of its own, like `16g`.
    Size(String),
}

/// Network of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Network {
    /// The runtime's own, reached through published ports.
    #[default]
    Default,
    /// The machine's.
    Host,
}

/// A port of the machine that leads to one of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// The machine's address; `127.0.0.1` keeps it to the machine.
    pub address: String,
    /// The machine's port; any free one for 0.
    pub host: u16,
    /// The container's.
    pub container: u16,
}

/// A folder, a file or a volume inside a container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mount {
    /// An absolute path of the machine, or a volume's name.
    pub source: String,
    /// An absolute path in the container.
    pub target: String,
    /// Cannot be written to.
    pub read_only: bool,
}

// === impl Runtime ===

impl Runtime {
    /// The program's name.
    #[must_use]
    pub fn program(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }

    /// Ends a container at once and takes it away; no error where there is none by that name.
    #[must_use]
    pub fn remove(self, name: &str) -> Vec<String> {
        words(self, ["rm", "--force", "--volumes", name])
    }

    /// Sends a signal to a container's first process.
    #[must_use]
    pub fn kill(self, name: &str, signal: &str) -> Vec<String> {
        words(self, ["kill", "--signal", signal, name])
    }

    /// Stops a container: SIGTERM, and SIGKILL after `grace_s` seconds.
    #[must_use]
    pub fn stop(self, name: &str, grace_s: u32) -> Vec<String> {
        words(self, ["stop", "--time", &grace_s.to_string(), name])
    }

    /// Starts a container that has ended, as it was.
    #[must_use]
    pub fn start(self, name: &str) -> Vec<String> {
        words(self, ["start", name])
    }

    /// Prints the last lines of what a container said.
    #[must_use]
    pub fn logs(self, name: &str, lines: u32) -> Vec<String> {
        words(self, ["logs", "--tail", &lines.to_string(), name])
    }

    /// Prints a container's description as a JSON array.
    #[must_use]
    pub fn inspect(self, name: &str) -> Vec<String> {
        words(self, ["container", "inspect", name])
    }

    /// Prints the names of containers with a label, running or not, one a line.
    #[must_use]
    pub fn list(self, label: &str) -> Vec<String> {
        let filter = format!("label={label}");
        words(
            self,
            ["ps", "--all", "--filter", &filter, "--format", "{{.Names}}"],
        )
    }

    /// Prints an image's description as a JSON array; fails where the machine lacks it.
    #[must_use]
    pub fn inspect_image(self, image: &str) -> Vec<String> {
        words(self, ["image", "inspect", image])
    }

    /// Makes an image of the `Dockerfile` in a folder.
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

    /// Fetches an image.
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
    /// The command that starts it.
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
            // Docker reads the value as CSV: without quotes of its own, the second device would be another key.
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

/// `127.0.0.1:8888:8888`; `127.0.0.1::8888` for any free port.
impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host {
            0 => write!(f, "{}::{}", self.address, self.container),
            host => write!(f, "{}:{host}:{}", self.address, self.container),
        }
    }
}

/// `/data:/mnt/data:ro`.
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

    /// GPUs by the Container Device Interface. SELinux would keep the devices from a confined container.
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
