//! A run's ranks in a container: what may be asked for, and torchrun's command line inside one of Docker's or Podman's.
//!
//! ```text
//! container = "pytorch/pytorch:2.7.0-cuda12.6-cudnn9-runtime"
//! container = { image = "team/train:24", mounts = ["/datasets:/mnt/datasets:ro"], shm_size = "16g" }
//! ```
//! The machine's network and process ids are always shared: ranks of several nodes meet on the machines' addresses, and the
//! shim watches and ends ranks by the ids that it sees. What Lockstep brings lies at the same path on both sides.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::container::{Container, Gpus, Mount, Network, Pull, Runtime, SharedMemory, check};
use crate::run::field_error::FieldError;

/// Mounts, options, limits and GPUs of one run, each: more than anybody types.
const LIST_MAX: usize = 64;
/// What NVIDIA advises for PyTorch: pinned memory without a limit, stacks of 64 MiB.
const ULIMITS: [&str; 2] = ["memlock=-1", "stack=67108864"];
/// Variables that the runtime's own command, its libraries or its loader would take for theirs; they go in by a file.
const OF_THE_CLIENT: [&str; 9] = [
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
/// The same, by how their names begin.
const OF_THE_CLIENT_PREFIXES: [&str; 15] = [
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

/// A container for a run's ranks: an image, or a table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ContainerWish {
    /// The image's reference.
    pub image: String,
    /// Which runtime starts it.
    #[serde(skip_serializing_if = "RuntimeChoice::is_auto")]
    pub runtime: RuntimeChoice,
    /// `HOST:CONTAINER`, `HOST:CONTAINER:ro`, or `PATH` for both.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<String>,
    /// GPUs by index or UUID; all of a node's when empty. None with `backend = "gloo"`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
    /// `user` or `user:group`; the image's own, or the agent's where that is not root, when empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Shared memory of its own, like `16g`; the machine's (`--ipc=host`) when empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shm_size: Option<String>,
    /// Limits, like `nofile=65536:65536`; `memlock=-1` and `stack=67108864` when nobody says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ulimits: Option<Vec<String>>,
    /// Further options of `docker run` or `podman run`, each one word, like `--cap-add=SYS_PTRACE`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

/// Which runtime starts a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RuntimeChoice {
    /// Docker where it answers, else Podman.
    #[default]
    Auto,
    /// Docker.
    Docker,
    /// Podman.
    Podman,
}

/// What a node adds to the wish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The runtime that was found.
    pub runtime: Runtime,
    /// The container's name on the machine.
    pub name: String,
    /// Where its first process writes its id.
    pub pid_file: String,
    /// A file for the variables that the client would take for its own.
    pub env_file: String,
    /// Folders and files that the ranks need, besides those of the wish.
    pub mounts: Vec<Mount>,
    /// Whether there are NVIDIA GPUs to be seen.
    pub has_gpus: bool,
    /// Whom the ranks run as when the wish does not say.
    pub user: Option<String>,
    /// Variables for a user whom the image does not know; a run's own win.
    pub env: BTreeMap<String, String>,
}

/// How the shim finds, and ends, the container that its child stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contained {
    /// Its runtime.
    pub runtime: Runtime,
    /// Its name.
    pub name: String,
    /// Where its first process writes its id.
    pub pid_file: String,
    /// A file for the variables that the client would take for its own; it is written for the start alone.
    pub env_file: String,
}

// === impl RuntimeChoice ===

impl RuntimeChoice {
    /// The runtimes to be tried, in order.
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

// === impl ContainerWish ===

type Check = fn(&str) -> Result<(), String>;

impl ContainerWish {
    /// Everything that is wrong, field by field.
    #[must_use]
    pub fn problems(&self) -> Vec<FieldError> {
        let mut problems = Vec::new();
        let mut add = |field: &str, result: Result<(), String>| {
            problems.extend(result.err().map(|message| FieldError {
                field: format!("container.{field}"),
                message,
            }));
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

    /// The container with a command for `/bin/sh` in it. `names` are its variables; those that the client would take for its own
    /// are expected in `env_file`.
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
            .partition::<BTreeSet<_>, _>(|name| is_of_the_client(name));
        // A Podman without rights may ask for no more than its user has, which its containers get anyway.
        let ulimits = match (place.runtime, &place.user) {
            (Runtime::Podman, Some(_)) => Vec::new(),
            _ => ULIMITS.map(str::to_owned).to_vec(),
        };
        Container {
            image: self.image.clone(),
            command,
            // Nobody else's start-up comes between: the first process is ours.
            entrypoint: Some("/bin/sh".into()),
            name: Some(place.name.clone()),
            labels: [(crate::container::LABEL.to_owned(), "run".to_owned())].into(),
            // Preflight has fetched it; a start must not wait for a registry.
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
            // What matters goes to the ranks' logs; the runtimes' own copies grow without a bound.
            log_driver: Some("none".into()),
            options: self.options.clone(),
            ..Container::default()
        }
    }

    /// Its mounts, read.
    #[must_use]
    pub fn wished_mounts(&self) -> Vec<Mount> {
        let read = self.mounts.iter().map(|text| check::mount(text));
        read.filter_map(Result::ok).collect()
    }

    /// Those of the wish win where both name a place.
    fn all_mounts(&self, place: &Place) -> Vec<Mount> {
        let wished = self.wished_mounts();
        let targets: BTreeSet<&str> = wished.iter().map(|mount| mount.target.as_str()).collect();
        let ours = place
            .mounts
            .iter()
            .filter(|mount| !targets.contains(mount.target.as_str()));
        let mut mounts: Vec<Mount> = ours.cloned().collect();
        mounts.extend(wished.iter().cloned());
        mounts
    }
}

/// Whether a variable would change what the runtime's command does.
#[must_use]
pub fn is_of_the_client(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    OF_THE_CLIENT.contains(&name)
        || upper.ends_with("_PROXY")
        || OF_THE_CLIENT_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

impl<'de> Deserialize<'de> for ContainerWish {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ImageOrTable)
    }
}

struct ImageOrTable;

impl<'de> Visitor<'de> for ImageOrTable {
    type Value = ContainerWish;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an image, or a table with one")
    }

    fn visit_str<E>(self, image: &str) -> Result<ContainerWish, E> {
        Ok(ContainerWish {
            image: image.to_owned(),
            ..ContainerWish::default()
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ContainerWish, A::Error> {
        let table = Table::deserialize(MapAccessDeserializer::new(map))?;
        Ok(ContainerWish {
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
    fn each_mistake_is_named_at_its_field_and_a_table_comes_back_as_it_went() {
        let wish = |json: &str| serde_json::from_str::<ContainerWish>(json);
        for (json, field) in [
            (r#"{"image": ""}"#, "container.image"),
            (r#"{"image": "a", "mounts": ["x/y"]}"#, "container.mounts"),
            (r#"{"image": "a", "gpus": ["all"]}"#, "container.gpus"),
            (r#"{"image": "a", "user": "-x"}"#, "container.user"),
            (r#"{"image": "a", "shm_size": "much"}"#, "container.shm_size"),
            (r#"{"image": "a", "ulimits": ["memlock"]}"#, "container.ulimits"),
            (r#"{"image": "a", "options": ["--name=x"]}"#, "container.options"),
        ] {
            let problems = wish(json).expect(json).problems();
            let fields: Vec<_> = problems.iter().map(|problem| problem.field.as_str()).collect();
            assert_eq!(fields, [field], "{json}");
        }
        let error = wish(r#"{"image": "a", "mount": []}"#).expect_err("no such field");
        assert!(error.to_string().contains("unknown field `mount`"), "{error}");
        let error = wish("7").expect_err("a number").to_string();
        assert!(error.contains("an image, or a table with one"), "{error}");
        let table = r#"{"image":"a","gpus":["0"],"ulimits":[]}"#;
        assert_eq!(
            serde_json::to_string(&wish(table).expect("it")).expect("JSON"),
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
            assert!(is_of_the_client(name), "{name}");
        }
        for name in [
            "NCCL_DEBUG",
            "WANDB_API_KEY",
            "PYTHONPATH",
            "OMP_NUM_THREADS",
            "LOCKSTEP_RUN",
        ] {
            assert!(!is_of_the_client(name), "{name}");
        }
    }
}
