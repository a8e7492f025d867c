//! The agent's own metrics: its costs, what waits to be sent, and what was lost.

use std::fs::File;
use std::io::Read as _;
use std::sync::Arc;

use super::memory_limit::{MemoryLimit, MemoryMonitor};
use super::nvml::meter::Meter;
use super::schedule::Tick;
use super::series::{Family, series};
use crate::sample::Samples;
use crate::uplink::spool::Spool;

/// Reads the agent's own metrics.
pub(crate) struct AgentMetricsReader {
    meter: Arc<Meter>,
    spool: Option<Spool>,
    samples: Samples,
    memory_limit: Arc<MemoryLimit>,
    memory_monitor: MemoryMonitor,
    family: Family,
}

impl AgentMetricsReader {
    /// Creates a reader.
    pub(crate) fn new(
        meter: Arc<Meter>,
        spool: Option<Spool>,
        samples: Samples,
        memory_limit: Arc<MemoryLimit>,
    ) -> Self {
        Self {
            meter,
            spool,
            samples,
            memory_limit,
            memory_monitor: MemoryMonitor::default(),
            family: Family::default(),
        }
    }

    /// Reads once. `late` is the number of rounds that readers skipped because they were busy. `simulated` is the specification of
    /// simulated GPUs; it becomes a series, so that users of the metrics see it.
    pub(crate) fn read(&mut self, tick: &Tick, late: u64, simulated: Option<&str>) {
        if let Some(spec) = simulated {
            let spec_series = series("lockstep_agent_simulated", &[("spec", spec)]);
            self.samples.push(&spec_series, tick.at_ms, 1.0);
        }
        let out = &mut self.family.at(&self.samples, tick.at_ms);
        out.put_by("agent_info", ("version", env!("CARGO_PKG_VERSION")), 1.0);
        let (calls, took) = self.meter.totals();
        out.put("lockstep_agent_nvml_calls_total", calls as f64);
        out.put("lockstep_agent_nvml_call_seconds_total", took.as_secs_f64());
        out.put("lockstep_agent_samples_total", self.samples.taken() as f64);
        let dropped = self.spool.as_ref().map_or(0, Spool::dropped_samples) + self.samples.dropped();
        out.put("lockstep_agent_spool_dropped_samples_total", dropped as f64);
        if let Some(spool) = &self.spool {
            out.put("lockstep_agent_spool_bytes", spool.waiting_bytes() as f64);
        }
        if tick.slow
            && let Some(p99) = self.meter.take_p99()
        {
            out.put("lockstep_agent_nvml_call_p99_seconds", p99.as_secs_f64());
        }
        out.put("lockstep_agent_rounds_late_total", late as f64);
        out.put("lockstep_agent_series", self.samples.series_count() as f64);
        if let Some(memory) = Memory::read() {
            out.put("lockstep_agent_memory_bytes", memory.resident as f64);
            self.memory_monitor.check(memory.own, &self.memory_limit);
        }
        out.put("lockstep_agent_readings_cut", self.memory_limit.step());
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        out.put(
            "lockstep_agent_cpu_seconds_total",
            cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
        );
    }
}

/// Enough for the seven numbers of `/proc/self/statm`.
const STATM_BYTES: usize = 128;

/// The memory of the process, in bytes.
struct Memory {
    resident: u64,
    /// The memory that the process allocated. Pages of the program and of the driver's library are shared, and their growth is not the
    /// agent's.
    own: u64,
}

impl Memory {
    /// Reads `/proc/self/statm`. It is about this process, so it is never under another root.
    fn read() -> Option<Self> {
        let mut text = [0; STATM_BYTES];
        let length = File::open("/proc/self/statm").ok()?.read(&mut text).ok()?;
        let mut pages = std::str::from_utf8(&text[..length])
            .ok()?
            .split_ascii_whitespace()
            .map(|pages| pages.parse::<u64>().ok());
        let mut next = || pages.next().flatten();
        let (_size, resident, shared) = (next()?, next()?, next()?);
        let page = rustix::param::page_size() as u64;
        Some(Self {
            resident: resident * page,
            own: resident.saturating_sub(shared) * page,
        })
    }
}
