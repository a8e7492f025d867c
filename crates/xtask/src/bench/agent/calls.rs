//! Counts the system calls of a process with strace: all threads, for some seconds. Measured separately from the CPU time, which tracing
//! increases.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::cost::total_calls;
use crate::layout::Layout;
use crate::toolchain::apt;

/// How long strace may take to detach from a process.
const END_WITHIN: Duration = Duration::from_secs(10);

/// Returns system calls per second.
pub(super) fn per_second(layout: &Layout, pid: u32, traced: Duration) -> Result<f64> {
    let summary = layout.logs().join("bench-agent-calls.txt");
    let mut strace = Command::new(apt::installed(layout, &apt::STRACE)?)
        .args(["-f", "-c", "-q", "-o"])
        .arg(&summary)
        .args(["-p", &pid.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start strace")?;
    let begin = Instant::now();
    thread::sleep(traced);
    let seconds = begin.elapsed().as_secs_f64();
    let own = i32::try_from(strace.id())
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    if let Some(own) = own {
        // It may have ended meanwhile: then the summary is missing, which is reported.
        rustix::process::kill_process(own, rustix::process::Signal::INT).ok();
    }
    while strace.try_wait().context("cannot wait for strace")?.is_none() {
        if begin.elapsed() > traced + END_WITHIN {
            strace.kill().ok();
            strace.wait().ok();
            bail!("strace does not end; tracing may be forbidden here");
        }
        thread::sleep(Duration::from_millis(20));
    }
    let text = fs::read_to_string(&summary);
    let text = text.context("strace wrote no summary; tracing may be forbidden here (ptrace_scope)")?;
    Ok(total_calls(&text)? / seconds)
}
