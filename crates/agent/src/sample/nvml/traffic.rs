//! What goes over a GPU's links and what its performance counters say, by fields where the wrapper has no call.

use std::time::{Duration, Instant};

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::asker::{Asker, GpuLost};
use super::links::{Flow, Pair, pcie_bytes_per_second};
use super::raw::{self, ALL_LINKS, Gpm};
use crate::sample::series::Writer;

// === Fields ===

/// A numbered field, where it is asked and where it goes.
struct Field {
    name: &'static str,
    id: u32,
    scope: u32,
}

const fn field(name: &'static str, id: u32, scope: u32) -> Field {
    Field { name, id, scope }
}

/// Asked together every second.
const FAST_FIELDS: [Field; 5] = [
    field("energy", 83, 0),
    field("nvlink tx", 138, ALL_LINKS),
    field("nvlink rx", 139, ALL_LINKS),
    field("pcie tx", 197, 0),
    field("pcie rx", 198, 0),
];

/// Asked together in the slow tier: memory temperature, and NVLink errors summed over links.
const SLOW_FIELDS: [Field; 5] = [
    field("memory temperature", 82, 0),
    field("crc_flit", 38, 0),
    field("crc_data", 45, 0),
    field("replay", 52, 0),
    field("recovery", 59, 0),
];

/// `NVML_FI_DEV_NVLINK_GET_SPEED`: megabytes a second of one link in one direction.
const LINK_SPEED: u32 = 164;
/// `NVML_FI_DEV_NVLINK_LINK_COUNT`.
const LINK_COUNT: u32 = 91;

/// Reads fields that this GPU has; the others are `None`.
fn read_fields<const N: usize>(
    asker: &mut Asker<'_>,
    fields: &[Field; N],
) -> Result<[Option<f64>; N], GpuLost> {
    let asked: Vec<usize> = (0..N).filter(|&n| !asker.is_refused(fields[n].name)).collect();
    let mut values = [None; N];
    if asked.is_empty() {
        return Ok(values);
    }
    let ids: Vec<_> = asked.iter().map(|&n| (fields[n].id, fields[n].scope)).collect();
    let answers = asker
        .ask("fields", |gpu| raw::fields(gpu, &ids))?
        .unwrap_or_default();
    for (n, answer) in asked.into_iter().zip(answers) {
        values[n] = asker.judge(fields[n].name, answer)?;
    }
    Ok(values)
}

// === Traffic ===

/// GPM metric ids: SM active, occupancy, tensor, DRAM in percent; PCIe and NVLink in MiB/s.
const GPM_IDS: [u32; 8] = [2, 3, 5, 10, 20, 21, 61, 60];
const GPM_RATIOS: [&str; 4] = [
    "gpu_sm_active_ratio",
    "gpu_sm_occupancy_ratio",
    "gpu_tensor_active_ratio",
    "gpu_dram_active_ratio",
];
const MIB: f64 = 1_048_576.0;

/// What goes over the links, and what the performance counters say.
#[derive(Default)]
pub(super) struct Traffic<'a> {
    gpm: Option<Gpm<'a>>,
    nvlink: Flow,
    pcie: Flow,
    nvlink_max: Option<f64>,
    pcie_max: Option<f64>,
}

impl<'a> Traffic<'a> {
    /// What went over the links since the last time.
    pub(super) fn read(&mut self, asker: &mut Asker<'a>, out: &mut Writer<'_>) -> Result<(), GpuLost> {
        let activity = self.read_gpm(asker, out)?;
        let now = Instant::now();
        let [energy, nvlink_tx, nvlink_rx, pcie_tx, pcie_rx] = read_fields(asker, &FAST_FIELDS)?;
        if let Some(millijoules) = energy {
            out.put("gpu_energy_joules_total", millijoules / 1e3);
        }
        // The counters of NVLink are exact, those of PCIe wrap within a tenth of a second: there GPM comes first.
        let nvlink = match (nvlink_tx, nvlink_rx, &activity) {
            (Some(tx), Some(rx), _) => self.nvlink.counted(now, [tx * 1024.0, rx * 1024.0]),
            (_, _, Some(activity)) => activity.add_to(&mut self.nvlink, activity.nvlink),
            _ => None,
        };
        let pcie = match (activity, pcie_tx, pcie_rx) {
            (Some(activity), None, None) => activity.add_to(&mut self.pcie, activity.pcie),
            (_, Some(tx), Some(rx)) => self.pcie.counted(now, [tx, rx]),
            _ => None,
        };
        put_link(out, "nvlink", &self.nvlink, nvlink, self.nvlink_max);
        put_link(out, "pcie", &self.pcie, pcie, self.pcie_max);
        Ok(())
    }

    fn read_gpm(&mut self, asker: &mut Asker<'a>, out: &mut Writer<'_>) -> Result<Option<Activity>, GpuLost> {
        let Some(gpm) = &mut self.gpm else {
            self.gpm = asker.ask("gpm", |gpu| match gpu.gpm_support() {
                Ok(true) => Gpm::new(gpu),
                Ok(false) => Err(NvmlError::NotSupported),
                Err(error) => Err(error),
            })?;
            return Ok(None);
        };
        let Some((interval, values)) = asker.ask("gpm metrics", |gpu| gpm.read(gpu, &GPM_IDS))?.flatten()
        else {
            return Ok(None);
        };
        for (metric, percent) in GPM_RATIOS.into_iter().zip(&values) {
            if percent.is_finite() {
                out.put(metric, percent / 100.0);
            }
        }
        let pair = |first: usize| -> Pair { [values[first] * MIB, values[first + 1] * MIB] };
        let activity = Activity {
            interval,
            pcie: pair(4),
            nvlink: pair(6),
        };
        if activity.pcie.iter().all(|rate| rate.is_finite()) {
            asker.refuse("pcie tx");
            asker.refuse("pcie rx");
        }
        Ok(Some(activity))
    }

    /// How much each link can carry, and how healthy it is.
    pub(super) fn read_limits(&mut self, asker: &mut Asker<'a>, out: &mut Writer<'_>) -> Result<(), GpuLost> {
        self.read_pcie_limits(asker, out)?;
        self.read_nvlink_limits(asker, out)?;
        let [memory_temperature, errors @ ..] = read_fields(asker, &SLOW_FIELDS)?;
        if let Some(celsius) = memory_temperature {
            out.put("gpu_memory_temperature_celsius", celsius);
        }
        for (field, count) in SLOW_FIELDS[1..].iter().zip(errors) {
            if let Some(count) = count {
                out.put_by("gpu_nvlink_errors_total", ("type", field.name), count);
            }
        }
        Ok(())
    }

    fn read_pcie_limits(&mut self, asker: &mut Asker<'a>, out: &mut Writer<'_>) -> Result<(), GpuLost> {
        if let Some(generation) = asker.ask("pcie gen", |gpu| gpu.current_pcie_link_gen())? {
            out.put("gpu_pcie_generation", generation);
        }
        if let Some(width) = asker.ask("pcie width", |gpu| gpu.current_pcie_link_width())? {
            out.put("gpu_pcie_width", width);
        }
        let generation = asker.ask("pcie gen max", |gpu| gpu.max_pcie_link_gen())?;
        let width = asker.ask("pcie width max", |gpu| gpu.max_pcie_link_width())?;
        if let (Some(generation), Some(width)) = (generation, width) {
            out.put("gpu_pcie_generation_max", generation);
            out.put("gpu_pcie_width_max", width);
            self.pcie_max = pcie_bytes_per_second(generation, width);
        }
        Ok(())
    }

    fn read_nvlink_limits(&mut self, asker: &mut Asker<'a>, out: &mut Writer<'_>) -> Result<(), GpuLost> {
        let Some(links) = asker.ask("nvlinks", nvlinks)? else {
            return Ok(());
        };
        let mut active = 0_u32;
        for link in 0..links {
            // A link that cannot say is not up; the question stays allowed for the others.
            let state = asker.ask("nvlink state", |gpu| {
                match gpu.link_wrapper_for(link).is_active() {
                    Err(NvmlError::InvalidArg | NvmlError::NotSupported) => Ok(false),
                    answer => answer,
                }
            })?;
            active += u32::from(state == Some(true));
        }
        out.put("gpu_nvlinks", links);
        out.put("gpu_nvlinks_active", active);
        let speeds: Vec<_> = (0..links).map(|link| (LINK_SPEED, link)).collect();
        let speeds = asker
            .ask("nvlink speed", |gpu| raw::fields(gpu, &speeds))?
            .unwrap_or_default();
        let megabytes: f64 = speeds.iter().filter_map(|speed| speed.as_ref().ok()).sum();
        // Measured against all links: one that is down makes the GPU slower, not its links fuller.
        let up = f64::from(active.max(1)) / f64::from(links.max(1));
        self.nvlink_max = (megabytes > 0.0).then_some(megabytes * 1e6 / up);
        Ok(())
    }
}

/// How many NVLinks there are; a GPU without any says it is not supported, or zero.
pub(crate) fn nvlinks(device: &Device<'_>) -> Result<u32, NvmlError> {
    let count = raw::fields(device, &[(LINK_COUNT, 0)])?
        .pop()
        .unwrap_or(Err(NvmlError::NotSupported))?;
    if count > 0.0 {
        Ok(count as u32)
    } else {
        Err(NvmlError::NotSupported)
    }
}

/// Rates in bytes a second over the interval between two GPM samples.
struct Activity {
    interval: Duration,
    pcie: Pair,
    nvlink: Pair,
}

impl Activity {
    fn add_to(&self, flow: &mut Flow, rates: Pair) -> Option<Pair> {
        let known = rates.iter().all(|rate| rate.is_finite());
        known.then(|| flow.rated(self.interval, rates)).map(|()| rates)
    }
}

fn put_link(out: &mut Writer<'_>, link: &'static str, flow: &Flow, rates: Option<Pair>, max: Option<f64>) {
    let Some(rates) = rates else { return };
    let link = ("link", link);
    let [sent, received] = flow.total();
    out.put_by("link_transmit_bytes_total", link, sent);
    out.put_by("link_receive_bytes_total", link, received);
    if let Some(max) = max {
        out.put_by("link_bandwidth_bytes_per_second", link, max);
        out.put_by("link_utilization_ratio", link, rates[0].max(rates[1]) / max);
    }
}
