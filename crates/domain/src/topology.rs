//! What a node is made of, as its agent reports it in the hello.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A node's hardware and software, read once a connection.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    /// What the agent reads from beside the GPUs' library, and why it does not where it does not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<Source>,
}

/// Something a node may be read from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Source {
    /// A stable word for programs: `kernel_log`, `infiniband`, `ethernet`, `processes`.
    pub name: String,
    /// Whether it is read.
    pub available: bool,
    /// A sentence for people: what is read, or why nothing is and what would change that.
    pub detail: String,
}

/// One GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
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

/// Where a device sits, however it is written: `00000000:1B:00.0` by NVML, `PCI:0000:1b:00` by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
}

/// A text that is no PCI address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a PCI address reads like 0000:1b:00.0")]
pub struct NotPciAddress;

impl FromStr for PciAddress {
    type Err = NotPciAddress;

    fn from_str(text: &str) -> Result<Self, NotPciAddress> {
        let text = text.strip_prefix("PCI:").unwrap_or(text);
        let without_function = text.split_once('.').map_or(text, |(address, _)| address);
        let mut parts = without_function.rsplit(':');
        let mut part = || {
            parts
                .next()
                .map(|hex| u32::from_str_radix(hex, 16).map_err(|_| NotPciAddress))
        };
        let device = part().ok_or(NotPciAddress)??;
        let bus = part().ok_or(NotPciAddress)??;
        let domain = part().unwrap_or(Ok(0))?;
        if part().is_some() {
            return Err(NotPciAddress);
        }
        Ok(Self {
            domain,
            bus: u8::try_from(bus).map_err(|_| NotPciAddress)?,
            device: u8::try_from(device).map_err(|_| NotPciAddress)?,
        })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}", self.domain, self.bus, self.device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_device_has_one_address_however_it_is_written() {
        let read = |text: &str| text.parse::<PciAddress>().map(|address| address.to_string());
        for text in ["00000000:1B:00.0", "PCI:0000:1b:00", "0000:1b:00", "1b:00.0"] {
            assert_eq!(read(text), Ok("0000:1b:00".to_owned()), "{text}");
        }
        assert_eq!(read("PCI:0018:01:00"), Ok("0018:01:00".to_owned()));
        for text in ["", "1b", "x:y", "0:0:0:0", "0000:1bb:00", "::"] {
            assert_eq!(read(text), Err(NotPciAddress), "{text}");
        }
    }
}
