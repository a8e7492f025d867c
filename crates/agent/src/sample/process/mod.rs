//! Who a process is: its name, and the run, rank, Slurm job, container and pod it belongs to.
//!
//! ```text
//! /proc/PID/environ   a few variables of launchers, and nothing else ─▶ run, rank, Slurm job
//! /proc/PID/stat      parent: what a rank spawned is its run's as well
//! /proc/PID/cgroup    (`cgroup`) Slurm job, container, pod
//! /var/log/pods       (`pods`) namespace and name of the pod
//! ```
//! An environment may hold secrets: only the variables named below are ever kept of it.

mod cgroup;
mod pods;

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use self::cgroup::Group;

/// The most of an environment that is read; the variables looked for are set by launchers, near its start or end.
const ENVIRONMENT_BYTES_MAX: u64 = 1 << 20;
/// The most processes remembered; more than the GPUs of a node have contexts for.
const REMEMBERED_MAX: usize = 4_096;
/// How far up a process's run is looked for: a spawned worker's parent is the rank, whose parent is the launcher.
const ANCESTORS_MAX: usize = 4;
/// What is longer is no name of anything.
const VALUE_BYTES_MAX: usize = 128;

/// Where a run's name is found, the surest first.
const RUN_VARIABLES: [&str; 3] = ["LOCKSTEP_RUN", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"];
/// Where a rank is found, the surest first.
const RANK_VARIABLES: [&str; 2] = ["RANK", "SLURM_PROCID"];
/// What a launcher that names no run sets all the same, and what makes its ranks one job.
const RENDEZVOUS_VARIABLES: [&str; 2] = ["MASTER_ADDR", "MASTER_PORT"];

/// What a process is to people.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    /// As the kernel has it, at most 15 bytes; empty when it cannot be read.
    pub(crate) name: String,
    /// The run it belongs to.
    pub(crate) run: Option<String>,
    /// Its rank in the run.
    pub(crate) rank: Option<String>,
    /// The Slurm job it belongs to.
    pub(crate) slurm_job: Option<String>,
    /// The beginning of its container's id.
    pub(crate) container: Option<String>,
    /// Its pod's uid.
    pub(crate) pod: Option<String>,
    /// What people call the pod, and where it belongs.
    pub(crate) pod_name: Option<String>,
    pub(crate) namespace: Option<String>,
}

/// Identities by pid. A pid is reused, so each is kept with its process's start time.
#[derive(Debug)]
pub(crate) struct Identities {
    root: PathBuf,
    known: HashMap<u32, (u64, Identity)>,
}

/// What `stat` says: the parent, and when the process started.
struct Stat {
    parent: u32,
    started: u64,
}

/// What an environment says of the job.
#[derive(Default)]
struct Launched {
    run: Option<String>,
    rank: Option<String>,
    slurm_job: Option<String>,
}

impl Identities {
    /// Reads under this root.
    pub(crate) fn new(root: &std::path::Path) -> Self {
        Self {
            root: root.to_owned(),
            known: HashMap::new(),
        }
    }

    /// Who `pid` is; empty when it has gone or may not be looked at.
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

    /// What a process spawned was not told by a launcher is seen at its parents: environments show what a process was started
    /// with, not what it set itself.
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
            // Half an environment is better than none.
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

    /// Counted behind the name in brackets: field 4 of `stat` is the parent, 22 the clock ticks since boot at which it started.
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
