//! `owner.json`: the processes that a shim owns, and how to end them after the shim was killed.
//!
//! The shim writes the file before it starts anything, so every process can always be found. The clean-up searches in four ways at once,
//! because a process can escape each single one: the cgroup, the recorded processes (by process id and start time), all their descendants,
//! and the marks in environments. Without a cgroup, a process that became a daemon *and* cleared its environment can be found only by the
//! living shim, its subreaper.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::cgroup::Group;
use crate::files::OWNER;
use crate::folder::{FORMAT, Folder};
use crate::tree::{self, Process, SIGKILL};

/// How often the processes are listed before all are killed. Each round suspends the processes that it found, so a new one in the next
/// round was started by a process that was not found yet.
const ROUNDS_MAX: usize = 10;

/// The processes that a shim owns.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Owner {
    /// The folder format of the shim.
    pub format: u32,
    /// The shim's version.
    pub version: String,
    /// The boot of the machine in which the process ids are valid.
    pub(crate) boot_id: String,
    /// The shim's own process.
    pub shim: Process,
    pub(crate) launcher: Option<Process>,
    /// Rank → process.
    pub ranks: BTreeMap<u32, Process>,
    pub(crate) group: Option<Group>,
}

impl Owner {
    /// Returns the record for this process, which owns no other process yet.
    pub(crate) fn new(group: Option<Group>) -> Self {
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            boot_id: tree::boot_id(),
            shim: Process::of(own).unwrap_or_default(),
            launcher: None,
            ranks: BTreeMap::new(),
            group,
        }
    }

    pub(crate) fn note(&self, folder: &Folder) -> io::Result<()> {
        folder.write_json(OWNER, self)
    }

    /// Reads what the last shim of a folder recorded. Empty for a shim from before this file existed.
    pub fn read(folder: &Folder) -> Self {
        folder.read(OWNER).unwrap_or_default()
    }

    /// Returns true if the machine has been restarted since.
    pub(crate) fn is_of_another_boot(&self) -> bool {
        !self.boot_id.is_empty() && self.boot_id != tree::boot_id()
    }
}

/// The processes that may be left of an attempt whose shim has ended.
#[derive(Debug)]
pub struct LeftoverProcesses {
    owner: Owner,
    /// `NAME=VALUE`: variables that each of the attempt's processes was given.
    marks: Vec<String>,
}

impl LeftoverProcesses {
    /// Reads the shim's record in this folder. `marks` are the variables that identify the attempt's processes.
    #[must_use]
    pub fn of(folder: &Folder, marks: Vec<String>) -> Self {
        let owner = Owner::read(folder);
        Self { owner, marks }
    }

    /// Returns true if the machine has been restarted since: no process can be left, and the recorded ids belong to other processes.
    pub fn are_of_another_boot(&self) -> bool {
        self.owner.is_of_another_boot()
    }

    /// Returns the living processes of the attempt.
    pub fn find(&self) -> BTreeSet<Process> {
        if self.are_of_another_boot() {
            return BTreeSet::new();
        }
        let noted = self.owner.launcher.iter().chain(self.owner.ranks.values());
        let noted: Vec<Process> = noted.copied().filter(|process| process.lives()).collect();
        let below = noted.iter().flat_map(|process| tree::descendants(process.pid));
        let grouped = self.owner.group.iter().flat_map(Group::processes);
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        let found = below.chain(noted.iter().copied()).chain(grouped);
        found
            .chain(tree::marked(&self.marks))
            .filter(|process| process.pid != own)
            .collect()
    }

    /// Kills the living processes. Returns true if there was one.
    pub fn kill(&self) -> bool {
        let mut held = BTreeSet::new();
        for _ in 0..ROUNDS_MAX {
            let new: Vec<Process> = self.find().difference(&held).copied().collect();
            if new.is_empty() {
                break;
            }
            // Suspended first and killed later: the children of a dead process are reparented and cannot be found any more.
            new.iter().for_each(|process| process.signal(Signal::STOP));
            held.extend(new);
        }
        if let Some(group) = self.owner.group.as_ref().filter(|_| !self.are_of_another_boot()) {
            group.kill();
        }
        held.iter().for_each(|process| process.signal(SIGKILL));
        !held.is_empty()
    }

    /// Removes the empty cgroup.
    pub fn close(&self) {
        if let Some(group) = &self.owner.group {
            group.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn after_a_restart_of_the_machine_the_numbers_are_other_peoples() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let process = Process::of(i32::try_from(child.id()).unwrap()).unwrap();
        let data = tempfile::tempdir().unwrap();
        let folder = Folder::at(data.path());
        let mut owner = Owner::new(None);
        owner.ranks.insert(0, process);
        let nobody = vec!["LOCKSTEP_RUN=none".to_owned()];
        let leftovers = |owner: &Owner| {
            owner.note(&folder).unwrap();
            LeftoverProcesses::of(&folder, nobody.clone())
        };
        let before = Owner {
            boot_id: "another".into(),
            ..owner.clone()
        };
        assert!(!leftovers(&before).kill() && process.lives());

        let mut other = owner.clone();
        other.ranks.insert(
            0,
            Process {
                start: process.start - 1,
                ..process
            },
        );
        assert!(!leftovers(&other).kill() && process.lives());

        assert_eq!(leftovers(&owner).find(), BTreeSet::from([process]));
        assert!(leftovers(&owner).kill());
        child.wait().unwrap();
        assert!(!leftovers(&owner).kill());
    }
}
