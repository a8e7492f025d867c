//! Settings as a container: what `docker run` and `podman run` are given.

use std::path::Path;

use domain::container::{Container, Gpus, Mount, Network, Port, Pull, Runtime, SharedMemory};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use super::settings::{CODE, DATA, LOGS, Settings};

/// Nobody but this machine is let in.
const ADDRESS: &str = "127.0.0.1";
/// Where the image's servers listen.
const JUPYTER_PORT: u16 = 8888;
const SSH_PORT: u16 = 2222;
/// Where the image looks for token and keys.
const KEYS: &str = "/run/workspace";
/// What NVIDIA asks for: NCCL and RDMA lock memory, OpenMP's threads need a stack.
const ULIMITS: [(&str, Resource, Option<u64>); 2] = [
    ("memlock", Resource::Memlock, None),
    ("stack", Resource::Stack, Some(64 << 20)),
];

/// What of this machine decides about a container under Podman, which has no daemon with rights of its own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rights {
    /// Podman is started by a user, not by root.
    pub(super) rootless: bool,
    /// Limits may be raised above the own.
    pub(super) raises_limits: bool,
}

impl Rights {
    /// Of this process.
    pub(super) fn own() -> Self {
        let capable =
            capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_RESOURCE));
        Self {
            rootless: !rustix::process::geteuid().is_root(),
            raises_limits: capable,
        }
    }
}

/// The name of a workspace's container, for people; it is found by its labels.
pub(super) fn container_name(workspace: &str) -> String {
    format!("lockstep-workspace-{workspace}")
}

/// The command that starts it.
pub(super) fn run_line(settings: &Settings, keys: &Path, runtime: Runtime, rights: Rights) -> Vec<String> {
    let port = |host, container| Port {
        address: ADDRESS.to_owned(),
        host,
        container,
    };
    let container = Container {
        image: settings.image.clone(),
        name: Some(container_name(&settings.name)),
        labels: settings.labels(),
        detach: true,
        keep: true,
        pull: Pull::Never,
        gpus: settings.gpus.clone(),
        shared_memory: SharedMemory::Host,
        network: Network::Default,
        ports: vec![
            port(settings.jupyter_port, JUPYTER_PORT),
            port(settings.ssh_port, SSH_PORT),
        ],
        ulimits: ulimits(runtime, rights),
        mounts: vec![
            settings.code.at(CODE),
            settings.data.at(DATA),
            settings.logs.at(LOGS),
            Mount {
                source: keys.to_string_lossy().into_owned(),
                target: KEYS.to_owned(),
                read_only: false,
            },
        ],
        options: options(settings, runtime, rights),
        ..Container::default()
    };
    container.run(runtime)
}

/// Docker's daemon has limits of its own; a limit above Podman's would keep the container from starting.
fn ulimits(runtime: Runtime, rights: Rights) -> Vec<String> {
    let bounded = runtime == Runtime::Podman && !rights.raises_limits;
    let of = |(name, resource, wanted): (&str, Resource, Option<u64>)| {
        let own = bounded.then(|| getrlimit(resource).maximum).flatten();
        let value = wanted.into_iter().chain(own).min();
        value.map_or_else(|| format!("{name}=-1"), |value| format!("{name}={value}"))
    };
    ULIMITS.map(of).to_vec()
}

fn options(settings: &Settings, runtime: Runtime, rights: Rights) -> Vec<String> {
    let host = settings.name.replace(['.', '_'], "-");
    let mut options = vec![
        format!("--hostname={host}"),
        "--security-opt=no-new-privileges".to_owned(),
    ];
    if runtime == Runtime::Podman {
        // SELinux would keep a confined container from the person's folders. With GPUs it is said already.
        if settings.gpus == Gpus::None {
            options.push("--security-opt=label=disable".to_owned());
        }
        // Without it, the person would be root inside, and the workspace's user somebody else outside.
        if rights.rootless {
            options.push("--userns=keep-id".to_owned());
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::workspace::settings::{example, gpus};

    fn line(typed: &str, runtime: Runtime, rootless: bool) -> String {
        let settings = Settings {
            gpus: gpus(typed).expect("GPUs"),
            ..example()
        };
        let rights = Rights {
            rootless,
            raises_limits: true,
        };
        run_line(&settings, Path::new("/state/ann"), runtime, rights).join(" ")
    }

    fn expected(runtime: Runtime, gpus: &str, devices: &str, further: &str) -> String {
        format!(
            "{runtime} run --detach --pull=never --name lockstep-workspace-ann --label lockstep=workspace \
             --label lockstep.workspace=ann --label lockstep.workspace.code=/home/ann/llama \
             --label lockstep.workspace.data=/datasets:ro --label lockstep.workspace.gpus={gpus} \
             --label lockstep.workspace.image=lockstep-workspace:uid1000 --label lockstep.workspace.jupyter_port=8888 \
             --label lockstep.workspace.logs=lockstep-workspace-ann-logs --label lockstep.workspace.ssh_port=2222 \
             --label lockstep.workspace.user=1000:100 {devices}--ipc=host -p 127.0.0.1:8888:8888 -p 127.0.0.1:2222:2222 \
             --ulimit memlock=-1 --ulimit stack=67108864 -v /home/ann/llama:/workspace/code -v /datasets:/workspace/data:ro \
             -v lockstep-workspace-ann-logs:/workspace/logs -v /state/ann:/run/workspace --hostname=ann \
             --security-opt=no-new-privileges {further}lockstep-workspace:uid1000"
        )
    }

    #[test]
    fn a_workspace_under_docker() {
        for (gpus, devices) in [
            ("all", "--gpus all "),
            ("none", ""),
            ("0,1", "--gpus \"device=0,1\" "),
        ] {
            let expected = expected(Runtime::Docker, gpus, devices, "");
            assert_eq!(line(gpus, Runtime::Docker, true), expected);
        }
    }

    #[test]
    fn a_workspace_under_podman() {
        let unconfined = "--security-opt=label=disable ";
        for (gpus, devices, further) in [
            (
                "all",
                "--device nvidia.com/gpu=all --security-opt=label=disable ",
                "",
            ),
            ("none", "", unconfined),
            (
                "0,1",
                "--device nvidia.com/gpu=0 --device nvidia.com/gpu=1 --security-opt=label=disable ",
                "",
            ),
        ] {
            let as_root = expected(Runtime::Podman, gpus, devices, further);
            assert_eq!(line(gpus, Runtime::Podman, false), as_root);
            let further = format!("{further}--userns=keep-id ");
            let as_user = expected(Runtime::Podman, gpus, devices, &further);
            assert_eq!(line(gpus, Runtime::Podman, true), as_user);
        }
    }

    #[test]
    fn podman_without_the_right_to_raise_limits_keeps_its_own() {
        let rights = Rights {
            rootless: true,
            raises_limits: false,
        };
        let own = getrlimit(Resource::Stack).maximum.unwrap_or(u64::MAX);
        let limits = ulimits(Runtime::Podman, rights);
        assert_eq!(limits[1], format!("stack={}", own.min(64 << 20)));
        assert_eq!(
            ulimits(Runtime::Docker, rights),
            ["memlock=-1", "stack=67108864"],
            "Docker's daemon is not bound by the limits of who asks it"
        );
    }
}
