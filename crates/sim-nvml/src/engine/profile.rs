//! The GPU models that can be simulated. The values come from NVIDIA's published data sheets and from the output of `nvidia-smi -q` on such
//! machines.

use super::mig::{self, Slice};

/// A GPU model: the values that never change while it runs.
#[derive(Debug)]
pub(crate) struct Profile {
    /// The name in a specification.
    pub key: &'static str,
    /// The name in NVML.
    pub name: &'static str,
    /// `NVML_DEVICE_ARCH_*`.
    pub architecture: u32,
    /// `NVML_BRAND_*`.
    pub brand: u32,
    pub compute_capability: (i32, i32),
    /// Device id << 16 | vendor id.
    pub pci_device_id: u32,
    pub pci_subsystem_id: u32,
    pub vbios: &'static str,

    pub memory_mib: u64,
    /// Reserved by the driver and firmware, part of `memory_mib`.
    pub reserved_mib: u64,
    pub bar1_mib: u64,

    pub sm_clock_max_mhz: u32,
    pub sm_clock_idle_mhz: u32,
    pub memory_clock_max_mhz: u32,
    pub memory_clock_idle_mhz: u32,
    pub video_clock_max_mhz: u32,
    /// The performance state while idle. Working GPUs are in P0.
    pub pstate_idle: u32,

    pub power_idle_w: u32,
    pub power_min_w: u32,
    pub power_default_w: u32,
    pub power_max_w: u32,

    /// Degrees Celsius: at full load with good cooling, then the three limits.
    pub temperature_busy: u32,
    pub temperature_max: u32,
    pub temperature_slowdown: u32,
    pub temperature_shutdown: u32,
    /// The limit of the memory. `None` if the board has no memory sensor in NVML.
    pub memory_temperature_max: Option<u32>,

    pub nvlink: Option<NvLink>,
    pub pcie_generation: u32,
    pub pcie_generation_idle: u32,

    /// Hopper and newer data-centre GPUs have the GPM counters.
    pub gpm: bool,
    pub ecc: bool,
    /// Data-centre boards have a serial number and no fan of their own.
    pub datacenter: bool,
    /// The kinds of instances, smallest first. Empty if the GPU has no MIG.
    pub mig: &'static [Slice],
    /// True if the NVLink switches register GPUs with a fabric manager that NVML can query.
    pub fabric: bool,
}

/// The NVLinks of a model.
#[derive(Debug)]
pub(crate) struct NvLink {
    pub version: u32,
    pub links: u32,
    /// One direction of one link, as in NVML's field 164.
    pub megabytes_per_second: u32,
}

impl Profile {
    /// Returns the model with this name in a specification.
    pub(crate) fn named(key: &str) -> Option<&'static Profile> {
        PROFILES.iter().find(|profile| profile.key == key)
    }

    /// Returns all names that a specification may use.
    pub(crate) fn keys() -> String {
        PROFILES
            .iter()
            .map(|profile| profile.key)
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Returns how many MIG instances fit; 0 if the GPU has no MIG.
    pub(crate) fn mig_instances_max(&self) -> u32 {
        let counts = self.mig.iter().map(|slice| slice.instances_max);
        counts.max().unwrap_or(0)
    }

    /// Returns true if the GPU can encrypt its data in use. Data-centre GPUs since Hopper can.
    pub(crate) fn has_confidential_computing(&self) -> bool {
        self.datacenter && self.architecture >= ARCH_HOPPER
    }

    /// Returns true for Blackwell, which counts NVLink errors in other fields than earlier GPUs.
    pub(crate) fn is_blackwell(&self) -> bool {
        self.architecture == ARCH_BLACKWELL
    }
}

const ARCH_AMPERE: u32 = 7;
const ARCH_ADA: u32 = 8;
const ARCH_HOPPER: u32 = 9;
const ARCH_BLACKWELL: u32 = 10;
const BRAND_GEFORCE: u32 = 5;
const BRAND_NVIDIA: u32 = 14;

static PROFILES: [Profile; 5] = [
    Profile {
        key: "h100",
        name: "NVIDIA H100 80GB HBM3",
        architecture: ARCH_HOPPER,
        brand: BRAND_NVIDIA,
        compute_capability: (9, 0),
        pci_device_id: 0x2330_10DE,
        pci_subsystem_id: 0x16C1_10DE,
        vbios: "96.00.89.00.01",
        memory_mib: 81_559,
        reserved_mib: 551,
        bar1_mib: 131_072,
        sm_clock_max_mhz: 1_980,
        sm_clock_idle_mhz: 345,
        memory_clock_max_mhz: 2_619,
        memory_clock_idle_mhz: 2_619,
        video_clock_max_mhz: 1_545,
        pstate_idle: 0,
        power_idle_w: 70,
        power_min_w: 200,
        power_default_w: 700,
        power_max_w: 700,
        temperature_busy: 62,
        temperature_max: 87,
        temperature_slowdown: 89,
        temperature_shutdown: 95,
        memory_temperature_max: Some(95),
        nvlink: Some(NvLink {
            version: 4,
            links: 18,
            megabytes_per_second: 26_562,
        }),
        pcie_generation: 5,
        pcie_generation_idle: 5,
        gpm: true,
        ecc: true,
        datacenter: true,
        mig: &mig::H100_80GB,
        fabric: true,
    },
    Profile {
        key: "h200",
        name: "NVIDIA H200",
        architecture: ARCH_HOPPER,
        brand: BRAND_NVIDIA,
        compute_capability: (9, 0),
        pci_device_id: 0x2335_10DE,
        pci_subsystem_id: 0x18BE_10DE,
        vbios: "96.00.BC.00.02",
        memory_mib: 143_771,
        reserved_mib: 615,
        bar1_mib: 262_144,
        sm_clock_max_mhz: 1_980,
        sm_clock_idle_mhz: 345,
        memory_clock_max_mhz: 3_201,
        memory_clock_idle_mhz: 3_201,
        video_clock_max_mhz: 1_545,
        pstate_idle: 0,
        power_idle_w: 76,
        power_min_w: 200,
        power_default_w: 700,
        power_max_w: 700,
        temperature_busy: 61,
        temperature_max: 87,
        temperature_slowdown: 89,
        temperature_shutdown: 95,
        memory_temperature_max: Some(95),
        nvlink: Some(NvLink {
            version: 4,
            links: 18,
            megabytes_per_second: 26_562,
        }),
        pcie_generation: 5,
        pcie_generation_idle: 5,
        gpm: true,
        ecc: true,
        datacenter: true,
        mig: &mig::H200,
        fabric: true,
    },
    Profile {
        key: "b200",
        name: "NVIDIA B200",
        architecture: ARCH_BLACKWELL,
        brand: BRAND_NVIDIA,
        compute_capability: (10, 0),
        pci_device_id: 0x2901_10DE,
        pci_subsystem_id: 0x1999_10DE,
        vbios: "97.00.82.00.22",
        memory_mib: 183_359,
        reserved_mib: 720,
        bar1_mib: 262_144,
        sm_clock_max_mhz: 1_965,
        sm_clock_idle_mhz: 120,
        memory_clock_max_mhz: 3_996,
        memory_clock_idle_mhz: 3_996,
        video_clock_max_mhz: 1_860,
        pstate_idle: 0,
        power_idle_w: 140,
        power_min_w: 200,
        power_default_w: 1_000,
        power_max_w: 1_000,
        temperature_busy: 64,
        temperature_max: 87,
        temperature_slowdown: 89,
        temperature_shutdown: 95,
        memory_temperature_max: Some(95),
        nvlink: Some(NvLink {
            version: 5,
            links: 18,
            megabytes_per_second: 53_125,
        }),
        pcie_generation: 5,
        pcie_generation_idle: 5,
        gpm: true,
        ecc: true,
        datacenter: true,
        mig: &mig::B200,
        fabric: true,
    },
    Profile {
        key: "a100",
        name: "NVIDIA A100-SXM4-80GB",
        architecture: ARCH_AMPERE,
        brand: BRAND_NVIDIA,
        compute_capability: (8, 0),
        pci_device_id: 0x20B2_10DE,
        pci_subsystem_id: 0x1463_10DE,
        vbios: "92.00.81.00.01",
        memory_mib: 81_920,
        reserved_mib: 529,
        bar1_mib: 131_072,
        sm_clock_max_mhz: 1_410,
        sm_clock_idle_mhz: 210,
        memory_clock_max_mhz: 1_593,
        memory_clock_idle_mhz: 1_593,
        video_clock_max_mhz: 1_290,
        pstate_idle: 0,
        power_idle_w: 60,
        power_min_w: 100,
        power_default_w: 400,
        power_max_w: 400,
        temperature_busy: 58,
        temperature_max: 85,
        temperature_slowdown: 89,
        temperature_shutdown: 92,
        memory_temperature_max: Some(95),
        nvlink: Some(NvLink {
            version: 3,
            links: 12,
            megabytes_per_second: 25_000,
        }),
        pcie_generation: 4,
        pcie_generation_idle: 4,
        gpm: false,
        ecc: true,
        datacenter: true,
        mig: &mig::A100_80GB,
        fabric: false,
    },
    Profile {
        key: "rtx4090",
        name: "NVIDIA GeForce RTX 4090",
        architecture: ARCH_ADA,
        brand: BRAND_GEFORCE,
        compute_capability: (8, 9),
        pci_device_id: 0x2684_10DE,
        pci_subsystem_id: 0x165B_10DE,
        vbios: "95.02.3C.00.81",
        memory_mib: 24_564,
        reserved_mib: 381,
        bar1_mib: 32_768,
        sm_clock_max_mhz: 3_105,
        sm_clock_idle_mhz: 210,
        memory_clock_max_mhz: 10_501,
        memory_clock_idle_mhz: 405,
        video_clock_max_mhz: 2_415,
        pstate_idle: 8,
        power_idle_w: 20,
        power_min_w: 150,
        power_default_w: 450,
        power_max_w: 600,
        temperature_busy: 68,
        temperature_max: 84,
        temperature_slowdown: 97,
        temperature_shutdown: 100,
        memory_temperature_max: None,
        nvlink: None,
        pcie_generation: 4,
        pcie_generation_idle: 1,
        gpm: false,
        ecc: false,
        datacenter: false,
        mig: &[],
        fabric: false,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_is_sane() {
        for p in &PROFILES {
            assert!(p.sm_clock_idle_mhz < p.sm_clock_max_mhz, "{}", p.key);
            assert!(
                p.power_idle_w < p.power_default_w && p.power_min_w < p.power_default_w,
                "{}",
                p.key
            );
            assert!(p.power_default_w <= p.power_max_w, "{}", p.key);
            assert!(p.temperature_busy < p.temperature_max, "{}", p.key);
            assert!(p.temperature_max < p.temperature_slowdown, "{}", p.key);
            assert!(p.temperature_slowdown < p.temperature_shutdown, "{}", p.key);
            assert_eq!(p.gpm, p.architecture >= ARCH_HOPPER, "{}", p.key);
            assert_eq!(p.pci_device_id & 0xFFFF, 0x10DE, "{}", p.key);
            let mig = p.mig.iter().map(|slice| slice.memory_mib).max().unwrap_or(0);
            assert!(mig <= p.memory_mib, "{}", p.key);
            assert_eq!(
                p.mig_instances_max(),
                if p.datacenter { 7 } else { 0 },
                "{}",
                p.key
            );
        }
    }
}
