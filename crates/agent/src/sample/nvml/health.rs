//! The slower tiers: temperatures, limits, memory errors, the state of the links, and the GPU's fabric.

use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, TemperatureSensor, TemperatureThreshold,
};

use super::fields::{self, ECC_FIELD, Numbering, POWER_LIMIT_FIELD, REPLAYS_FIELD, ROWS_FIELD, Tier};
use super::links::pcie_bytes_per_second;
use super::nvlink::Nvlinks;
use super::queries::{GpuLost, GpuQueries};
use super::raw;
use super::traffic::Limits;
use crate::sample::series::Writer;

/// The unit of the chip with an uncorrectable error in its own memory, in NVML's order.
const SRAM_UNITS: [&str; 5] = ["l2", "sm", "pcie", "microcontroller", "other"];

/// The temperatures at which the GPU reacts.
const THRESHOLDS: [(&str, &str, TemperatureThreshold); 4] = [
    ("shutdown threshold", "shutdown", TemperatureThreshold::Shutdown),
    ("slowdown threshold", "slowdown", TemperatureThreshold::Slowdown),
    ("memory threshold", "memory_max", TemperatureThreshold::MemoryMax),
    ("gpu threshold", "gpu_max", TemperatureThreshold::GpuMax),
];

/// The slower tiers of one GPU.
pub(super) struct Health<'a> {
    slow: Tier<{ fields::SLOW.len() }>,
    rare: Tier<{ fields::RARE.len() }>,
    nvlinks: Nvlinks<'a>,
    limits: Limits,
}

impl<'a> Health<'a> {
    /// The state before the first reading.
    pub(super) fn new(numbering: Numbering) -> Self {
        Self {
            slow: Tier::new("slow fields", &fields::SLOW, numbering),
            rare: Tier::new("rare fields", &fields::RARE, numbering),
            nvlinks: Nvlinks::default(),
            limits: Limits::default(),
        }
    }

    /// Returns the bandwidth limits of the links, as last read.
    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// Reads the values that are due every ten seconds.
    pub(super) fn read_slow(
        &mut self,
        queries: &mut GpuQueries<'a>,
        out: &mut Writer<'_>,
    ) -> Result<(), GpuLost> {
        self.slow.read(queries, out)?;
        read_what_fields_lack(queries, out)?;
        if let Some(celsius) = queries.query("temperature", |gpu| gpu.temperature(TemperatureSensor::Gpu))? {
            out.put("gpu_temperature_celsius", celsius);
        }
        if let Some(megahertz) = queries.query("memory clock", |gpu| gpu.clock_info(Clock::Memory))? {
            out.put("gpu_memory_clock_hertz", f64::from(megahertz) * 1e6);
        }
        if let Some(video) = queries.query("encoder", |gpu| gpu.encoder_utilization())? {
            let ratio = f64::from(video.utilization) / 100.0;
            out.put("gpu_encoder_utilization_ratio", ratio);
        }
        if let Some(video) = queries.query("decoder", |gpu| gpu.decoder_utilization())? {
            let ratio = f64::from(video.utilization) / 100.0;
            out.put("gpu_decoder_utilization_ratio", ratio);
        }
        if let Some(generation) = queries.query("pcie gen", |gpu| gpu.current_pcie_link_gen())? {
            out.put("gpu_pcie_generation", generation);
        }
        if let Some(width) = queries.query("pcie width", |gpu| gpu.current_pcie_link_width())? {
            out.put("gpu_pcie_width", width);
        }
        self.limits.nvlink = self.nvlinks.read(queries, out)?;
        Ok(())
    }

    /// Reads the values that are due every minute.
    pub(super) fn read_rare(
        &mut self,
        queries: &mut GpuQueries<'_>,
        out: &mut Writer<'_>,
    ) -> Result<(), GpuLost> {
        self.rare.read(queries, out)?;
        let generation = queries.query("pcie gen max", |gpu| gpu.max_pcie_link_gen())?;
        let width = queries.query("pcie width max", |gpu| gpu.max_pcie_link_width())?;
        if let (Some(generation), Some(width)) = (generation, width) {
            out.put("gpu_pcie_generation_max", generation);
            out.put("gpu_pcie_width_max", width);
            self.limits.pcie = pcie_bytes_per_second(generation, width);
        }
        if let Some(megahertz) = queries.query("sm clock max", |gpu| gpu.max_clock_info(Clock::SM))? {
            out.put("gpu_sm_clock_max_hertz", f64::from(megahertz) * 1e6);
        }
        for (name, label, threshold) in THRESHOLDS {
            if let Some(celsius) = queries.query(name, |gpu| gpu.temperature_threshold(threshold))? {
                out.put_by("gpu_temperature_limit_celsius", ("type", label), celsius);
            }
        }
        read_sram(queries, out)
    }
}

/// Reads values with calls if the driver has no field for them.
fn read_what_fields_lack(queries: &mut GpuQueries<'_>, out: &mut Writer<'_>) -> Result<(), GpuLost> {
    if queries.is_refused(POWER_LIMIT_FIELD)
        && let Some(milliwatts) = queries.query("power limit", |gpu| gpu.enforced_power_limit())?
    {
        out.put("gpu_power_limit_watts", f64::from(milliwatts) / 1e3);
    }
    if queries.is_refused(REPLAYS_FIELD)
        && let Some(replays) = queries.query("pcie replays", |gpu| gpu.pcie_replay_counter())?
    {
        out.put("gpu_pcie_replays_total", replays);
    }
    if queries.is_refused(ECC_FIELD) {
        let kinds = [
            ("corrected", MemoryError::Corrected),
            ("uncorrected", MemoryError::Uncorrected),
        ];
        for (kind, error) in kinds {
            let count = queries.query(kind, |gpu| gpu.total_ecc_errors(error, EccCounter::Volatile))?;
            if let Some(count) = count {
                out.put_by("gpu_ecc_errors_total", ("type", kind), count as f64);
            }
        }
    }
    if queries.is_refused(ROWS_FIELD)
        && let Some(rows) = queries.query("remapped rows", raw::remapped_rows)?
    {
        out.put_by("gpu_remapped_rows", ("type", "corrected"), rows.corrected);
        out.put_by("gpu_remapped_rows", ("type", "uncorrected"), rows.uncorrected);
        out.put_by("gpu_remapped_rows", ("type", "pending"), rows.pending);
        out.put_by("gpu_remapped_rows", ("type", "failed"), rows.failed);
    }
    Ok(())
}

fn read_sram(queries: &mut GpuQueries<'_>, out: &mut Writer<'_>) -> Result<(), GpuLost> {
    let Some(sram) = queries.query("sram errors", raw::sram_errors)? else {
        return Ok(());
    };
    let kinds = [
        ("corrected", sram.corrected),
        ("parity", sram.parity),
        ("sec_ded", sram.sec_ded),
    ];
    for (kind, count) in kinds {
        out.put_by("gpu_sram_ecc_errors_total", ("type", kind), count as f64);
    }
    for (unit, count) in SRAM_UNITS.into_iter().zip(sram.lifetime_by_unit) {
        out.put_by(
            "gpu_sram_uncorrected_lifetime_errors_total",
            ("unit", unit),
            count as f64,
        );
    }
    out.put("gpu_sram_threshold_exceeded", sram.threshold_exceeded);
    Ok(())
}
