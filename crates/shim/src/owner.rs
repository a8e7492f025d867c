//! `owner.json`: what a shim owns, for whoever comes after it; and the end of it all when the shim is no more.
//!
//! The shim writes it before it starts anything, so there is never a process that nobody can find. Whoever ends what is left
//! looks in four ways at once, because each alone can be escaped: the group of the kernel, the processes noted by number and
//! start, everything below those, and the marks in environments. Without a group, a process that made itself a daemon *and*
//! cleared its environment is found by the living shim, its subreaper, alone.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::cgroup::Group;
use crate::files::OWNER;
use crate::folder::{FORMAT, Folder};
use crate::tree::{self, Process, SIGKILL};

/// How often what is left is counted before all of it is killed: each time, whoever was found is held, so what is still new
/// was started by somebody who was not found yet.
const ROUNDS_MAX: usize = 10;

/// What a shim owns.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Owner {
    /// The folder's format, as the shim knew it.
    pub format: u32,
    /// The shim's version.
    pub version: String,
    /// Between which two restarts of the machine. Numbers of processes mean nothing at any other time.
    pub(crate) boot_id: String,
    /// The shim itself.
    pub shim: Process,
    pub(crate) launcher: Option<Process>,
    /// By place in the world.
    pub ranks: BTreeMap<u32, Process>,
    pub(crate) group: Option<Group>,
}

impl Owner {
    /// This process, which owns nothing yet.
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

    /// What the last shim of a folder noted; nothing from one of before there was such a note.
    pub fn read(folder: &Folder) -> Self {
        folder.read(OWNER).unwrap_or_default()
    }

    /// Whether the machine has been restarted since.
    pub(crate) fn is_of_another_boot(&self) -> bool {
        !self.boot_id.is_empty() && self.boot_id != tree::boot_id()
    }
}

/// What may be left of an attempt whose shim is gone.
#[derive(Debug)]
pub struct Remains {
    owner: Owner,
    /// `NAME=VALUE`, all of which each of its processes was given.
    marks: Vec<String>,
}

impl Remains {
    /// Of the attempt in this folder, by what its shim noted and by these marks.
    #[must_use]
    pub fn of(folder: &Folder, marks: Vec<String>) -> Self {
        let owner = Owner::read(folder);
        Self { owner, marks }
    }

    /// The machine has been restarted since: nothing can be left, and the numbers are other people's.
    pub fn are_of_another_boot(&self) -> bool {
        self.owner.is_of_another_boot()
    }

    /// What lives.
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

    /// Kills what lives; whether there was anything.
    pub fn kill(&self) -> bool {
        let mut held = BTreeSet::new();
        for _ in 0..ROUNDS_MAX {
            let new: Vec<Process> = self.find().difference(&held).copied().collect();
            if new.is_empty() {
                break;
            }
            // Held first, killed later: the children of one that is dead are nobody's, and found no more.
            new.iter().for_each(|process| process.signal(Signal::STOP));
            held.extend(new);
        }
        if let Some(group) = self.owner.group.as_ref().filter(|_| !self.are_of_another_boot()) {
            group.kill();
        }
        held.iter().for_each(|process| process.signal(SIGKILL));
        !held.is_empty()
    }

    /// Puts the empty group away.
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
        let remains = |owner: &Owner| {
            owner.note(&folder).unwrap();
            Remains::of(&folder, nobody.clone())
        };
        let before = Owner {
            boot_id: "another".into(),
            ..owner.clone()
        };
        assert!(!remains(&before).kill() && process.lives());

        let mut other = owner.clone();
        other.ranks.insert(
            0,
            Process {
                start: process.start - 1,
                ..process
            },
        );
        assert!(!remains(&other).kill() && process.lives());

        assert_eq!(remains(&owner).find(), BTreeSet::from([process]));
        assert!(remains(&owner).kill());
        child.wait().unwrap();
        assert!(!remains(&owner).kill());
    }
}
