//! The container in which a run's ranks run: its settings in the spec, and the command line of torchrun inside a container of Docker or
//! Podman.
//!
//! ```text
//! container = "pytorch/pytorch:2.7.0-cuda12.6-cudnn9-runtime"
//! container = { image = "team/train:24", mounts = ["/datasets:/mnt/datasets:ro"], shm_size = "16g" }
//! ```
//! The container always shares the machine's network and process ids: ranks of several nodes connect to the machines' addresses, and the
//! shim watches and ends ranks by the ids that it sees. What Lockstep adds has the same path inside and outside.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::container::{Container, Gpus, Mount, Network, Pull, Runtime, SharedMemory, check};
use crate::run::field_error::FieldError;

/// Maximum number each of mounts, options, limits and GPUs of one run.
const LIST_MAX: usize = 64;
/// Default limits, as NVIDIA recommends for PyTorch: pinned memory without a limit, stacks of 64 MiB.
const ULIMITS: [&str; 2] = ["memlock=-1", "stack=67108864"];
/// Variables that the runtime's own command, its libraries or its loader would use. They are passed in a file.
const CLIENT_VARIABLES: [&str; 9] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TMPDIR",
    "GODEBUG",
    "GOMAXPROCS",
    "NOTIFY_SOCKET",
];
/// Prefixes of further such variables.
const CLIENT_VARIABLE_PREFIXES: [&str; 15] = [
    "LD_",
    "DOCKER_",
    "CONTAINER",
    "PODMAN_",
    "BUILDAH_",
    "STORAGE_",
    "REGISTRY_",
    "REGISTRIES_",
    "XDG_",
    "SSL_CERT_",
    "SSH_",
    "DBUS_",
    "LISTEN_",
    "_OCI",
    "_CONTAINERS",
];

/// The container for a run's ranks: an image, or a table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ContainerOptions {
    /// Reference of the image.
    pub image: String,
    /// The runtime that starts the container.
    #[serde(skip_serializing_if = "RuntimeChoice::is_auto")]
    pub runtime: RuntimeChoice,
    /// Mounts: `HOST:CONTAINER`, `HOST:CONTAINER:ro`, or `PATH` for the same path on both sides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<String>,
    /// GPUs by index or UUID. Defaults to all GPUs of the node, or none with `backend = "gloo"`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
    /// `user` or `user:group`. Defaults to the agent's user, or to the image's user if the agent runs as root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Size of the container's own shared memory, for example `16g`. By default it shares the machine's (`--ipc=host`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shm_size: Option<String>,
    /// Limits, for example `nofile=65536:65536`. Defaults to `memlock=-1` and `stack=67108864`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ulimits: Option<Vec<String>>,
    /// Further options of `docker run` or `podman run`, each as one word, for example `--cap-add=SYS_PTRACE`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

/// The runtime that starts a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RuntimeChoice {
    /// Docker if it responds, otherwise Podman.
    #[default]
    Auto,
    /// Docker.
    Docker,
    /// Podman.
    Podman,
}

/// What a node adds to the settings of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The runtime that was found.
    pub runtime: Runtime,
    /// Name of the container on the machine.
    pub name: String,
    /// File to which the container's first process writes its process id.
    pub pid_file: String,
    /// File for the variables that the client would use itself.
    pub env_file: String,
    /// Folders and files that the ranks need, in addition to the requested ones.
    pub mounts: Vec<Mount>,
    /// True if NVIDIA GPUs are visible.
    pub has_gpus: bool,
    /// The user that the ranks run as if the settings name none.
    pub user: Option<String>,
    /// Variables for a user that the image does not know. Variables of the run take precedence.
    pub env: BTreeMap<String, String>,
}

/// How the shim finds and ends the container that its child process stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerHandle {
    /// Runtime of the container.
    pub runtime: Runtime,
    /// Name of the container.
    pub name: String,
    /// File to which the container's first process writes its process id.
    pub pid_file: String,
    /// File for the variables that the client would use itself; it exists only during the start.
    pub env_file: String,
}

// === impl RuntimeChoice ===

impl RuntimeChoice {
    /// Returns the runtimes to try, in order.
    #[must_use]
    pub fn candidates(self) -> &'static [Runtime] {
        match self {
            Self::Auto => &[Runtime::Docker, Runtime::Podman],
            Self::Docker => &[Runtime::Docker],
            Self::Podman => &[Runtime::Podman],
        }
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

// === impl ContainerOptions ===

type Check = fn(&str) -> Result<(), String>;

impl ContainerOptions {
    /// Returns all errors, field by field.
    #[must_use]
    pub fn problems(&self) -> Vec<FieldError> {
        let mut problems = Vec::new();
        let mut add = |field: &str, result: Result<(), String>| {
            let error = |message| FieldError::new(format!("container.{field}"), message);
            problems.extend(result.err().map(error));
        };
        add("image", check::image(&self.image));
        let none = Vec::new();
        let lists: [(&str, &Vec<String>, Check); 4] = [
            ("mounts", &self.mounts, |text| check::mount(text).map(drop)),
            ("gpus", &self.gpus, check::gpu),
            ("ulimits", self.ulimits.as_ref().unwrap_or(&none), check::ulimit),
            ("options", &self.options, check::option),
        ];
        for (field, list, check) in lists {
            if list.len() > LIST_MAX {
                add(field, Err(format!("at most {LIST_MAX}")));
            }
            list.iter().for_each(|text| add(field, check(text)));
        }
        add("user", self.user.as_deref().map_or(Ok(()), check::user));
        add(
            "shm_size",
            self.shm_size.as_deref().map_or(Ok(()), check::memory_size),
        );
        problems
    }

    /// Returns the container that runs a command with `/bin/sh`. `names` are the names of its variables; those that the client would use
    /// itself are expected in `env_file`.
    #[must_use]
    pub fn container(
        &self,
        place: &Place,
        command: Vec<String>,
        names: impl IntoIterator<Item = String>,
        env_file: &str,
    ) -> Container {
        let (by_file, by_name) = names
            .into_iter()
            .partition::<BTreeSet<_>, _>(|name| is_client_variable(name));
        // A rootless Podman may request no more than its user has, and its containers get that anyway.
        let ulimits = match (place.runtime, &place.user) {
            (Runtime::Podman, Some(_)) => Vec::new(),
            _ => ULIMITS.map(str::to_owned).to_vec(),
        };
        Container {
            image: self.image.clone(),
            command,
            // No start-up program of the image runs: the first process is ours.
            entrypoint: Some("/bin/sh".into()),
            name: Some(place.name.clone()),
            labels: [(crate::container::LABEL.to_owned(), "run".to_owned())].into(),
            // Preflight has pulled the image; a start must not wait for a registry.
            pull: Pull::Never,
            gpus: match (place.has_gpus, &self.gpus[..]) {
                (false, []) => Gpus::None,
                (true, []) => Gpus::All,
                (_, some) => Gpus::Devices(some.to_vec()),
            },
            shared_memory: self
                .shm_size
                .clone()
                .map_or(SharedMemory::Host, SharedMemory::Size),
            pid_host: true,
            network: Network::Host,
            ulimits: self.ulimits.clone().unwrap_or(ulimits),
            mounts: self.all_mounts(place),
            user: self.user.clone().or_else(|| place.user.clone()),
            env: by_name,
            env_file: (!by_file.is_empty()).then(|| env_file.to_owned()),
            // The output goes to the ranks' logs; the runtimes' own copies grow without bound.
            log_driver: Some("none".into()),
            options: self.options.clone(),
            ..Container::default()
        }
    }

    /// Returns the requested mounts, parsed.
    #[must_use]
    pub fn requested_mounts(&self) -> Vec<Mount> {
        let read = self.mounts.iter().map(|text| check::mount(text));
        read.filter_map(Result::ok).collect()
    }

    /// Returns all mounts. If a requested mount and a node's mount have the same target, the requested one wins.
    fn all_mounts(&self, place: &Place) -> Vec<Mount> {
        let requested = self.requested_mounts();
        let targets: BTreeSet<&str> = requested.iter().map(|mount| mount.target.as_str()).collect();
        let ours = place
            .mounts
            .iter()
            .filter(|mount| !targets.contains(mount.target.as_str()));
        let mut mounts: Vec<Mount> = ours.cloned().collect();
        mounts.extend(requested.iter().cloned());
        mounts
    }
}

/// Returns true if the variable would change what the runtime's command does.
#[must_use]
pub fn is_client_variable(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    CLIENT_VARIABLES.contains(&name)
        || upper.ends_with("_PROXY")
        || CLIENT_VARIABLE_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

impl<'de> Deserialize<'de> for ContainerOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ImageOrTable)
    }
}

struct ImageOrTable;

impl<'de> Visitor<'de> for ImageOrTable {
    type Value = ContainerOptions;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an image, or a table with one")
    }

    fn visit_str<E>(self, image: &str) -> Result<ContainerOptions, E> {
        Ok(ContainerOptions {
            image: image.to_owned(),
            ..ContainerOptions::default()
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ContainerOptions, A::Error> {
        let table = Table::deserialize(MapAccessDeserializer::new(map))?;
        Ok(ContainerOptions {
            image: table.image,
            runtime: table.runtime,
            mounts: table.mounts,
            gpus: table.gpus,
            user: table.user,
            shm_size: table.shm_size,
            ulimits: table.ulimits,
            options: table.options,
        })
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Table {
    image: String,
    runtime: RuntimeChoice,
    mounts: Vec<String>,
    gpus: Vec<String>,
    user: Option<String>,
    shm_size: Option<String>,
    ulimits: Option<Vec<String>>,
    options: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_names_its_field_and_a_table_is_read_as_it_was_written() {
        let options = |json: &str| serde_json::from_str::<ContainerOptions>(json);
        for (json, field) in [
            (r#"{"image": ""}"#, "container.image"),
            (r#"{"image": "a", "mounts": ["x/y"]}"#, "container.mounts"),
            (r#"{"image": "a", "gpus": ["all"]}"#, "container.gpus"),
            (r#"{"image": "a", "user": "-x"}"#, "container.user"),
            (r#"{"image": "a", "shm_size": "much"}"#, "container.shm_size"),
            (r#"{"image": "a", "ulimits": ["memlock"]}"#, "container.ulimits"),
            (r#"{"image": "a", "options": ["--name=x"]}"#, "container.options"),
        ] {
            let problems = options(json).expect(json).problems();
            let fields: Vec<_> = problems.iter().map(|problem| problem.field.as_str()).collect();
            assert_eq!(fields, [field], "{json}");
        }
        let error = options(r#"{"image": "a", "mount": []}"#).expect_err("no such field");
        assert!(error.to_string().contains("unknown field `mount`"), "{error}");
        let error = options("7").expect_err("a number").to_string();
        assert!(error.contains("an image, or a table with one"), "{error}");
        let table = r#"{"image":"a","gpus":["0"],"ulimits":[]}"#;
        assert_eq!(
            serde_json::to_string(&options(table).expect("it")).expect("JSON"),
            table
        );
    }

    #[test]
    fn what_the_client_would_take_for_its_own_goes_by_file() {
        for name in [
            "PATH",
            "LD_PRELOAD",
            "DOCKER_HOST",
            "https_proxy",
            "NO_PROXY",
            "XDG_CACHE_HOME",
            "CONTAINERS_CONF",
        ] {
            assert!(is_client_variable(name), "{name}");
        }
        for name in [
            "NCCL_DEBUG",
            "WANDB_API_KEY",
            "PYTHONPATH",
            "OMP_NUM_THREADS",
            "LOCKSTEP_RUN",
        ] {
            assert!(!is_client_variable(name), "{name}");
        }
    }
}
