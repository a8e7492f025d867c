//! The measurements of a node's GPUs.

use domain::topology::Gpu;

use crate::noise::{mix, noise};
use crate::reading::{Reading, Readings};

/// The number of GPUs of each node.
pub(crate) const GPUS: u32 = 8;
const NAME: &str = "NVIDIA H100 80GB HBM3";
pub(crate) const DRIVER: &str = "570.124.06";
const MEMORY_BYTES: u64 = 85_520_809_984;
const POWER_LIMIT_W: f64 = 700.0;
const POWER_BRAKED_W: f64 = 350.0;
const POWER_IDLE_W: f64 = 72.0;
const CLOCK_MAX_HZ: f64 = 1.98e9;
const CLOCK_HZ: f64 = 1.755e9;
const CLOCK_BRAKED_HZ: f64 = 1.11e9;
const CLOCK_IDLE_HZ: f64 = 3.45e8;
const NVLINKS: u32 = 18;
const NVLINK_BYTES_PER_S: f64 = 450e9;
const PCIE_BYTES_PER_S: f64 = 63e9;
/// The factor by which computing takes longer at the braked clock.
pub(crate) const BRAKED_SLOWDOWN: f64 = CLOCK_HZ / CLOCK_BRAKED_HZ;
/// Xid 95: uncontained memory error.
pub(crate) const XID_MEMORY: &str = "95";

/// The persistent state of one GPU.
#[derive(Debug, Clone, Default)]
pub(crate) struct GpuState {
    pub(crate) is_braked: bool,
    /// The number of memory errors so far.
    pub(crate) memory_errors: u32,
}

/// The load of a rank on its GPU.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) run: String,
    pub(crate) rank: u32,
    /// The share of the time in which kernels compute.
    pub(crate) compute: f64,
    /// The share of the time in which the links carry gradients.
    pub(crate) communicates: f64,
    pub(crate) memory_share: f64,
}

/// Returns the GPUs of a node, as its agent would describe them.
pub(crate) fn inventory(node: u32) -> Vec<Gpu> {
    (0..GPUS)
        .map(|index| Gpu {
            index,
            uuid: uuid(node, index),
            name: NAME.to_owned(),
            pci_bus_id: pci_bus_id(index),
            memory_total_bytes: MEMORY_BYTES,
            power_limit_watts: POWER_LIMIT_W,
            nvlinks: NVLINKS,
            gpm: true,
            ..Gpu::default()
        })
        .collect()
}

fn uuid(node: u32, index: u32) -> String {
    let id = mix(u64::from(node) << 8 | u64::from(index));
    let tail = mix(id);
    format!(
        "GPU-{:08x}-{:04x}-4{:03x}-a{:03x}-{:012x}",
        id >> 32,
        (id >> 16) & 0xffff,
        id & 0xfff,
        tail >> 52,
        tail & 0xffff_ffff_ffff
    )
}

fn pci_bus_id(index: u32) -> String {
    format!("00000000:{:02X}:00.0", 0x1b + index * 0x10)
}

/// Adds the readings of one GPU.
pub(crate) fn read(
    node: u32,
    index: u32,
    state: &GpuState,
    load: Option<&Load>,
    second: u64,
    into: &mut Vec<Reading>,
) {
    let jitter =
        |what: u64, share: f64| 1.0 + share * noise([u64::from(node) << 8 | u64::from(index), what, second]);
    let gpu = index.to_string();
    if let Some(load) = load {
        let mut assigned = Readings {
            labels: vec![
                ("gpu", gpu.clone()),
                ("run", load.run.clone()),
                ("rank", load.rank.to_string()),
            ],
            into: &mut *into,
        };
        assigned.push("gpu_assignment_info", 1.0);
    }
    let mut out = Readings {
        labels: vec![("gpu", gpu)],
        into,
    };
    let uuid = uuid(node, index);
    let bus = pci_bus_id(index);
    let info = [
        ("uuid", uuid.as_str()),
        ("name", NAME),
        ("pci_bus_id", bus.as_str()),
        ("driver_version", DRIVER),
    ];
    out.push_with("gpu_info", &info, 1.0);
    out.push("gpu_up", 1.0);

    let (compute, communicates) = load.map_or((0.0, 0.0), |load| (load.compute, load.communicates));
    let sm_active = (0.94 * compute * jitter(1, 0.02)).clamp(0.0, 1.0);
    let clock = match (load, state.is_braked) {
        (_, true) => CLOCK_BRAKED_HZ,
        (None, false) => CLOCK_IDLE_HZ,
        (Some(_), false) => CLOCK_HZ * jitter(2, 0.005),
    };
    let limit = if state.is_braked {
        POWER_BRAKED_W
    } else {
        POWER_LIMIT_W
    };
    let power = (POWER_IDLE_W + 600.0 * sm_active * (clock / CLOCK_HZ)).min(limit) * jitter(3, 0.01);
    let used_share = load.map_or(0.006, |load| load.memory_share * jitter(4, 0.001));
    out.push(
        "gpu_memory_used_bytes",
        (MEMORY_BYTES as f64 * used_share).round(),
    );
    out.push("gpu_memory_total_bytes", MEMORY_BYTES as f64);
    out.push("gpu_utilization_ratio", if compute > 0.0 { 0.99 } else { 0.0 });
    out.push("gpu_sm_active_ratio", sm_active);
    out.push("gpu_tensor_active_ratio", 0.62 * sm_active);
    out.push("gpu_dram_active_ratio", 0.48 * sm_active);
    out.push("gpu_sm_clock_hertz", clock);
    out.push("gpu_sm_clock_max_hertz", CLOCK_MAX_HZ);
    out.push("gpu_power_watts", power);
    out.push("gpu_power_limit_watts", POWER_LIMIT_W);
    out.push("gpu_temperature_celsius", (31.0 + 0.058 * power).round());
    for (reason, holds) in [
        ("hw_power_brake", state.is_braked),
        ("hw_thermal_slowdown", false),
        ("sw_power_cap", false),
    ] {
        out.push_with("gpu_throttle", &[("reason", reason)], f64::from(u8::from(holds)));
    }
    let errors = f64::from(state.memory_errors);
    out.push_with("gpu_ecc_errors_total", &[("type", "uncorrected")], errors);
    out.push_with("gpu_xid_errors_total", &[("xid", XID_MEMORY)], errors);
    let judged = [
        ("xid", XID_MEMORY),
        ("severity", "critical"),
        ("action", "RESET_GPU"),
        ("cause", "hardware"),
    ];
    out.push_with("gpu_xid_judged_total", &judged, errors);
    out.push("gpu_nvlinks", f64::from(NVLINKS));
    out.push("gpu_nvlinks_active", f64::from(NVLINKS));
    out.push("gpu_pcie_width", 16.0);
    out.push("gpu_pcie_width_max", 16.0);
    for (link, share, most) in [
        ("nvlink", 0.71 * communicates, NVLINK_BYTES_PER_S),
        ("pcie", 0.04 * compute, PCIE_BYTES_PER_S),
    ] {
        out.push_with(
            "link_utilization_ratio",
            &[("link", link)],
            share * jitter(5, 0.05),
        );
        out.push_with("link_bandwidth_bytes_per_second", &[("link", link)], most);
    }
}
