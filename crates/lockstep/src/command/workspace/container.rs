//! Converts settings to a container: the arguments of `docker run` and `podman run`.

use std::path::Path;

use domain::container::{Container, Gpus, Mount, Network, Port, Pull, Runtime, SharedMemory};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use super::settings::{CODE, DATA, LOGS, Settings};

/// Ports are published on this address only, so only this machine can connect.
const ADDRESS: &str = "127.0.0.1";
/// Port of Jupyter inside the container.
const JUPYTER_PORT: u16 = 8888;
const SSH_PORT: u16 = 2222;
/// Folder in the container where the image reads the token and the keys.
const KEYS: &str = "/run/workspace";
/// Limits that NVIDIA recommends: NCCL and RDMA lock memory, and OpenMP's threads need a large stack.
const ULIMITS: [(&str, Resource, Option<u64>); 2] = [
    ("memlock", Resource::Memlock, None),
    ("stack", Resource::Stack, Some(64 << 20)),
];

/// Properties of this process that decide how Podman runs a container. Podman has no daemon with privileges of its own.
#[derive(Debug, Clone, Copy)]
pub(super) struct PodmanPrivileges {
    /// Podman is started by a user, not by root.
    pub(super) rootless: bool,
    /// The process may raise limits above its own.
    pub(super) raises_limits: bool,
}

impl PodmanPrivileges {
    /// Returns the privileges of this process.
    pub(super) fn own() -> Self {
        let capable =
            capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_RESOURCE));
        Self {
            rootless: !rustix::process::geteuid().is_root(),
            raises_limits: capable,
        }
    }
}

/// Returns the name of a workspace's container, for users. The program finds the container by its labels.
pub(super) fn container_name(workspace: &str) -> String {
    format!("lockstep-workspace-{workspace}")
}

/// Returns the command that starts the container.
pub(super) fn run_line(
    settings: &Settings,
    keys: &Path,
    runtime: Runtime,
    privileges: PodmanPrivileges,
) -> Vec<String> {
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
        ulimits: ulimits(runtime, privileges),
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
        options: options(settings, runtime, privileges),
        ..Container::default()
    };
    container.run(runtime)
}

/// Docker's daemon has its own limits. With Podman, a limit above the process's own would prevent the start.
fn ulimits(runtime: Runtime, privileges: PodmanPrivileges) -> Vec<String> {
    let bounded = runtime == Runtime::Podman && !privileges.raises_limits;
    let of = |(name, resource, wanted): (&str, Resource, Option<u64>)| {
        let own = bounded.then(|| getrlimit(resource).maximum).flatten();
        let value = wanted.into_iter().chain(own).min();
        value.map_or_else(|| format!("{name}=-1"), |value| format!("{name}={value}"))
    };
    ULIMITS.map(of).to_vec()
}

fn options(settings: &Settings, runtime: Runtime, privileges: PodmanPrivileges) -> Vec<String> {
    let host = settings.name.replace(['.', '_'], "-");
    let mut options = vec![
        format!("--hostname={host}"),
        "--security-opt=no-new-privileges".to_owned(),
    ];
    if runtime == Runtime::Podman {
        // SELinux would deny a confined container access to the user's folders. With GPUs, the option is there already.
        if settings.gpus == Gpus::None {
            options.push("--security-opt=label=disable".to_owned());
        }
        // Without this, the user would be root inside, and the workspace's user would be a different user outside.
        if privileges.rootless {
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
        let privileges = PodmanPrivileges {
            rootless,
            raises_limits: true,
        };
        run_line(&settings, Path::new("/state/ann"), runtime, privileges).join(" ")
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
        let privileges = PodmanPrivileges {
            rootless: true,
            raises_limits: false,
        };
        let own = getrlimit(Resource::Stack).maximum.unwrap_or(u64::MAX);
        let limits = ulimits(Runtime::Podman, privileges);
        assert_eq!(limits[1], format!("stack={}", own.min(64 << 20)));
        assert_eq!(
            ulimits(Runtime::Docker, privileges),
            ["memlock=-1", "stack=67108864"],
            "Docker's daemon is not bound by the limits of who asks it"
        );
    }
}
