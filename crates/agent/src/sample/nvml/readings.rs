//! The values that are read of a GPU that answers, by tier.
//!
//! ```text
//! 1 s    memory, sample rings, SM clock, throttle reasons, core fields, performance counters (also of MIG instances)
//! 10 s   slow fields, temperature, PCIe, each NVLink, processes
//! 60 s   limits, errors in SRAM, fabric, MIG instances
//! ```
//! The first reading covers every tier: a GPU that came back may be a different one.

use domain::series::Labels;
use domain::topology::MigInstance;
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::Clock;

use super::fabric::Fabric;
use super::fields::{Numbering, POWER_FIELD};
use super::health::Health;
use super::mig::MigInstances;
use super::processes::{Naming, Processes};
use super::queries::{GpuLost, GpuQueries};
use super::raw;
use super::shares::Shares;
use super::traffic::Traffic;
use super::utilization::Utilization;
use crate::sample::Samples;
use crate::sample::schedule::Tick;
use crate::sample::series::{Family, Writer};

/// NVML's reasons for reduced clocks, and their label values. An idle GPU and requested clocks are not throttling.
const THROTTLE_REASONS: [(u64, &str); 7] = [
    (0x04, "sw_power_cap"),
    (0x08, "hw_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "sw_thermal_slowdown"),
    (0x40, "hw_thermal_slowdown"),
    (0x80, "hw_power_brake"),
    (0x100, "display_clock_setting"),
];

/// The readers of a GPU that answers, and their state.
pub(super) struct Readings<'a> {
    pub(super) queries: GpuQueries<'a>,
    family: Family,
    utilization: Utilization,
    traffic: Traffic<'a>,
    health: Health<'a>,
    fabric: Fabric,
    mig: MigInstances<'a>,
    processes: Processes,
    shares: Shares,
    samples: &'a Samples,
    info: Option<Labels>,
    fresh: bool,
}

impl<'a> Readings<'a> {
    /// The state before the first reading.
    pub(super) fn new(queries: GpuQueries<'a>, numbering: Numbering, samples: &'a Samples) -> Self {
        let gpu = queries.index;
        Self {
            queries,
            family: Family::new(vec![("gpu", gpu.to_string())]),
            utilization: Utilization::default(),
            traffic: Traffic::new(numbering),
            health: Health::new(numbering),
            fabric: Fabric::default(),
            mig: MigInstances::default(),
            processes: Processes::new(gpu),
            shares: Shares::default(),
            samples,
            info: None,
            fresh: true,
        }
    }

    /// Returns the device that is read.
    pub(super) fn device(&self) -> &Device<'a> {
        &self.queries.device
    }

    /// Returns the queries that this GPU, its library or this user does not support.
    pub(super) fn unanswered(&self) -> Vec<String> {
        self.queries.refused().map(str::to_owned).collect()
    }

    /// Returns the MIG instances of the GPU.
    pub(super) fn instances(&self) -> Vec<MigInstance> {
        self.mig.describe().collect()
    }

    /// Reads what is due. If `detail` is false, values that only help to look closer are skipped to save memory.
    pub(super) fn read(&mut self, tick: &Tick, detail: bool, naming: &mut Naming<'_>) -> Result<(), GpuLost> {
        let first = std::mem::take(&mut self.fresh);
        let (slow, rare) = (tick.slow || first, tick.topology || first);
        self.read_gpu(tick, slow, rare)?;
        if rare {
            self.fabric
                .read(&mut self.queries, &mut self.family, self.samples, tick.at_ms)?;
            self.mig.find(&mut self.queries, self.samples, tick.at_ms)?;
        }
        self.mig.read_core(&mut self.queries, self.samples, tick.at_ms)?;
        if slow {
            self.mig.read_slow(&mut self.queries, self.samples, tick.at_ms)?;
            if detail {
                self.read_processes(tick, naming)?;
            }
            self.put_info(tick)?;
        }
        self.queries.end_round()
    }

    fn read_gpu(&mut self, tick: &Tick, slow: bool, rare: bool) -> Result<(), GpuLost> {
        let out = &mut self.family.at(self.samples, tick.at_ms);
        read_core(&mut self.queries, out)?;
        self.utilization.read(&mut self.queries, out)?;
        // Read the limits first: link utilization is computed from them.
        if rare {
            self.health.read_rare(&mut self.queries, out)?;
        }
        if slow {
            self.health.read_slow(&mut self.queries, out)?;
        }
        self.traffic.read(&mut self.queries, self.health.limits(), out)?;
        if self.queries.is_refused(POWER_FIELD)
            && let Some(milliwatts) = self.queries.query("power", |gpu| gpu.power_usage())?
        {
            out.put("gpu_power_watts", f64::from(milliwatts) / 1e3);
        }
        Ok(())
    }

    fn read_processes(&mut self, tick: &Tick, naming: &mut Naming<'_>) -> Result<(), GpuLost> {
        if let Some(running) = self.queries.query("processes", raw::compute_processes)? {
            self.family
                .at(self.samples, tick.at_ms)
                .put("gpu_processes", running.len() as f64);
            self.processes.show(running, naming, self.samples, tick.at_ms);
        }
        self.shares.read(&mut self.queries, self.samples, tick.at_ms)
    }

    fn put_info(&mut self, tick: &Tick) -> Result<(), GpuLost> {
        if self.info.is_none() {
            self.info = info(&mut self.queries)?;
        }
        if let Some(info) = &self.info {
            self.samples.push(info, tick.at_ms, 1.0);
        }
        Ok(())
    }
}

fn info(queries: &mut GpuQueries<'_>) -> Result<Option<Labels>, GpuLost> {
    let uuid = queries.query("uuid", |gpu| gpu.uuid())?.unwrap_or_default();
    let name = queries.query("name", |gpu| gpu.name())?.unwrap_or_default();
    let pci = queries
        .query("pci", |gpu| gpu.pci_info())?
        .map(|pci| pci.bus_id)
        .unwrap_or_default();
    let driver = queries
        .query("driver", |gpu| gpu.nvml().sys_driver_version())?
        .unwrap_or_default();
    let index = queries.index.to_string();
    let labels = [
        ("gpu", index.as_str()),
        ("uuid", &uuid),
        ("name", &name),
        ("pci_bus_id", &pci),
        ("driver_version", &driver),
    ];
    Ok((!uuid.is_empty()).then(|| crate::sample::series::series("gpu_info", &labels)))
}

fn read_core(queries: &mut GpuQueries<'_>, out: &mut Writer<'_>) -> Result<(), GpuLost> {
    if let Some(memory) = queries.query("memory", raw::memory)? {
        out.put("gpu_memory_used_bytes", memory.used as f64);
        out.put("gpu_memory_total_bytes", memory.total as f64);
        if let Some(reserved) = memory.reserved {
            out.put("gpu_memory_reserved_bytes", reserved as f64);
        }
    }
    if let Some(megahertz) = queries.query("sm clock", |gpu| gpu.clock_info(Clock::SM))? {
        out.put("gpu_sm_clock_hertz", f64::from(megahertz) * 1e6);
    }
    if let Some(reasons) = queries.query("throttle", raw::clocks_event_reasons)? {
        for (bit, reason) in THROTTLE_REASONS {
            out.put_by("gpu_throttle", ("reason", reason), reasons & bit != 0);
        }
    }
    Ok(())
}
