//! Ranks in a container. The shim's child is `docker run` or `podman run`, and torchrun belongs to the container runtime.
//!
//! ```text
//! shim ── podman run (the client) ── conmon ── torchrun ── ranks       all below the shim, which is their subreaper
//! shim ── docker run (the client) ┄┄ dockerd ── torchrun ── ranks      descendants of the daemon only
//! ```
//! The container shares the machine's process ids, so ranks are watched, suspended and ended as without a container. torchrun reports its
//! id in a file: the first process of the container is a shell that writes its id and then executes torchrun. A process belongs to the
//! container if it is in torchrun's mount namespace, which it cannot leave by a new environment, parent or session. At the end the
//! container is removed by its name, which is computed from run, attempt and node. The agent does the same when it cleans up after a killed
//! shim.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use domain::run::container::{ContainerHandle, is_client_variable};
use domain::run::torchrun::Launch;

use crate::files::CONTAINER_ENV;
use crate::folder::remove_if_exists;
use crate::rank::End;
use crate::shim::{RANK_SEARCH_INTERVAL, Shim, ShimError};
use crate::tree::{self, Process, SIGKILL};

/// A working daemon removes a container within seconds. A daemon that hangs must not delay the end; the report names the container.
const REMOVED_WITHIN: Duration = Duration::from_secs(30);
/// The runtime's own processes end after the container: Podman's monitor and its clean-up command.
const RUNTIME_ENDS_WITHIN: Duration = Duration::from_secs(5);

/// How long the client may run after torchrun has ended: it waits for the daemon to remove the container.
const CLIENT_ENDS_WITHIN: Duration = Duration::from_secs(60);

/// The processes in a container, as far as they are known.
#[derive(Debug)]
pub(crate) struct ContainerProcesses {
    contained: ContainerHandle,
    /// `NAME=VALUE`: variables that each of the processes has.
    marks: Vec<String>,
    /// torchrun, once it has reported its id.
    pub(crate) first: Option<Process>,
    /// Its mount namespace, or `None` if it is the shim's own, or no longer the container's.
    mounts: Option<PathBuf>,
    /// The processes that the last search found in the namespace.
    inside: BTreeSet<Process>,
    /// When the shim first saw that torchrun had ended.
    over_since: Option<Instant>,
}

impl ContainerProcesses {
    /// Returns the state for a container that is about to be started.
    pub(crate) fn expect(contained: &ContainerHandle, launch: &Launch) -> Self {
        let mark = |name: &str| Some(format!("{name}={}", launch.env.get(name)?));
        let names = ["LOCKSTEP_RUN", "LOCKSTEP_ATTEMPT", "LOCKSTEP_NODE"];
        Self {
            contained: contained.clone(),
            marks: names.into_iter().filter_map(mark).collect(),
            first: None,
            mounts: None,
            inside: BTreeSet::new(),
            over_since: None,
        }
    }

    /// Removes an id that was written before this start: it is no longer valid.
    pub(crate) fn remove_old_pid_file(&self) -> io::Result<()> {
        remove_if_exists(Path::new(&self.contained.pid_file))
    }

    /// Returns true if torchrun has just become known. The reported id alone is not enough: the process must have the run's marks.
    fn find_torchrun(&mut self) -> bool {
        if self.first.is_some() {
            return false;
        }
        let text = std::fs::read_to_string(&self.contained.pid_file).ok();
        let Some(process) = text.and_then(|text| Process::of(text.trim().parse().ok()?)) else {
            return false;
        };
        if !self.has_marks(process.pid) || !process.lives() {
            return false;
        }
        let theirs = mount_namespace(process.pid);
        // A runtime without isolation shares the machine's namespace with all processes.
        self.mounts = theirs
            .filter(|theirs| Some(theirs) != mount_namespace(std::process::id().cast_signed()).as_ref());
        self.first = Some(process);
        true
    }

    /// Returns true if a process has the run's marks in its environment.
    fn has_marks(&self, pid: i32) -> bool {
        let environment = tree::environment(pid);
        let carries = |mark: &String| environment.iter().any(|variable| variable == mark.as_bytes());
        self.marks.iter().all(carries)
    }

    /// Returns the living processes of the container.
    ///
    /// When the last process of a namespace has ended, the kernel gives the namespace's number to the next one, which may be that of any
    /// program. So the number counts only while torchrun lives, a process that was found by it before, or one with the run's marks.
    pub(crate) fn find(&mut self) -> BTreeSet<Process> {
        let Some(first) = self.first else {
            return BTreeSet::new();
        };
        let below = tree::descendants(first.pid).into_iter().filter(|_| first.lives());
        let itself = Some(first).filter(|first| first.lives());
        let mut found: BTreeSet<Process> = below.chain(itself).collect();
        let inside = self.mounts.as_deref().map(processes_inside).unwrap_or_default();
        // Checked after the search: a process that lives now kept the namespace during the search.
        let is_known = first.lives() || self.inside.iter().any(|process| process.lives());
        let is_marked = |process: &Process| self.has_marks(process.pid);
        if is_known || !self.marks.is_empty() && inside.iter().any(is_marked) {
            found.extend(&inside);
            self.inside = inside;
        } else {
            self.mounts = None;
        }
        found
    }
}

fn processes_inside(mounts: &Path) -> BTreeSet<Process> {
    let is_inside = |pid: &i32| mount_namespace(*pid).as_deref() == Some(mounts);
    tree::all_processes()
        .filter(is_inside)
        .filter_map(Process::of)
        .collect()
}

fn mount_namespace(pid: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok()
}

/// Splits variables into those that the runtime's command can pass on from its environment, and the text of a file with those that the
/// command would use for itself.
#[must_use]
pub fn split_env<'a>(
    variables: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> (Vec<(&'a str, &'a str)>, String) {
    let (by_file, by_name): (Vec<_>, Vec<_>) = variables
        .into_iter()
        .partition(|(name, _)| is_client_variable(name));
    // If a name occurs twice, the last one applies.
    let by_file: BTreeMap<_, _> = by_file.into_iter().collect();
    let lines = by_file
        .into_iter()
        .map(|(name, value)| format!("{name}={value}\n"));
    (by_name, lines.collect())
}

impl Shim {
    /// Reads torchrun's id when it is available. The runtime has read the file with variables by then.
    pub(super) fn find_container(&mut self) {
        let Some(container) = &mut self.launcher.container else {
            return;
        };
        if container.find_torchrun() {
            self.owner.launcher = container.first;
            let _disk_full = self.owner.note(&self.folder);
            let _gone = self.folder.remove(CONTAINER_ENV);
        }
    }

    /// Gives up on a client that stays after torchrun has ended, because its daemon hangs. The exits of the ranks then decide the exit
    /// code.
    pub(super) fn abandon_stuck_client(&mut self) {
        let Some(container) = &mut self.launcher.container else {
            return;
        };
        if self.launcher.end.is_some() || container.first.is_none_or(|first| first.lives()) {
            return;
        }
        let since = *container.over_since.get_or_insert_with(Instant::now);
        if since.elapsed() < CLIENT_ENDS_WITHIN {
            return;
        }
        let exits = || self.ranks.values().map(|rank| rank.exit.as_ref());
        let failed = exits().flatten().any(domain::run::state::RankExit::failed);
        let well = self.all_ranks_known() && exits().all(|exit| exit.is_some_and(|exit| !exit.failed()));
        self.launcher.end = Some(End {
            code: if well { Some(0) } else { failed.then_some(1) },
            signal: None,
        });
    }

    /// Removes the container, which usually ended and removed itself. Returns a message if it cannot be removed.
    pub(super) fn remove_container(&mut self) -> Result<Option<String>, ShimError> {
        let Some(container) = &self.launcher.container else {
            return Ok(None);
        };
        let (contained, began) = (container.contained.clone(), Instant::now());
        let _gone = self.folder.remove(CONTAINER_ENV);
        let remove = contained.runtime.remove(&contained.name);
        let spawned = Command::new(&remove[0])
            .args(&remove[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // Usually the container does not exist any more; the command's error message is not needed.
            .stderr(Stdio::null())
            .spawn();
        let Some(removing) = spawned
            .ok()
            .and_then(|child| Process::of(child.id().cast_signed()))
        else {
            return Ok(None);
        };
        let own = std::process::id().cast_signed();
        loop {
            // Not waited for through `Child`: the shim reaps all its children itself.
            self.take_datagrams()?;
            self.reap();
            self.note_exits()?;
            let took = began.elapsed();
            if removing.lives() && took > REMOVED_WITHIN {
                removing.signal(SIGKILL);
                let name = &contained.name;
                return Ok(Some(format!(
                    "container {name} was not removed within {} s; run `{}` by hand",
                    REMOVED_WITHIN.as_secs(),
                    remove.join(" ")
                )));
            }
            let group = self.group.iter().flat_map(|group| group.processes());
            let runtime_lives = tree::descendants(own).into_iter().chain(group).next().is_some();
            if !removing.lives() && (!runtime_lives || took > RUNTIME_ENDS_WITHIN) {
                return Ok(None);
            }
            std::thread::sleep(RANK_SEARCH_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::container::Runtime;

    use super::*;

    #[test]
    fn variables_of_the_client_go_by_file() {
        let (by_name, file) = split_env([
            ("NCCL_DEBUG", "INFO"),
            ("PATH", "/a"),
            ("LD_PRELOAD", "x"),
            ("PATH", "/b"),
        ]);
        assert_eq!(by_name, [("NCCL_DEBUG", "INFO")]);
        assert_eq!(file, "LD_PRELOAD=x\nPATH=/b\n");
    }

    /// The number of an ended container's mount namespace was given to that of another program, and the shim ended this program.
    #[test]
    fn a_namespace_whose_processes_have_ended_is_that_of_another_program() {
        let (mut torchrun, first) = sleeping();
        let (mut other, program) = sleeping();
        let mut container = in_own_namespace(first);
        assert!(container.find().is_superset(&BTreeSet::from([first, program])));
        first.signal(SIGKILL);
        torchrun.wait().expect("its end");
        assert!(
            container.find().contains(&program),
            "it was found while torchrun lived"
        );
        let mut not_searched_before = in_own_namespace(first);
        assert_eq!(not_searched_before.find(), BTreeSet::new());
        assert_eq!(not_searched_before.find(), BTreeSet::new());
        program.signal(SIGKILL);
        other.wait().expect("its end");
    }

    fn sleeping() -> (std::process::Child, Process) {
        let child = Command::new("sleep").arg("600").spawn().expect("sleep");
        let process = Process::of(child.id().cast_signed()).expect("it lives");
        (child, process)
    }

    /// A container whose mount namespace is that of this test.
    fn in_own_namespace(first: Process) -> ContainerProcesses {
        let contained = ContainerHandle {
            runtime: Runtime::Podman,
            name: "c".into(),
            pid_file: String::new(),
            env_file: String::new(),
        };
        ContainerProcesses {
            first: Some(first),
            mounts: mount_namespace(std::process::id().cast_signed()),
            ..ContainerProcesses::expect(&contained, &Launch::default())
        }
    }
}
