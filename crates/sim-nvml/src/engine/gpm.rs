//! GPM: averages of the performance counters of Hopper and Blackwell GPUs between two samples.

use std::ffi::CStr;

use super::gpu::Gpu;
use super::job::Job;
use super::mig;
use super::pcie::Direction;
use super::status::Status;

/// NVIDIA documents 100 ms as a hard limit of the hardware. Values over a shorter time are not valid.
const INTERVAL_MIN_S: f64 = 0.1;
const MIB: f64 = 1_048_576.0;

/// The first id of a transfer. Ids below it are shares, the others are bytes over links.
const FIRST_TRANSFER: u32 = 20;
/// The first id of NVLink metrics, for link 0. Receive and transmit alternate from there.
const LINK_FIRST: u32 = 62;
const LINK_LAST: u32 = 97;

/// The names of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label {
    pub short: &'static CStr,
    pub long: &'static CStr,
    pub unit: &'static CStr,
}

/// What a sample covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    Gpu,
    /// An instance of a partitioned GPU. Shares are of the instance's own multiprocessors and memory; PCIe and NVLink belong to no
    /// instance.
    Instance(u32),
}

/// Returns a metric between two times. NaN if they are closer together than the hardware can measure.
///
/// Percentages are 0 to 100, transfers are in MiB per second, as in NVML's header.
pub(crate) fn metric(gpu: &Gpu, scope: Scope, id: u32, from: f64, to: f64) -> Result<f64, Status> {
    if to < from {
        return Err(Status::InvalidArgument);
    }
    let load = match scope {
        Scope::Gpu => 1.0,
        Scope::Instance(_) if id >= FIRST_TRANSFER => return Err(Status::NotSupported),
        Scope::Instance(instance) => mig::load(gpu.noise, instance),
    };
    let seconds = to - from;
    let slope = |counter: &dyn Fn(f64) -> f64| (counter(to) - counter(from)) / seconds;
    let kernels = || 100.0 * slope(&|t| Job::kernel_seconds(&gpu.job, t));
    let active = || 100.0 * slope(&|t| Job::active_seconds(&gpu.job, t));
    let work = || 100.0 * slope(&|t| Job::compute_seconds(&gpu.job, t));
    let pcie = |direction| slope(&|t| gpu.pcie_bytes(direction, t) as f64) / MIB;
    let value = match id {
        1 => kernels(),
        2 => active(),
        3 => 0.46 * active(),
        4 => 0.13 * work(),
        5 => 0.58 * work(),
        7 => 0.57 * work(),
        6 | 8 | 9 | 11 => 0.0,
        10 => 0.62 * work(),
        12 => 0.14 * work(),
        13 => 0.05 * work(),
        20 => pcie(Direction::Transmit),
        21 => pcie(Direction::Receive),
        60 | 61 => slope(&|t| gpu.links_bytes(t).unwrap_or(0.0)) / MIB,
        LINK_FIRST..=LINK_LAST => {
            let link = (id - LINK_FIRST) / 2;
            gpu.nvlink_with(link).map_err(|_| Status::NotSupported)?;
            slope(&|t| gpu.link_bytes(link, t).unwrap_or(0.0)) / MIB
        }
        _ => return Err(Status::NotSupported),
    };
    Ok(if seconds < INTERVAL_MIN_S {
        f64::NAN
    } else {
        clamp_percent(id, load * value)
    })
}

/// Returns the names of a metric. They are empty if the metric does not exist.
pub(crate) fn label(id: u32) -> Label {
    let percent = |short, long| Label {
        short,
        long,
        unit: c"%",
    };
    let rate = |short, long| Label {
        short,
        long,
        unit: c"MiB/s",
    };
    match id {
        1 => percent(c"GRAPHICS_UTIL", c"Graphics Utilization"),
        2 => percent(c"SM_UTIL", c"SM Utilization"),
        3 => percent(c"SM_OCCUPANCY", c"SM Occupancy"),
        4 => percent(c"INTEGER_UTIL", c"Integer Utilization"),
        5 => percent(c"ANY_TENSOR_UTIL", c"Any Tensor Utilization"),
        6 => percent(c"DFMA_TENSOR_UTIL", c"DFMA Tensor Utilization"),
        7 => percent(c"HMMA_TENSOR_UTIL", c"HMMA Tensor Utilization"),
        8 => percent(c"DMMA_TENSOR_UTIL", c"DMMA Tensor Utilization"),
        9 => percent(c"IMMA_TENSOR_UTIL", c"IMMA Tensor Utilization"),
        10 => percent(c"DRAM_BW_UTIL", c"DRAM Bandwidth Utilization"),
        11 => percent(c"FP64_UTIL", c"FP64 Utilization"),
        12 => percent(c"FP32_UTIL", c"FP32 Utilization"),
        13 => percent(c"FP16_UTIL", c"FP16 Utilization"),
        20 => rate(c"PCIE_TX", c"PCIe Transmit"),
        21 => rate(c"PCIE_RX", c"PCIe Receive"),
        60 => rate(c"NVLINK_TOTAL_RX", c"NVLink Total Receive"),
        61 => rate(c"NVLINK_TOTAL_TX", c"NVLink Total Transmit"),
        LINK_FIRST..=LINK_LAST if id.is_multiple_of(2) => rate(c"NVLINK_RX", c"NVLink Receive"),
        LINK_FIRST..=LINK_LAST => rate(c"NVLINK_TX", c"NVLink Transmit"),
        _ => Label {
            short: c"",
            long: c"",
            unit: c"",
        },
    }
}

/// Limits percentages to 100: the variation of steps can exceed 100 % in a short average, which hardware cannot.
fn clamp_percent(id: u32, value: f64) -> f64 {
    if id < FIRST_TRANSFER {
        value.clamp(0.0, 100.0)
    } else {
        value
    }
}
