//! What a node is made of, as its agent reports it in the hello.

use serde::{Deserialize, Serialize};

/// A node's hardware and software, read once a connection.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Inventory {
    /// The host's own name.
    pub hostname: String,
    /// Addresses other nodes may reach this one at, the preferred first.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// `PRETTY_NAME` of os-release.
    pub os: String,
    /// Kernel release.
    pub kernel: String,
    /// Processor model, and how many logical ones.
    pub cpu_model: String,
    /// Logical processors.
    pub cpus: u32,
    /// Host memory in bytes.
    pub memory_bytes: u64,
    /// NVIDIA driver version; empty without one.
    pub driver_version: String,
    /// CUDA version the driver supports, like `12.9`; empty without one.
    pub cuda_version: String,
    /// Set when the GPUs are simulated: the simulation's spec. Never simulated in silence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated: Option<String>,
    /// Why there are no GPUs, when there are none: a sentence for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_missing: Option<String>,
    /// The GPUs in NVML's order.
    pub gpus: Vec<Gpu>,
    /// Whether this node lets Lockstep start runs on it.
    pub accepts_runs: bool,
}

/// One GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// NVML index, from 0; the label `gpu`.
    pub index: u32,
    /// `GPU-…`.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// PCI bus id, `00000000:1B:00.0`.
    pub pci_bus_id: String,
    /// Frame buffer size in bytes.
    pub memory_total_bytes: u64,
    /// Board power limit in watts; 0 when unknown.
    #[serde(default)]
    pub power_limit_watts: f64,
    /// NVLinks that exist (not only the active ones).
    #[serde(default)]
    pub nvlinks: u32,
    /// Whether GPM metrics (SM and tensor activity) can be read.
    #[serde(default)]
    pub gpm: bool,
}
