//! The machine, the revision and the date of a measurement.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use super::process;
use crate::child;
use crate::layout::Layout;

/// Returns cores, memory, processor and kernel, in one line.
pub(crate) fn describe() -> String {
    let cores = cores();
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let kernel = rustix::system::uname();
    format!(
        "{cores} cores, {:.0} GiB, {}, Linux {}",
        gib(&read("/proc/meminfo"), "MemTotal"),
        field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown processor".to_owned()),
        kernel.release().to_string_lossy()
    )
}

/// Returns current load and free space in one line; `folder` selects the disk.
pub(crate) fn state(folder: &Path) -> String {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let load = read("/proc/loadavg");
    let load = load.split(' ').take(2).collect::<Vec<_>>().join(", ");
    let disk = rustix::fs::statvfs(folder).map_or(0.0, |disk| (disk.f_bavail * disk.f_frsize) as f64);
    format!(
        "load {load} (1 and 5 minutes) on {} cores, {:.1} GiB of memory and {:.1} GiB of the disk at {} free",
        cores(),
        gib(&read("/proc/meminfo"), "MemAvailable"),
        disk / (1_u64 << 30) as f64,
        folder.display()
    )
}

/// Returns the revision, and whether the checkout differs from it. Call it before a long run, because the checkout may change meanwhile.
pub(crate) fn revision(layout: &Layout) -> String {
    let git = |args: &[&str]| child::output(Command::new("git").args(args).current_dir(&layout.root));
    let Ok(revision) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown (no git)".to_owned();
    };
    // This program writes these documents; they do not affect the code.
    match git(&[
        "status",
        "--porcelain",
        "--untracked-files=no",
        "--",
        ":!docs/benchmarks.md",
        ":!docs/soak.md",
        ":!docs/faults.md",
        ":!docs/lab.md",
        ":!docs/recipes.md",
        ":!docs/upgrade.md",
        ":!docs/hardware.md",
    ]) {
        Ok(changes) if changes.is_empty() => revision,
        _ => format!("{revision}-dirty"),
    }
}

/// Returns where a result comes from, for a document: command, revision, date and machine.
pub(crate) fn origin(command: &str, revision: &str) -> String {
    format!("`{command}` at {revision} on {}, {}", today(), describe())
}

/// Returns the CPU seconds that all processes of the machine have used so far.
pub(crate) fn cpu_s() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    // user nice system idle iowait irq softirq steal, in ticks; guests are in user already.
    let ticks: Vec<f64> = stat
        .lines()
        .next()?
        .split_whitespace()
        .skip(1)
        .map_while(|field| field.parse().ok())
        .collect();
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some((ticks.iter().take(8).sum::<f64>() - idle) / process::USER_HZ)
}

/// Returns the number of cores.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the current time in milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Returns the date, UTC.
pub(crate) fn today() -> String {
    child::output(Command::new("date").args(["-u", "+%Y-%m-%d"]))
        .unwrap_or_else(|_| "an unknown day".to_owned())
}

/// Returns a line of /proc/meminfo, which is in KiB.
fn gib(meminfo: &str, name: &str) -> f64 {
    let kib = field(meminfo, name).and_then(|kib| kib.split(' ').next()?.parse::<f64>().ok());
    kib.unwrap_or_default() / (1_024.0 * 1_024.0)
}

fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_can_be_described() {
        assert!(describe().contains("Linux") && !describe().contains(" 0 GiB"));
        let state = state(&std::env::temp_dir());
        assert!(
            !state.contains(" 0.0 GiB of memory") && !state.contains("load  ("),
            "{state}"
        );
        assert_eq!(field("a: 1 kB\nb: 2\n", "b"), Some("2".to_owned()));
        assert!(cpu_s().is_some_and(|seconds| seconds > 0.0));
        assert_eq!(today().len(), "2000-01-01".len());
    }
}
