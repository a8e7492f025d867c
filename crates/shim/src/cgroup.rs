//! The cgroup of an attempt. Every process that a rank starts is created in it and cannot leave it, whatever the process does to its
//! session, its parent and its environment.
//!
//! ```text
//! /sys/fs/cgroup/…/OWN GROUP/                  agent and shim stay here
//!                  └── lockstep-RUN.ATTEMPT-…/  torchrun, ranks and everything they start
//! ```
//! The shim uses a cgroup v2 group if the machine lets it create one below its own: `cgroup.kill` ends all its processes at once. If there
//! is only v1, it uses a group of the `pids` hierarchy, in which it can forbid new processes. Otherwise (a container whose groups are
//! read-only, an agent without the permission) there is no group, and the shim relies on the process tree. Groups only keep processes
//! together here: the shim sets no limits and does not use the freezer of v1, which may have another user.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::tree::{Process, SIGKILL};

/// How long the processes that an earlier shim of this attempt left in the group may take to end.
const LEFTOVERS_END_WITHIN: Duration = Duration::from_secs(2);
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The folder of this process's own group in each hierarchy that the shim uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hierarchies {
    /// cgroup v2.
    pub(crate) unified: Option<PathBuf>,
    /// The `pids` controller of v1.
    pub(crate) pids: Option<PathBuf>,
    /// The `memory` controller of v1.
    pub(crate) memory: Option<PathBuf>,
}

impl Hierarchies {
    /// Reads the files `cgroup` and `mountinfo` of a process; `process` is its folder in `/proc`.
    pub fn read(process: &Path) -> Self {
        Self {
            unified: own_folder(process, "cgroup2", ""),
            pids: own_folder(process, "cgroup", "pids"),
            memory: own_folder(process, "cgroup", "memory"),
        }
    }
}

/// Returns the folder of a process's group in one hierarchy. `controller` is empty for v2.
pub(crate) fn own_folder(process: &Path, kind: &str, controller: &str) -> Option<PathBuf> {
    let text = |name: &str| fs::read_to_string(process.join(name)).unwrap_or_default();
    let (groups, mounts) = (text("cgroup"), text("mountinfo"));
    let group = groups.lines().find_map(|line| group_of(line, controller))?;
    mounts
        .lines()
        .filter_map(Mount::parse)
        .filter(|mount| mount.is(kind, controller))
        .find_map(|mount| mount.folder_of(group))
}

/// Parses `ID:CONTROLLERS:PATH`. For v2, the controllers are empty.
fn group_of<'a>(line: &'a str, controller: &str) -> Option<&'a str> {
    let mut parts = line.splitn(3, ':');
    let (id, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let matches = if controller.is_empty() {
        id == "0" && controllers.is_empty()
    } else {
        controllers.split(',').any(|name| name == controller)
    };
    matches.then_some(path)
}

/// A line of `mountinfo`: `ID PARENT DEVICE ROOT POINT OPTIONS … - TYPE SOURCE OPTIONS`.
struct Mount<'a> {
    root: &'a str,
    point: String,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (before, behind) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let mut behind = behind.split(' ');
        Some(Self {
            root: before.next()?,
            // Blanks are written as octal. Other escapes are unlikely in a mount path.
            point: before.next()?.replace("\\040", " "),
            kind: behind.next()?,
            options: behind.nth(1)?,
        })
    }

    fn is(&self, kind: &str, controller: &str) -> bool {
        self.kind == kind && (controller.is_empty() || self.options.split(',').any(|name| name == controller))
    }

    /// Returns the folder of a group below this mount. A container's mount shows only the part of the hierarchy below its root.
    fn folder_of(&self, group: &str) -> Option<PathBuf> {
        let below = Path::new(group).strip_prefix(self.root).ok()?;
        Some(Path::new(&self.point).join(below))
    }
}

/// Which kinds of groups the shim may create.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CgroupKinds {
    /// v2 if possible, otherwise v1.
    #[default]
    Any,
    /// Only v1, as on an old machine.
    V1,
    /// No group.
    Off,
}

impl CgroupKinds {
    /// Parses the value of `LOCKSTEP_CGROUPS`.
    pub fn parse(word: &str) -> Self {
        match word {
            "v1" => Self::V1,
            "off" => Self::Off,
            _ => Self::Any,
        }
    }
}

/// The cgroup of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Group {
    kind: Kind,
    path: PathBuf,
    /// The shim's own group.
    home: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Cgroup2,
    Pids,
}

impl Group {
    /// Creates a group below this process's own group. Returns `None` if no kind can be created.
    pub(crate) fn make(own: &Hierarchies, kinds: CgroupKinds, name: &str) -> Option<Self> {
        let unified = own.unified.as_ref().filter(|_| kinds == CgroupKinds::Any);
        let pids = own.pids.as_ref().filter(|_| kinds != CgroupKinds::Off);
        let candidates = [(Kind::Cgroup2, unified), (Kind::Pids, pids)];
        candidates
            .into_iter()
            .filter_map(|(kind, home)| Some((kind, home?)))
            .find_map(|(kind, home)| {
                let group = Self {
                    kind,
                    path: home.join(name),
                    home: home.clone(),
                };
                group.prepare().then_some(group)
            })
    }

    /// Creates the folder, ends the processes that an earlier shim of the attempt left in it, and tests that this process can enter and
    /// leave it.
    fn prepare(&self) -> bool {
        let made = match fs::create_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        };
        if made.is_err() {
            return false;
        }
        let began = Instant::now();
        while !self.processes().is_empty() {
            if began.elapsed() > LEFTOVERS_END_WITHIN {
                return false;
            }
            self.kill();
            std::thread::sleep(CHECK_INTERVAL);
        }
        let usable = self
            .open()
            .and_then(|()| self.enter())
            .and_then(|()| self.leave())
            .is_ok();
        if !usable {
            self.remove();
        }
        usable
    }

    /// Allows new processes in a group in which they were forbidden.
    fn open(&self) -> io::Result<()> {
        match self.kind {
            Kind::Cgroup2 => Ok(()),
            Kind::Pids => write(&self.path.join("pids.max"), "max"),
        }
    }

    /// Moves this single-threaded process into the group: processes that it starts now are created there.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn enter(&self) -> io::Result<()> {
        // 0 means the writing process.
        write(&self.path.join("cgroup.procs"), "0")
    }

    /// Moves this process back to its own group.
    ///
    /// # Errors
    /// If the kernel refuses. The group must then not be killed any more.
    pub(crate) fn leave(&self) -> io::Result<()> {
        write(&self.home.join("cgroup.procs"), "0")
    }

    /// The folder of the group.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the living processes of the group and of the groups below it.
    pub(crate) fn processes(&self) -> Vec<Process> {
        folders(&self.path)
            .iter()
            .flat_map(|folder| {
                let listed = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
                let pids: Vec<i32> = listed
                    .lines()
                    .filter_map(|line| line.trim().parse().ok())
                    .collect();
                pids
            })
            // A process of another namespace is shown as 0.
            .filter(|pid| *pid > 0)
            .filter_map(Process::of)
            .collect()
    }

    /// Kills all processes of the group. It does not wait: a process that hangs in the kernel dies only if it returns from there.
    pub(crate) fn kill(&self) {
        let at_once = match self.kind {
            // From Linux 5.14 on.
            Kind::Cgroup2 => write(&self.path.join("cgroup.kill"), "1").is_ok(),
            Kind::Pids => {
                let _still_born = write(&self.path.join("pids.max"), "0");
                false
            }
        };
        if !at_once {
            self.processes()
                .into_iter()
                .for_each(|process| process.signal(SIGKILL));
        }
    }

    /// Removes the folder if no process lives in the group any more.
    pub(crate) fn remove(&self) {
        for folder in folders(&self.path).iter().rev() {
            let _somebody_lives = fs::remove_dir(folder);
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Cgroup2 => "cgroup v2",
            Kind::Pids => "cgroup v1 (pids)",
        };
        write!(f, "{kind} {}", self.path.display())
    }
}

/// Returns the folders of a group and of the groups below it, parents first.
fn folders(root: &Path) -> Vec<PathBuf> {
    let mut found = vec![root.to_owned()];
    let mut at = 0;
    while let Some(folder) = found.get(at).cloned() {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        found.extend(below.map(|entry| entry.path()));
        at += 1;
    }
    found
}

/// Writes to a control file. It never creates a file: the kernel provides these files.
fn write(path: &Path, text: &str) -> io::Result<()> {
    fs::OpenOptions::new()
        .write(true)
        .open(path)?
        .write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn hierarchies(cgroup: &str, mountinfo: &str) -> Hierarchies {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup"), cgroup).unwrap();
        fs::write(folder.path().join("mountinfo"), mountinfo).unwrap();
        Hierarchies::read(folder.path())
    }

    #[test]
    fn the_own_group_is_found_on_every_kind_of_machine() {
        let service = hierarchies(
            "0::/system.slice/lockstep.service\n",
            "35 25 0:30 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
        );
        let folder = PathBuf::from("/sys/fs/cgroup/system.slice/lockstep.service");
        assert_eq!(service.unified, Some(folder));
        assert_eq!((service.pids, service.memory), (None, None));

        let both = hierarchies(
            "9:name=systemd:/\n8:pids:/\n4:memory,hugetlb:/jobs/a\n0::/\n",
            "1 0 0:1 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
             2 0 0:2 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory,hugetlb\n\
             3 0 0:3 / /sys/fs/cgroup/uni\\040fied rw - cgroup2 cgroup2 rw\n",
        );
        let folder = |path: &str| Some(PathBuf::from(path));
        assert_eq!(
            both,
            Hierarchies {
                unified: folder("/sys/fs/cgroup/uni fied/"),
                pids: folder("/sys/fs/cgroup/pids/"),
                memory: folder("/sys/fs/cgroup/memory/jobs/a"),
            }
        );
        let container = hierarchies(
            "8:pids:/docker/c0ffee/init\n",
            "1 0 0:1 /docker/c0ffee /sys/fs/cgroup/pids ro - cgroup cgroup rw,pids\n",
        );
        assert_eq!(container.pids, folder("/sys/fs/cgroup/pids/init"));
        assert_eq!(hierarchies("", ""), Hierarchies::default());
    }

    #[test]
    fn a_folder_that_is_no_group_or_cannot_be_written_makes_none() {
        let plain = tempfile::tempdir().unwrap();
        let own = Hierarchies {
            unified: Some(plain.path().to_owned()),
            pids: Some(PathBuf::from("/proc/self")),
            memory: None,
        };
        assert_eq!(Group::make(&own, CgroupKinds::Any, "lockstep-x.1"), None);
        assert!(
            !plain.path().join("lockstep-x.1").exists(),
            "it was taken away again"
        );
        assert_eq!(Group::make(&Hierarchies::default(), CgroupKinds::Any, "x"), None);
        assert_eq!(
            ["v1", "off", "", "v3"].map(CgroupKinds::parse),
            [
                CgroupKinds::V1,
                CgroupKinds::Off,
                CgroupKinds::Any,
                CgroupKinds::Any
            ]
        );
    }
}
