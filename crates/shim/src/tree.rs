//! Processes in `/proc`: their descendants, their exit statuses, and their marks of a run.
//!
//! The shim is a subreaper: the kernel makes it the parent of every orphan that its ranks leave, so a search by parent finds all of them.
//! If the shim itself is killed, the marks in the environments still identify its processes.

use std::collections::{HashMap, HashSet};
use std::fs;

use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};

pub(crate) const SIGKILL: Signal = Signal::KILL;

/// One specific process. The kernel reuses process ids, but two processes with the same id never start in the same clock tick.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    /// The process id.
    pub pid: i32,
    /// The start time, in clock ticks since the machine was started.
    pub start: u64,
}

impl Process {
    /// Returns the living process with this id.
    pub fn of(pid: i32) -> Option<Self> {
        let stat = Stat::read(pid).filter(|stat| !stat.is_zombie())?;
        let start = stat.start;
        Some(Self { pid, start })
    }

    /// Returns true if the process is still alive.
    pub fn lives(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Sends a signal. It opens the process id first, then checks that it is still the same process. A process that has ended is not an
    /// error.
    pub fn signal(self, signal: Signal) {
        let held = Pid::from_raw(self.pid)
            .and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
        if let Some(held) = held.filter(|_| self.lives()) {
            let _gone = rustix::process::pidfd_send_signal(held, signal);
        }
    }
}

/// Returns the id of the machine's current boot, or an empty string if the kernel does not report one.
pub fn boot_id() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// The fields of a process's line in `/proc/PID/stat` that are used here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// `R`, `S`, `D`, `Z`, …
    pub state: u8,
    /// The process id of the parent.
    pub parent: i32,
    /// The start time, in clock ticks since the machine was started.
    pub start: u64,
    /// The wait status of a zombie; 0 if the kernel does not show it.
    pub(crate) wait_status: i32,
}

impl Stat {
    /// Reads the status of a process. Returns `None` if it does not exist.
    pub fn read(pid: i32) -> Option<Self> {
        parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    pub(crate) fn is_zombie(self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// Parses `PID (NAME) STATE PPID …`. The name may contain blanks and parentheses. Field 22 is the start time; field 52, the last, is the
/// wait status.
fn parse_stat(text: &str) -> Option<Stat> {
    let rest = &text[text.rfind(')')? + 1..];
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Stat {
        state: *fields.first()?.as_bytes().first()?,
        parent: fields.get(1)?.parse().ok()?,
        start: fields.get(19)?.parse().ok()?,
        wait_status: fields.get(49).and_then(|field| field.parse().ok()).unwrap_or(0),
    })
}

/// Returns every living process below `root`, without `root` itself.
pub(crate) fn descendants(root: i32) -> Vec<Process> {
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    for pid in all_processes() {
        if let Some(stat) = Stat::read(pid).filter(|stat| !stat.is_zombie()) {
            let start = stat.start;
            children
                .entry(stat.parent)
                .or_default()
                .push(Process { pid, start });
        }
    }
    let mut found = Vec::new();
    let mut seen = HashSet::from([root]);
    let mut todo = vec![root];
    while let Some(parent) = todo.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            if seen.insert(child.pid) {
                found.push(child);
                todo.push(child.pid);
            }
        }
    }
    found
}

/// Returns the direct children of a process, started by any of its threads.
pub fn children(pid: i32) -> Vec<i32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for thread in threads.flatten() {
        match fs::read_to_string(thread.path().join("children")) {
            Ok(list) => found.extend(
                list.split_ascii_whitespace()
                    .filter_map(|pid| pid.parse::<i32>().ok()),
            ),
            // The kernel was built without CONFIG_PROC_CHILDREN.
            Err(_) if !thread.path().join("children").exists() => return children_by_parent(pid),
            Err(_) => {}
        }
    }
    found
}

fn children_by_parent(pid: i32) -> Vec<i32> {
    all_processes()
        .filter(|child| Stat::read(*child).is_some_and(|stat| stat.parent == pid))
        .collect()
}

/// Returns the living processes whose environment at their start contains all of these `NAME=VALUE` strings.
pub fn marked(marks: &[String]) -> Vec<Process> {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let carries = |process: &Process| {
        let environment = environment(process.pid);
        marks
            .iter()
            .all(|mark| environment.iter().any(|variable| variable == mark.as_bytes()))
    };
    all_processes()
        .filter(|pid| *pid != own)
        .filter_map(Process::of)
        .filter(carries)
        .filter(|process| process.lives())
        .collect()
}

/// Returns the environment with which a process was started, as `NAME=VALUE` each. Empty if it cannot be read.
pub fn environment(pid: i32) -> Vec<Vec<u8>> {
    let bytes = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    bytes
        .split(|byte| *byte == 0)
        .filter(|variable| !variable.is_empty())
        .map(<[u8]>::to_vec)
        .collect()
}

/// Returns the ids of all processes.
pub fn all_processes() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_confuse() {
        let mut fields = vec!["0"; 50];
        fields[0] = "Z";
        fields[1] = "7";
        fields[19] = "1234";
        fields[49] = "9";
        let text = format!("42 (a) (b c) {}\n", fields.join(" "));
        assert_eq!(
            parse_stat(&text),
            Some(Stat {
                state: b'Z',
                parent: 7,
                start: 1_234,
                wait_status: 9
            })
        );
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn a_process_that_got_the_number_of_another_is_left_alone() {
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .expect("sleep");
        let pid = i32::try_from(child.id()).expect("a pid");
        let process = Process::of(pid).expect("it lives");
        let before = Process {
            start: process.start - 1,
            ..process
        };
        before.signal(SIGKILL);
        assert!(process.lives() && !before.lives());
        process.signal(SIGKILL);
        let ended = child.wait().expect("its end");
        assert!(!ended.success() && !process.lives());
    }
}
