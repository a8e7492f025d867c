//! What is read of a GPU that answers, tier by tier.

use domain::series::Labels;
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};

use super::asker::{Asker, GpuLost};
use super::processes::{Naming, Processes};
use super::raw;
use super::traffic::Traffic;
use crate::sample::Samples;
use crate::sample::schedule::Tick;
use crate::sample::series::{Family, Writer};

/// NVML's clocks event reasons that hold clocks down, in our words. Idle and "as asked" are no throttling.
const THROTTLE_REASONS: [(u64, &str); 7] = [
    (0x04, "sw_power_cap"),
    (0x08, "hw_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "sw_thermal_slowdown"),
    (0x40, "hw_thermal_slowdown"),
    (0x80, "hw_power_brake"),
    (0x100, "display_clock_setting"),
];

/// All that is known of a GPU that answers.
pub(super) struct Readings<'a> {
    asker: Asker<'a>,
    family: Family,
    traffic: Traffic<'a>,
    processes: Processes,
    samples: &'a Samples,
    info: Option<Labels>,
}

impl<'a> Readings<'a> {
    /// Nothing read yet.
    pub(super) fn new(asker: Asker<'a>, samples: &'a Samples) -> Self {
        let gpu = asker.index;
        Self {
            asker,
            family: Family::new(vec![("gpu", gpu.to_string())]),
            traffic: Traffic::default(),
            processes: Processes::new(gpu),
            samples,
            info: None,
        }
    }

    /// The device that is read.
    pub(super) fn device(&self) -> &Device<'a> {
        &self.asker.device
    }

    /// Reads what is due.
    pub(super) fn read(&mut self, tick: &Tick, naming: &mut Naming<'_>) -> Result<(), GpuLost> {
        let out = &mut self.family.at(self.samples, tick.at_ms);
        read_core(&mut self.asker, out)?;
        if tick.slow {
            // Limits first: utilization is measured against them.
            self.traffic.read_limits(&mut self.asker, out)?;
            read_health(&mut self.asker, out)?;
        }
        self.traffic.read(&mut self.asker, out)?;
        if tick.slow {
            self.read_processes(tick, naming)?;
            self.put_info(tick)?;
        }
        self.asker.end_round()
    }

    fn read_processes(&mut self, tick: &Tick, naming: &mut Naming<'_>) -> Result<(), GpuLost> {
        if let Some(running) = self.asker.ask("processes", raw::compute_processes)? {
            self.family
                .at(self.samples, tick.at_ms)
                .put("gpu_processes", running.len() as f64);
            self.processes.show(running, naming, self.samples, tick.at_ms);
        }
        Ok(())
    }

    fn put_info(&mut self, tick: &Tick) -> Result<(), GpuLost> {
        if self.info.is_none() {
            self.info = info(&mut self.asker)?;
        }
        if let Some(info) = &self.info {
            self.samples.push(info, tick.at_ms, 1.0);
        }
        Ok(())
    }
}

fn info(asker: &mut Asker<'_>) -> Result<Option<Labels>, GpuLost> {
    let uuid = asker.ask("uuid", |gpu| gpu.uuid())?.unwrap_or_default();
    let name = asker.ask("name", |gpu| gpu.name())?.unwrap_or_default();
    let pci = asker
        .ask("pci", |gpu| gpu.pci_info())?
        .map(|pci| pci.bus_id)
        .unwrap_or_default();
    let driver = asker
        .ask("driver", |gpu| gpu.nvml().sys_driver_version())?
        .unwrap_or_default();
    let index = asker.index.to_string();
    let labels = [
        ("gpu", index.as_str()),
        ("uuid", &uuid),
        ("name", &name),
        ("pci_bus_id", &pci),
        ("driver_version", &driver),
    ];
    Ok((!uuid.is_empty()).then(|| crate::sample::series::series("gpu_info", &labels)))
}

fn read_core(asker: &mut Asker<'_>, out: &mut Writer<'_>) -> Result<(), GpuLost> {
    if let Some(memory) = asker.ask("memory", |gpu| gpu.memory_info())? {
        out.put("gpu_memory_used_bytes", memory.used as f64);
        out.put("gpu_memory_total_bytes", memory.total as f64);
    }
    if let Some(busy) = asker.ask("utilization", |gpu| gpu.utilization_rates())? {
        out.put("gpu_utilization_ratio", f64::from(busy.gpu) / 100.0);
        out.put("gpu_memory_utilization_ratio", f64::from(busy.memory) / 100.0);
    }
    if let Some(megahertz) = asker.ask("sm clock", |gpu| gpu.clock_info(Clock::SM))? {
        out.put("gpu_sm_clock_hertz", f64::from(megahertz) * 1e6);
    }
    if let Some(megahertz) = asker.ask("memory clock", |gpu| gpu.clock_info(Clock::Memory))? {
        out.put("gpu_memory_clock_hertz", f64::from(megahertz) * 1e6);
    }
    if let Some(milliwatts) = asker.ask("power", |gpu| gpu.power_usage())? {
        out.put("gpu_power_watts", f64::from(milliwatts) / 1e3);
    }
    if let Some(reasons) = asker.ask("throttle", raw::clocks_event_reasons)? {
        for (bit, reason) in THROTTLE_REASONS {
            out.put_by("gpu_throttle", ("reason", reason), reasons & bit != 0);
        }
    }
    Ok(())
}

fn read_health(asker: &mut Asker<'_>, out: &mut Writer<'_>) -> Result<(), GpuLost> {
    if let Some(celsius) = asker.ask("temperature", |gpu| gpu.temperature(TemperatureSensor::Gpu))? {
        out.put("gpu_temperature_celsius", celsius);
    }
    if let Some(milliwatts) = asker.ask("power limit", |gpu| gpu.enforced_power_limit())? {
        out.put("gpu_power_limit_watts", f64::from(milliwatts) / 1e3);
    }
    if let Some(megahertz) = asker.ask("sm clock max", |gpu| gpu.max_clock_info(Clock::SM))? {
        out.put("gpu_sm_clock_max_hertz", f64::from(megahertz) * 1e6);
    }
    let ecc = [
        ("corrected", MemoryError::Corrected),
        ("uncorrected", MemoryError::Uncorrected),
    ];
    for (kind, error) in ecc {
        let count = asker.ask(kind, |gpu| gpu.total_ecc_errors(error, EccCounter::Volatile))?;
        if let Some(count) = count {
            out.put_by("gpu_ecc_errors_total", ("type", kind), count as f64);
        }
    }
    if let Some(rows) = asker.ask("remapped rows", raw::remapped_rows)? {
        out.put_by("gpu_remapped_rows", ("type", "corrected"), rows.corrected);
        out.put_by("gpu_remapped_rows", ("type", "uncorrected"), rows.uncorrected);
        out.put_by("gpu_remapped_rows", ("type", "pending"), rows.pending);
        out.put_by("gpu_remapped_rows", ("type", "failed"), rows.failed);
    }
    if let Some(replays) = asker.ask("pcie replays", |gpu| gpu.pcie_replay_counter())? {
        out.put("gpu_pcie_replays_total", replays);
    }
    Ok(())
}
