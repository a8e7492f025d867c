//! Identifies a process: its name, and the run, rank, Slurm job, container and pod it belongs to.
//!
//! ```text
//! /proc/PID/environ   a few variables of launchers, and nothing else ─▶ run, rank, Slurm job
//! /proc/PID/stat      parent: a process that a rank started belongs to the same run
//! /proc/PID/cgroup    (`cgroup`) Slurm job, container, pod
//! /var/log/pods       (`pods`) namespace and name of the pod
//! ```
//! An environment may contain secrets: only the variables named below are kept.

mod cgroup;
mod pods;

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use self::cgroup::Group;

/// The maximum number of bytes read of an environment. Launchers set the needed variables near its start or end.
const ENVIRONMENT_BYTES_MAX: u64 = 1 << 20;
/// The maximum number of stored identities, more than the GPUs of a node have contexts.
const REMEMBERED_MAX: usize = 4_096;
/// How many ancestors are searched for the run: the parent of a spawned worker is the rank, whose parent is the launcher.
const ANCESTORS_MAX: usize = 4;
/// The maximum length of a value. Longer texts are not names.
const VALUE_BYTES_MAX: usize = 128;

/// The variables with the name of the run, the most reliable first.
const RUN_VARIABLES: [&str; 3] = ["LOCKSTEP_RUN", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"];
/// The variables with the rank, the most reliable first.
const RANK_VARIABLES: [&str; 2] = ["RANK", "SLURM_PROCID"];
/// The variables that identify a job of a launcher without a run name: its ranks share them.
const RENDEZVOUS_VARIABLES: [&str; 2] = ["MASTER_ADDR", "MASTER_PORT"];

/// What users know about a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The name of the process in the kernel, at most 15 bytes. Empty if it cannot be read.
    pub(crate) name: String,
    /// The run of the process.
    pub(crate) run: Option<String>,
    /// The rank of the process in the run.
    pub(crate) rank: Option<String>,
    /// The Slurm job of the process.
    pub(crate) slurm_job: Option<String>,
    /// The first digits of the id of its container.
    pub(crate) container: Option<String>,
    /// The uid of its pod.
    pub(crate) pod: Option<String>,
    /// The name and the namespace of the pod.
    pub(crate) pod_name: Option<String>,
    pub(crate) namespace: Option<String>,
}

/// Identities by process id. Process ids are reused, so each identity is stored with the start time of its process.
#[derive(Debug)]
pub(crate) struct Identities {
    root: PathBuf,
    known: HashMap<u32, (u64, Identity)>,
}

/// The parent of a process, and when it started (fields of `stat`).
struct Stat {
    parent: u32,
    started: u64,
}

/// The variables of a launcher in an environment.
#[derive(Default)]
struct Launched {
    run: Option<String>,
    rank: Option<String>,
    slurm_job: Option<String>,
}

impl Identities {
    /// Creates an empty set that reads under this root.
    pub(crate) fn new(root: &std::path::Path) -> Self {
        Self {
            root: root.to_owned(),
            known: HashMap::new(),
        }
    }

    /// Returns the identity of `pid`. It is empty if the process has ended or cannot be read.
    pub(crate) fn of(&mut self, pid: u32) -> Identity {
        let Some(stat) = self.stat(pid) else {
            return Identity::default();
        };
        if let Some((then, identity)) = self.known.get(&pid)
            && *then == stat.started
        {
            return identity.clone();
        }
        if self.known.len() >= REMEMBERED_MAX {
            self.known.clear();
        }
        let identity = self.read(pid, stat.parent);
        self.known.insert(pid, (stat.started, identity.clone()));
        identity
    }

    fn read(&self, pid: u32, parent: u32) -> Identity {
        let text = |file: &str| std::fs::read_to_string(self.file(pid, file)).unwrap_or_default();
        let own = self.launched(pid);
        let group = Group::parse(&text("cgroup"));
        let slurm_job = own.slurm_job.or(group.slurm_job);
        let run = own
            .run
            .or_else(|| self.run_of_ancestors(parent))
            .or_else(|| slurm_job.clone());
        let pod = group.pod.as_deref().and_then(|uid| pods::find(&self.root, uid));
        let (pod_name, namespace) = pod.map(|pod| (pod.name, pod.namespace)).unzip();
        Identity {
            name: text("comm").trim_end().to_owned(),
            run,
            rank: own.rank,
            slurm_job,
            container: group.container,
            pod: group.pod,
            pod_name,
            namespace,
        }
    }

    /// Returns the run of the nearest ancestor that has one. Processes that a rank starts may not have the launcher's variables: an
    /// environment shows only what a process was started with, not what it set itself.
    fn run_of_ancestors(&self, mut pid: u32) -> Option<String> {
        for _ in 0..ANCESTORS_MAX {
            if pid <= 1 {
                return None;
            }
            if let Some(run) = self.launched(pid).run {
                return Some(run);
            }
            pid = self.stat(pid)?.parent;
        }
        None
    }

    fn launched(&self, pid: u32) -> Launched {
        let mut environment = Vec::new();
        if let Ok(file) = File::open(self.file(pid, "environ")) {
            // Part of an environment is better than nothing.
            let _ = file.take(ENVIRONMENT_BYTES_MAX).read_to_end(&mut environment);
        }
        let value = |name: &str| variable(&environment, name);
        let find = |names: &[&str]| names.iter().find_map(|name| value(name));
        let rank = find(&RANK_VARIABLES);
        let unnamed = || {
            let [address, port] = RENDEZVOUS_VARIABLES.map(value);
            Some(format!("torchrun-{}-{}", address?, port?))
        };
        Launched {
            run: find(&RUN_VARIABLES).or_else(|| rank.as_ref().and_then(|_| unnamed())),
            rank,
            slurm_job: value("SLURM_JOB_ID"),
        }
    }

    /// Reads the parent (field 4 of `stat`) and the start time in clock ticks since boot (field 22). Fields are counted after the name in
    /// brackets.
    fn stat(&self, pid: u32) -> Option<Stat> {
        let stat = std::fs::read_to_string(self.file(pid, "stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        Some(Stat {
            parent: fields.get(1)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
        })
    }

    fn file(&self, pid: u32, file: &str) -> PathBuf {
        self.root.join("proc").join(pid.to_string()).join(file)
    }
}

fn variable(environment: &[u8], name: &str) -> Option<String> {
    let value = |entry: &[u8]| {
        entry
            .strip_prefix(name.as_bytes())?
            .strip_prefix(b"=")
            .map(<[u8]>::to_vec)
    };
    let value = environment.split(|byte| *byte == 0).find_map(value)?;
    String::from_utf8(value).ok().filter(|value| is_name(value))
}

fn is_name(value: &str) -> bool {
    let printable = value.chars().all(|c| !c.is_control());
    !value.is_empty() && value != "none" && value.len() <= VALUE_BYTES_MAX && printable
}

#[cfg(test)]
mod tests;
