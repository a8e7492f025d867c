//! How many system calls a process makes, counted by strace: every thread, for some seconds. Apart from the CPU time, which a
//! traced process has more of.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::cost::total_calls;
use crate::layout::Layout;
use crate::toolchain::apt;

/// How long strace may take to let go of a process.
const END_WITHIN: Duration = Duration::from_secs(10);

/// System calls a second.
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
        // It may have ended meanwhile: the missing summary says so.
        rustix::process::kill_process(own, rustix::process::Signal::INT).ok();
    }
    while strace.try_wait().context("cannot wait for strace")?.is_none() {
        if begin.elapsed() > traced + END_WITHIN {
            strace.kill().ok();
            strace.wait().ok();
            bail!("strace does not end; it may not trace processes here");
        }
        thread::sleep(Duration::from_millis(20));
    }
    let text = fs::read_to_string(&summary);
    let text = text.context("strace left no summary; tracing may be forbidden here (ptrace_scope)")?;
    Ok(total_calls(&text)? / seconds)
}
