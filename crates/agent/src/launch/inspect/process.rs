//! The kernel's information about a process that does not answer. Each part may be missing: the kernel stack needs root, the others need
//! the user of the process.

use std::io::Read;

use domain::run::inspect::ProcessState;
use shim::{Process, Stat};

/// Maximum number of bytes that are read from each file.
const BYTES_MAX: u64 = 4 << 10;

/// Returns true if a signal or a debugger has stopped the process.
pub(super) fn is_stopped(process: Process) -> bool {
    Stat::read(process.pid).is_some_and(|stat| matches!(stat.state, b'T' | b't'))
}

/// Reads the state of the main thread. Runs on a separate thread, because the kernel may be slow to answer.
pub(super) async fn read_state(process: Process) -> Option<ProcessState> {
    tokio::task::spawn_blocking(move || read(process))
        .await
        .ok()
        .flatten()
}

fn read(process: Process) -> Option<ProcessState> {
    let state = Stat::read(process.pid)?.state;
    let file = |name: &str| {
        let mut text = String::new();
        let opened = std::fs::File::open(format!("/proc/{}/{name}", process.pid));
        let _unreadable = opened.and_then(|file| file.take(BYTES_MAX).read_to_string(&mut text));
        text.trim().to_owned()
    };
    let state = ProcessState {
        state: format!("{} ({})", char::from(state), meaning(state)),
        wchan: Some(file("wchan"))
            .filter(|wchan| wchan != "0")
            .unwrap_or_default(),
        syscall: file("syscall"),
        kernel_stack: file("stack"),
    };
    // Discard the result if another process has got the same id in the meantime.
    process.lives().then_some(state)
}

fn meaning(state: u8) -> &'static str {
    match state {
        b'R' => "running",
        b'S' => "sleeping",
        b'D' => "waiting in the kernel, cannot be interrupted",
        b'T' => "stopped by a signal",
        b't' => "stopped by a debugger",
        b'Z' | b'X' => "has ended",
        _ => "another state",
    }
}
