//! NVLinks, and the fabric that connects them.

use super::exports;
use super::handle::{Device, device};
use super::pointer::Out;
use super::structs::{FabricInfo, FabricInfoV2, FabricInfoV3, PciInfo, c_text, version_of};
use crate::engine::nvlink::LinkError;
use crate::engine::status::Status;

/// `NVML_NVLINK_DEVICE_TYPE_SWITCH`: all links of a baseboard are connected to its switches.
const REMOTE_IS_SWITCH: u32 = 2;
/// The device id of the switches, and the bus of the first one.
const SWITCH_DEVICE_ID: u32 = 0x22A3_10DE;
const SWITCH_BUS: u32 = 0x05;
const SWITCHES: u32 = 4;

/// The registration is complete.
const FABRIC_COMPLETED: u32 = 3;
/// Two bits per question: 2 means "no" to degraded bandwidth, route recovery, route unhealthy, access time-out. Then four bits, in which 1
/// means that the configuration is correct.
const FABRIC_HEALTHY: u32 = 2 | 2 << 2 | 2 << 4 | 2 << 6 | 1 << 8;
/// The same with "yes" to degraded bandwidth.
const FABRIC_DEGRADED: u32 = FABRIC_HEALTHY - 1;

exports! {
    fn nvmlDeviceGetNvLinkState(handle: usize, link: u32, active: Out<u32>) {
        let device = device(handle)?;
        active.put(u32::from(device.gpu().link_is_up(link, device.t)?))
    }

    fn nvmlDeviceGetNvLinkVersion(handle: usize, link: u32, version: Out<u32>) {
        version.put(device(handle)?.gpu().nvlink_with(link)?.version)
    }

    fn nvmlDeviceGetNvLinkErrorCounter(handle: usize, link: u32, counter: u32, value: Out<u64>) {
        let device = device(handle)?;
        let kind = match counter {
            0 => LinkError::Replay,
            1 => LinkError::Recovery,
            2 => LinkError::CrcFlit,
            3 => LinkError::CrcData,
            4 => LinkError::EccData,
            _ => return Err(Status::InvalidArgument),
        };
        value.put(device.gpu().link_errors(link, kind, device.t)?)
    }

    /// All capabilities except the bridge of two workstation boards. Blackwell reports capabilities for twice the links it has, but refuses
    /// to report the state of the additional ones.
    fn nvmlDeviceGetNvLinkCapability(handle: usize, link: u32, capability: u32, result: Out<u32>) {
        const BRIDGE: u32 = 4;
        const COUNT: u32 = 6;
        let device = device(handle)?;
        let gpu = device.gpu();
        if link >= 2 * gpu.nvlink()?.links || !gpu.profile.is_blackwell() {
            gpu.nvlink_with(link)?;
        }
        if capability >= COUNT {
            return Err(Status::InvalidArgument);
        }
        result.put(u32::from(capability != BRIDGE))
    }

    fn nvmlDeviceGetNvLinkRemoteDeviceType(handle: usize, link: u32, kind: Out<u32>) {
        device(handle)?.gpu().nvlink_with(link)?;
        kind.put(REMOTE_IS_SWITCH)
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(handle: usize, link: u32, pci: Out<PciInfo>) {
        device(handle)?.gpu().nvlink_with(link)?;
        let bus = SWITCH_BUS + link % SWITCHES;
        pci.put(PciInfo {
            bus_id_legacy: c_text(&format!("0000:{bus:02X}:00.0")),
            domain: 0,
            bus,
            device: 0,
            pci_device_id: SWITCH_DEVICE_ID,
            pci_subsystem_id: 0,
            bus_id: c_text(&format!("00000000:{bus:02X}:00.0")),
        })
    }

    fn nvmlDeviceGetGpuFabricInfo(handle: usize, info: Out<FabricInfo>) {
        let device = device(handle)?;
        info.put(fabric(&device)?.0)
    }

    fn nvmlDeviceGetGpuFabricInfoV(handle: usize, info: Out<FabricInfoV3>) {
        let device = device(handle)?;
        let version = info.version()?;
        if version == version_of::<FabricInfoV2>(2) {
            let (fabric, health_mask, _) = fabric(&device)?;
            return info.as_type().put(FabricInfoV2 { version, info: fabric, health_mask });
        }
        if version != version_of::<FabricInfoV3>(3) {
            return Err(Status::ArgumentVersionMismatch);
        }
        let (fabric, health_mask, health_summary) = fabric(&device)?;
        info.put(FabricInfoV3 { version, info: fabric, health_mask, health_summary })
    }
}

/// Returns the registration, the health mask and the health summary (1 healthy, 3 limited). A single baseboard is not a multi-node domain,
/// so its cluster has no UUID.
fn fabric(device: &Device) -> Result<(FabricInfo, u32, u8), Status> {
    let gpu = device.gpu();
    if !gpu.profile.fabric {
        return Err(Status::NotSupported);
    }
    let info = FabricInfo {
        cluster_uuid: [0; 16],
        status: Status::Success.code(),
        clique_id: 0,
        state: FABRIC_COMPLETED,
    };
    let whole = gpu.links_up(device.t) == gpu.nvlink()?.links;
    Ok(if whole {
        (info, FABRIC_HEALTHY, 1)
    } else {
        (info, FABRIC_DEGRADED, 3)
    })
}
