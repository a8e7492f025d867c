//! The resource use of a process, from /proc.

use std::collections::HashMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::progress::say;

/// Ticks per second in `/proc/PID/stat`: USER_HZ is 100 on every architecture that Linux supports for us.
pub(crate) const USER_HZ: f64 = 100.0;
/// A server is quiet if it used less than this share of one core over [`QUIET_FOR`]. It is not 0, because housekeeping never ends.
const QUIET_SHARE: f64 = 0.06;
/// See [`QUIET_SHARE`].
const QUIET_FOR: Duration = Duration::from_secs(3);
/// How long to wait for quiet. Work that has not ended then is counted so far, with a note.
const QUIET_WITHIN: Duration = Duration::from_secs(120);

/// Returns the CPU seconds of a process and of its children that ended.
pub(crate) fn cpu_s(pid: u32) -> Result<f64> {
    ticks(pid, 11, 4)
}

/// Returns seconds of some fields of `/proc/PID/stat`. After the name: state is field 3; utime, stime, cutime, cstime are 14 to 17.
fn ticks(pid: u32, skip: usize, take: usize) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("the process is gone")?;
    let (_, fields) = stat.rsplit_once(')').context("/proc has no name")?;
    let ticks = fields.split_whitespace().skip(skip).take(take);
    Ok(ticks.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / USER_HZ)
}

/// CPU nanoseconds of each thread of a process, and CPU seconds of its children that ended: for loads so small that ticks are too coarse.
#[derive(Debug, Clone)]
pub(crate) struct Threads {
    of_threads: HashMap<u32, u64>,
    of_children_s: f64,
}

impl Threads {
    /// Reads the current values.
    pub(crate) fn now(pid: u32) -> Result<Self> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).context("the process is gone")?;
        let names = tasks.flatten().map(|task| (task.file_name(), task.path()));
        let of_threads = names.filter_map(|(name, folder)| {
            // The first of three numbers is the time on a processor.
            let schedstat = fs::read_to_string(folder.join("schedstat")).ok()?;
            let spent = schedstat.split_whitespace().next()?.parse().ok()?;
            Some((name.to_str()?.parse().ok()?, spent))
        });
        Ok(Self {
            of_threads: of_threads.collect(),
            of_children_s: ticks(pid, 13, 2)?,
        })
    }

    /// Returns CPU seconds since an earlier reading. The work of a thread that ended since then is missing.
    pub(crate) fn since(&self, before: &Self) -> f64 {
        let spent = self.of_threads.iter().map(|(thread, now)| {
            let then = before.of_threads.get(thread).copied().unwrap_or(0);
            now.saturating_sub(then)
        });
        spent.sum::<u64>() as f64 / 1e9 + self.of_children_s - before.of_children_s
    }
}

/// Returns the peak resident memory of a process in MiB.
pub(crate) fn peak_mib(pid: u32) -> Result<f64> {
    status_mib(pid, "VmHWM:")
}

/// Resets [`peak_mib`] to the memory that is resident now (proc(5): 5 in `clear_refs`).
pub(crate) fn reset_peak(pid: u32) -> Result<()> {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").context("cannot reset the peak memory of a process")
}

/// Returns the current resident memory of a process in MiB.
pub(crate) fn resident_mib(pid: u32) -> Result<f64> {
    status_mib(pid, "VmRSS:")
}

/// Returns the number of open files, sockets and other descriptors of a process.
pub(crate) fn descriptors(pid: u32) -> Result<usize> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).context("the process is gone")?;
    Ok(open.count())
}

/// Returns the part of the resident memory that the process allocated, in MiB. The pages of the program and its libraries are in the page
/// cache anyway and do not count.
pub(crate) fn own_mib(pid: u32) -> Result<f64> {
    status_mib(pid, "RssAnon:")
}

/// Returns the number of threads of a process.
pub(crate) fn threads(pid: u32) -> Result<usize> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).context("the process is gone")?;
    Ok(tasks.count())
}

/// Waits until a process is quiet. Returns its CPU seconds then.
pub(crate) fn quiet(pid: u32, name: &str) -> Result<f64> {
    let begin = Instant::now();
    let mut before = cpu_s(pid)?;
    loop {
        thread::sleep(QUIET_FOR);
        let now = cpu_s(pid)?;
        if now - before < QUIET_SHARE * QUIET_FOR.as_secs_f64() {
            return Ok(now);
        }
        if begin.elapsed() > QUIET_WITHIN {
            say(
                name,
                &format!(
                    "is still busy after {} s; counted as it is",
                    QUIET_WITHIN.as_secs()
                ),
            );
            return Ok(now);
        }
        before = now;
    }
}

fn status_mib(pid: u32, name: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("the process is gone")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    Ok(kib.with_context(|| format!("/proc has no {name}"))? / 1_024.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn this_process_has_a_cost_and_memory() {
        let pid = std::process::id();
        let resident = resident_mib(pid).unwrap();
        assert!(resident > 1.0 && peak_mib(pid).unwrap() >= resident);
        let files: Vec<_> = (0..9).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        assert!(descriptors(pid).unwrap() >= files.len());
        assert!((0.1..resident).contains(&own_mib(pid).unwrap()));
        assert!(threads(pid).unwrap() >= 1);
        let large = vec![7_u8; 64 << 20];
        assert!(large.iter().step_by(4_096).all(|byte| *byte == 7));
        drop(large);
        let before_mib = peak_mib(pid).unwrap();
        reset_peak(pid).unwrap();
        assert!(peak_mib(pid).unwrap() < before_mib - 32.0);
        let deadline = Instant::now() + Duration::from_secs(20);
        let (before, threads) = (cpu_s(pid).unwrap(), Threads::now(pid).unwrap());
        while cpu_s(pid).unwrap() < before + 0.03 {
            assert!(Instant::now() < deadline);
        }
        let spent = Threads::now(pid).unwrap().since(&threads);
        // Ticks are coarse: three of them may be little more than two.
        assert!(spent > 0.01, "{spent}");
        assert!(cpu_s(u32::MAX).is_err() && resident_mib(u32::MAX).is_err());
    }
}
