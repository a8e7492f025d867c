//! Processes as `/proc` shows them: who descends from whom, how one ended, and which carry a run's mark.
//!
//! The shim is a subreaper: whatever its ranks start and abandon is handed to it by the kernel, so walking parents finds all
//! of it. Should the shim itself be killed, the mark in the environment still finds what it left.

use std::collections::{HashMap, HashSet};
use std::fs;

use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};

pub(crate) const SIGKILL: Signal = Signal::KILL;

/// A process that is meant, and no other: the kernel gives the number of one that has ended to another one, but the two
/// never start in the same tick of the clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// When it was started, in ticks since the machine was.
    pub start: u64,
}

impl Process {
    /// A living process by its number.
    pub fn of(pid: i32) -> Option<Self> {
        let stat = Stat::read(pid).filter(|stat| !stat.is_zombie())?;
        let start = stat.start;
        Some(Self { pid, start })
    }

    /// Whether it still lives.
    pub fn lives(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Sends it a signal: takes hold of whoever has its number, and lets go when that is another one by now. One that is gone
    /// is as good as signalled.
    pub fn signal(self, signal: Signal) {
        let held = Pid::from_raw(self.pid)
            .and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
        if let Some(held) = held.filter(|_| self.lives()) {
            let _gone = rustix::process::pidfd_send_signal(held, signal);
        }
    }
}

/// Names this time of the machine between two restarts; empty where the kernel does not say.
pub fn boot_id() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// A process's line in `/proc/PID/stat`, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// `R`, `S`, `D`, `Z`, …
    pub state: u8,
    /// Its parent.
    pub parent: i32,
    /// When it was started, in ticks since the machine was.
    pub start: u64,
    /// Its wait status once it is a zombie; 0 where the kernel does not show it.
    pub(crate) wait_status: i32,
}

impl Stat {
    /// Reads a process; `None` when it is gone.
    pub fn read(pid: i32) -> Option<Self> {
        parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    pub(crate) fn is_zombie(self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// `PID (NAME) STATE PPID …`; the name may hold blanks and parentheses. Field 22 is its start, field 52, the last,
/// the wait status.
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

/// Every living process below `root`, itself left out.
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

/// The direct children of a process, whichever of its threads started them.
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
            // A kernel without CONFIG_PROC_CHILDREN.
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

/// Living processes whose environment, as it was at their start, holds all of these `NAME=VALUE`.
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

/// The environment a process was started with, `NAME=VALUE` each; empty when it is gone or not ours to read.
pub fn environment(pid: i32) -> Vec<Vec<u8>> {
    let bytes = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    bytes
        .split(|byte| *byte == 0)
        .filter(|variable| !variable.is_empty())
        .map(<[u8]>::to_vec)
        .collect()
}

/// The numbers of all processes.
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
