//! Processes of this machine: starts them, finds them by the folder they work for, and sends signals to them.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Starts a collector and waits for the line with its address. Returns the process and the address.
pub(crate) fn spawn_collector(mut command: Command) -> (Child, String) {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.next().expect("the collector says where it is").unwrap();
    let url = first
        .strip_prefix("Lockstep is at ")
        .expect("the address comes first")
        .to_owned();
    // Read its later output too, so that it does not block.
    std::thread::spawn(move || lines.for_each(drop));
    (child, url)
}

/// Returns the IDs of all processes.
pub(crate) fn processes() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap();
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// Returns true if a process was started with `folder` in its arguments or environment.
pub(crate) fn is_ours(pid: i32, folder: &Path) -> bool {
    mentions(pid, folder.as_os_str().as_encoded_bytes())
}

/// Returns true if a process was started with these bytes in its arguments or environment. False for a process that has ended.
pub(crate) fn mentions(pid: i32, needle: &[u8]) -> bool {
    ["cmdline", "environ"].iter().any(|file| {
        let text = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        text.windows(needle.len()).any(|window| window == needle)
    })
}

pub(crate) fn signal(pid: i32, name: &str) {
    let _gone_already = Command::new("kill")
        .arg(format!("-{name}"))
        .arg(pid.to_string())
        .output();
}
