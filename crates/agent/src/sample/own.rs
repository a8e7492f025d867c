//! The agent's own figures: what it costs, what waits, what was lost.

use std::sync::Arc;

use super::nvml::meter::Meter;
use super::schedule::Tick;
use super::series::Family;
use crate::sample::Samples;
use crate::uplink::spool::Spool;

/// Reads the agent itself.
pub(crate) struct OwnReader {
    meter: Arc<Meter>,
    spool: Option<Spool>,
    samples: Samples,
    family: Family,
}

impl OwnReader {
    /// A reader that has read nothing yet.
    pub(crate) fn new(meter: Arc<Meter>, spool: Option<Spool>, samples: Samples) -> Self {
        Self {
            meter,
            spool,
            samples,
            family: Family::default(),
        }
    }

    /// Reads once.
    pub(crate) fn read(&mut self, tick: &Tick) {
        let out = &mut self.family.at(&self.samples, tick.at_ms);
        out.put_by("agent_info", ("version", env!("CARGO_PKG_VERSION")), 1.0);
        let (calls, took) = self.meter.totals();
        out.put("lockstep_agent_nvml_calls_total", calls as f64);
        out.put("lockstep_agent_nvml_call_seconds_total", took.as_secs_f64());
        let dropped = self.spool.as_ref().map_or(0, Spool::dropped_samples) + self.samples.dropped();
        out.put("lockstep_agent_spool_dropped_samples_total", dropped as f64);
        if let Some(spool) = &self.spool {
            out.put("lockstep_agent_spool_bytes", spool.waiting_bytes() as f64);
        }
        if let Some(bytes) = resident_bytes() {
            out.put("lockstep_agent_memory_bytes", bytes);
        }
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        out.put(
            "lockstep_agent_cpu_seconds_total",
            cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
        );
    }
}

/// `VmRSS` of `/proc/self/status`; our own, so never under another root.
fn resident_bytes() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(kib.trim().strip_suffix(" kB")?.parse::<f64>().ok()? * 1024.0)
}
