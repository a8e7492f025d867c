//! Ranks in a container: the shim's child is then `docker run` or `podman run`, and torchrun belongs to the runtime.
//!
//! ```text
//! shim ── podman run (the client) ── conmon ── torchrun ── ranks       all below the shim, which is their subreaper
//! shim ── docker run (the client) ┄┄ dockerd ── torchrun ── ranks      nobody's descendants but the daemon's
//! ```
//! The container shares the machine's process ids, so ranks are watched, held and ended as ever: torchrun tells its id by a file
//! (its first process is a shell that writes it and becomes torchrun). What is in the container is what lives in torchrun's mount
//! namespace: no environment, parent or session leads out of that. In the end the container is removed by its name, which is a
//! function of run, attempt and node; the agent does the same when it buries a shim that was killed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use domain::run::container::{Contained, is_of_the_client};
use domain::run::torchrun::Launch;

use crate::files::CONTAINER_ENV;
use crate::rank::End;
use crate::shim::{LOOK_FOR_RANKS, Shim, ShimError};
use crate::tree::{self, Process, SIGKILL};

/// A daemon that works removes a container within seconds; one that hangs is named, and must not hold up the end.
const REMOVED_WITHIN: Duration = Duration::from_secs(30);
/// The runtime's own processes end behind the container: Podman's monitor, and what it runs to clean up.
const RUNTIME_ENDS_WITHIN: Duration = Duration::from_secs(5);

/// How long the client may stay after torchrun: it waits for the daemon, which takes the container apart.
const CLIENT_ENDS_WITHIN: Duration = Duration::from_secs(60);

/// What is known of the processes in a container.
#[derive(Debug)]
pub(crate) struct ContainerProcesses {
    contained: Contained,
    /// `NAME=VALUE` of each of them.
    marks: Vec<String>,
    /// torchrun, once it has told its id.
    pub(crate) first: Option<Process>,
    /// Its mount namespace, where that is not ours.
    mounts: Option<PathBuf>,
    /// Since when torchrun is known to have ended.
    over_since: Option<Instant>,
}

impl ContainerProcesses {
    /// Of a container that is about to be started.
    pub(crate) fn expect(contained: &Contained, launch: &Launch) -> Self {
        let mark = |name: &str| Some(format!("{name}={}", launch.env.get(name)?));
        let names = ["LOCKSTEP_RUN", "LOCKSTEP_ATTEMPT", "LOCKSTEP_NODE"];
        Self {
            contained: contained.clone(),
            marks: names.into_iter().filter_map(mark).collect(),
            first: None,
            mounts: None,
            over_since: None,
        }
    }

    /// An id that was written before this start is nobody's.
    pub(crate) fn forget_the_last(&self) -> io::Result<()> {
        match std::fs::remove_file(&self.contained.pid_file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether torchrun has just become known. The container's word alone is not enough: the process must carry the run's marks.
    fn look(&mut self) -> bool {
        if self.first.is_some() {
            return false;
        }
        let told = std::fs::read_to_string(&self.contained.pid_file).ok();
        let Some(process) = told.and_then(|text| Process::of(text.trim().parse().ok()?)) else {
            return false;
        };
        let environment = tree::environment(process.pid);
        let carries = |mark: &String| environment.iter().any(|variable| variable == mark.as_bytes());
        if !self.marks.iter().all(carries) || !process.lives() {
            return false;
        }
        let theirs = mount_namespace(process.pid);
        // A runtime that isolates nothing shares ours with the whole machine.
        self.mounts = theirs
            .filter(|theirs| Some(theirs) != mount_namespace(std::process::id().cast_signed()).as_ref());
        self.first = Some(process);
        true
    }

    /// What lives in the container.
    pub(crate) fn find(&self) -> BTreeSet<Process> {
        let Some(first) = self.first else {
            return BTreeSet::new();
        };
        let below = tree::descendants(first.pid).into_iter().filter(|_| first.lives());
        let inside = self.mounts.iter().flat_map(|mounts| {
            let is_inside = move |pid: &i32| mount_namespace(*pid).as_ref() == Some(mounts);
            tree::all_processes().filter(is_inside).filter_map(Process::of)
        });
        let itself = Some(first).filter(|first| first.lives());
        below.chain(inside).chain(itself).collect()
    }
}

fn mount_namespace(pid: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok()
}

/// Splits variables into those for the environment of the runtime's command, and a file's text with those that it would take for
/// its own.
#[must_use]
pub fn split_env<'a>(
    variables: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> (Vec<(&'a str, &'a str)>, String) {
    let (by_file, by_name): (Vec<_>, Vec<_>) = variables
        .into_iter()
        .partition(|(name, _)| is_of_the_client(name));
    // Of two with one name, the last is meant.
    let by_file: BTreeMap<_, _> = by_file.into_iter().collect();
    let lines = by_file
        .into_iter()
        .map(|(name, value)| format!("{name}={value}\n"));
    (by_name, lines.collect())
}

impl Shim {
    /// Takes torchrun's id when it is told; the file with variables has been read by then.
    pub(super) fn find_container(&mut self) {
        let Some(container) = &mut self.launcher.container else {
            return;
        };
        if container.look() {
            self.owner.launcher = container.first;
            let _disk_full = self.owner.note(&self.folder);
            let _gone = self.folder.remove(CONTAINER_ENV);
        }
    }

    /// A client whose daemon hangs never ends, though torchrun has: it is given up, and the ranks say how it went.
    pub(super) fn give_up_a_client_that_stays(&mut self) {
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

    /// Removes the container; what stands in the way otherwise. Usually it has gone with its end.
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
            // That there is none is what is hoped for, and no message.
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
            // Not waited for through `Child`: the shim reaps whoever comes.
            self.take_datagrams()?;
            self.reap();
            self.note_exits()?;
            let took = began.elapsed();
            if removing.lives() && took > REMOVED_WITHIN {
                removing.signal(SIGKILL);
                let name = &contained.name;
                return Ok(Some(format!(
                    "container {name} was not removed within {} s; look after `{}`",
                    REMOVED_WITHIN.as_secs(),
                    remove.join(" ")
                )));
            }
            let group = self.group.iter().flat_map(|group| group.processes());
            let runtime_lives = tree::descendants(own).into_iter().chain(group).next().is_some();
            if !removing.lives() && (!runtime_lives || took > RUNTIME_ENDS_WITHIN) {
                return Ok(None);
            }
            std::thread::sleep(LOOK_FOR_RANKS);
        }
    }
}

#[cfg(test)]
mod tests {
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
}
