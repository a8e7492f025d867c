//! The cost of one program: its CPU time and memory, and the number of values that it read.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::measure::background_load::BackgroundLoad;
use crate::measure::process::{self, Threads};
use crate::measure::server::Server;

/// Prometheus' default: four times per minute.
pub(super) const SCRAPE_EVERY: Duration = Duration::from_secs(15);
/// Lockstep's own count of samples: it does not read everything every second.
const READ: &str = "lockstep_agent_samples_total";

/// The results of one program.
#[derive(Debug, Clone, Default)]
pub(super) struct Cost {
    /// Values on its page.
    pub(super) values: f64,
    /// Values on its page about GPUs and their links.
    pub(super) gpu_values: f64,
    /// Values read per second; for other programs, all values on the page.
    pub(super) read: f64,
    /// CPU seconds per second.
    pub(super) cpu: f64,
    /// Peak resident memory.
    pub(super) resident_mib: f64,
    /// The part of it that the process itself allocated, at the end.
    pub(super) own_mib: f64,
    pub(super) threads: f64,
    /// System calls per second.
    pub(super) calls: f64,
    /// Load of the rest of the machine meanwhile, as a share of all cores.
    pub(super) background_share: Option<f64>,
}

impl Cost {
    /// Lets the program settle, then measures it.
    pub(super) fn measure(server: &mut Server, settle: Duration, measured: Duration) -> Result<Self> {
        let pid = server.pid()?;
        thread::sleep(settle);
        let first = Page::of(server)?;
        process::reset_peak(pid)?;
        let (load, begin, before) = (BackgroundLoad::begin(pid), Instant::now(), Threads::now(pid)?);
        let mut last = Page::of(server)?;
        while begin.elapsed() < measured {
            thread::sleep(SCRAPE_EVERY.min(measured.saturating_sub(begin.elapsed())));
            server.check()?;
            last = Page::of(server)?;
        }
        let seconds = begin.elapsed().as_secs_f64();
        let read = match (first.read, last.read) {
            (Some(before), Some(after)) => (after - before) / seconds,
            _ => last.values,
        };
        Ok(Self {
            values: last.values,
            gpu_values: last.gpu_values,
            read,
            cpu: Threads::now(pid)?.since(&before) / seconds,
            resident_mib: process::peak_mib(pid)?,
            own_mib: process::own_mib(pid)?,
            threads: process::threads(pid)? as f64,
            calls: 0.0,
            background_share: load.share(),
        })
    }

    /// Returns CPU microseconds per value read.
    pub(super) fn cpu_us_a_value_read(&self) -> f64 {
        self.cpu * 1e6 / self.read
    }
}

/// The contents of a metrics page.
#[derive(Debug, PartialEq)]
struct Page {
    values: f64,
    gpu_values: f64,
    read: Option<f64>,
}

impl Page {
    fn of(server: &Server) -> Result<Self> {
        let text = server.address().get("/metrics")?.success("/metrics")?;
        let page = Self::parse(&text);
        if page.gpu_values == 0.0 {
            bail!(
                "{} shows no GPU: it does not read the simulated library",
                server.step()
            );
        }
        Ok(page)
    }

    fn parse(text: &str) -> Self {
        let lines = || {
            text.lines()
                .filter(|line| !line.is_empty() && !line.starts_with('#'))
        };
        let is_gpu = |line: &&str| line.contains("gpu");
        let read = lines().find_map(|line| line.strip_prefix(READ)?.rsplit(' ').next()?.parse().ok());
        Self {
            values: lines().count() as f64,
            gpu_values: lines().filter(is_gpu).count() as f64,
            read,
        }
    }
}

/// Returns the total of `strace -c`, in calls.
pub(super) fn total_calls(summary: &str) -> Result<f64> {
    // % time, seconds, usecs/call, calls, [errors,] the name.
    let total = summary.lines().find(|line| line.trim_end().ends_with(" total"));
    let calls = total.and_then(|line| line.split_whitespace().nth(3)?.parse().ok());
    calls.context("strace printed no total")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn values_are_counted_and_what_is_about_gpus() {
        let page = Page::parse(
            "# HELP gpu_up x\n# TYPE gpu_up gauge\ngpu_up{gpu=\"0\"} 1\nnode_load1{node=\"n\"} 2\n\nlockstep_agent_samples_total{node=\"n\"} 12000\n",
        );
        let expected = Page {
            values: 3.0,
            gpu_values: 1.0,
            read: Some(12_000.0),
        };
        assert_eq!(page, expected);
    }

    #[test]
    fn the_total_of_a_trace_is_read_with_and_without_errors() {
        let head = "% time     seconds  usecs/call     calls    errors syscall\n";
        let with = format!(
            "{head} 93.40    0.008390          14       570        12 futex\n100.00    0.008983           9       912        14 total\n"
        );
        let without = format!("{head}100.00    0.008983           9       912           total\n");
        assert_eq!(total_calls(&with).unwrap(), 912.0);
        assert_eq!(total_calls(&without).unwrap(), 912.0);
        assert!(total_calls("").is_err());
    }
}
