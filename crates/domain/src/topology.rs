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
    /// How it is shared with virtual machines: `passthrough`, `vgpu`, `host_vgpu` or `host_vsga`; empty when it is the
    /// machine's own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub virtualization: String,
    /// Whether it works under confidential computing, where much cannot be read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub confidential: bool,
    /// What this GPU, its driver or the agent's user has no answer for: asked once, not asked again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<String>,
    /// What it is divided into (MIG).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mig_instances: Vec<MigInstance>,
}

/// A part of a divided GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MigInstance {
    /// Its numbers, GPU instance and compute instance, like `7/0`; the label `instance`.
    pub instance: String,
    /// `MIG-…`.
    pub uuid: String,
    /// Product and profile, like `NVIDIA H100 80GB HBM3 MIG 1g.10gb`.
    pub name: String,
    /// Its memory in bytes; 0 when unknown.
    #[serde(default)]
    pub memory_total_bytes: u64,
}
