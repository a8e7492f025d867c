//! Hardware and software of a node, which its agent reports in the first message of a connection.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Hardware and software of a node. The agent reads it once per connection.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Inventory {
    /// Host name of the node.
    pub hostname: String,
    /// Addresses at which other nodes can reach this node, the preferred one first.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// Name of the rack in which the node is, if its agent was started with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
    /// Name of the operating system: `PRETTY_NAME` of os-release.
    pub os: String,
    /// Kernel release.
    pub kernel: String,
    /// Processor model and number of logical processors.
    pub cpu_model: String,
    /// Number of logical processors.
    pub cpus: u32,
    /// Host memory in bytes.
    pub memory_bytes: u64,
    /// Version of the NVIDIA driver; empty if there is no driver.
    pub driver_version: String,
    /// CUDA version that the driver supports, like `12.9`; empty if there is no driver.
    pub cuda_version: String,
    /// Specification of the simulation, if the GPUs are simulated. Absent for real GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated: Option<String>,
    /// Why the node has no GPUs, in one sentence. Absent if it has GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_missing: Option<String>,
    /// GPUs, in the order of NVML.
    pub gpus: Vec<Gpu>,
    /// True if Lockstep may start runs on this node.
    pub accepts_runs: bool,
    /// Sources other than NVML that the agent reads, and for each unavailable source the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<Source>,
}

/// A source of signals of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Source {
    /// Stable identifier for programs: `kernel_log`, `infiniband`, `ethernet`, `processes`.
    pub name: String,
    /// True if the agent reads this source.
    pub available: bool,
    /// One sentence for people: what the agent reads, or why it reads nothing and what to change.
    pub detail: String,
}

/// One GPU of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Gpu {
    /// NVML index, from 0. Value of the label `gpu`.
    pub index: u32,
    /// UUID of the GPU: `GPU-…`.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// PCI bus id, `00000000:1B:00.0`.
    pub pci_bus_id: String,
    /// Size of the GPU memory in bytes.
    pub memory_total_bytes: u64,
    /// Power limit of the board in watts; 0 if unknown.
    #[serde(default)]
    pub power_limit_watts: f64,
    /// Number of NVLinks that the GPU has, active or not.
    #[serde(default)]
    pub nvlinks: u32,
    /// True if GPM metrics (SM and tensor activity) can be read.
    #[serde(default)]
    pub gpm: bool,
    /// How the GPU is shared with virtual machines: `passthrough`, `vgpu`, `host_vgpu` or `host_vsga`. Empty if the node has the GPU to
    /// itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub virtualization: String,
    /// True if confidential computing is on. Many values cannot be read then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub confidential: bool,
    /// Readings that are unavailable because the GPU, its driver or the agent's user does not allow them. The agent tries each only once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<String>,
    /// MIG instances of the GPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mig_instances: Vec<MigInstance>,
}

/// A MIG instance: a part of a partitioned GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MigInstance {
    /// Numbers of the GPU instance and the compute instance, like `7/0`. Value of the label `instance`.
    pub instance: String,
    /// UUID of the instance: `MIG-…`.
    pub uuid: String,
    /// Product and profile, like `NVIDIA H100 80GB HBM3 MIG 1g.10gb`.
    pub name: String,
    /// Memory of the instance in bytes; 0 if unknown.
    #[serde(default)]
    pub memory_total_bytes: u64,
}

/// PCI address of a device. Parses both notations: `00000000:1B:00.0` of NVML and `PCI:0000:1b:00` of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
}

/// A text that is not a PCI address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a PCI address; the form is 0000:1b:00.0")]
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
