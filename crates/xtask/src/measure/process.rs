//! What a process has cost so far, and what it holds, from /proc.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::progress::say;

/// Ticks of `/proc/PID/stat` in a second: USER_HZ is 100 on every architecture Linux has for us.
pub(crate) const USER_HZ: f64 = 100.0;
/// A server is quiet when it used less than this share of one core over [`QUIET_FOR`]: its own housekeeping goes on for ever.
const QUIET_SHARE: f64 = 0.06;
/// See [`QUIET_SHARE`].
const QUIET_FOR: Duration = Duration::from_secs(3);
/// How long to wait for quiet; what has not ended then is counted as it is, and said.
const QUIET_WITHIN: Duration = Duration::from_secs(120);

/// CPU seconds of a process and of its children that ended.
pub(crate) fn cpu_s(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("the process is gone")?;
    let (_, fields) = stat.rsplit_once(')').context("/proc shows no name")?;
    // After the name: state is field 3; utime, stime, cutime, cstime are 14 to 17.
    let ticks = fields.split_whitespace().skip(11).take(4);
    Ok(ticks.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / USER_HZ)
}

/// The most memory a process ever had resident, in MiB.
pub(crate) fn peak_mib(pid: u32) -> Result<f64> {
    status_mib(pid, "VmHWM:")
}

/// Lets [`peak_mib`] begin again at what is resident now (proc(5): 5 in `clear_refs`).
pub(crate) fn forget_peak(pid: u32) -> Result<()> {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").context("cannot forget a process' peak of memory")
}

/// The memory a process has resident now, in MiB.
pub(crate) fn resident_mib(pid: u32) -> Result<f64> {
    status_mib(pid, "VmRSS:")
}

/// How many files, sockets and the like a process has open.
pub(crate) fn descriptors(pid: u32) -> Result<usize> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).context("the process is gone")?;
    Ok(open.count())
}

/// Waits until a process has nothing to do any more; its CPU seconds then.
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
    Ok(kib.with_context(|| format!("/proc shows no {name}"))? / 1_024.0)
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
        let large = vec![7_u8; 64 << 20];
        assert!(large.iter().step_by(4_096).all(|byte| *byte == 7));
        drop(large);
        let before_mib = peak_mib(pid).unwrap();
        forget_peak(pid).unwrap();
        assert!(peak_mib(pid).unwrap() < before_mib - 32.0);
        let deadline = Instant::now() + Duration::from_secs(20);
        let before = cpu_s(pid).unwrap();
        while cpu_s(pid).unwrap() < before + 0.03 {
            assert!(Instant::now() < deadline);
        }
        assert!(cpu_s(u32::MAX).is_err() && resident_mib(u32::MAX).is_err());
    }
}
