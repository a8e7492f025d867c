//! GPUs by index, UUID and PCI address, and their identity.
//!
//! A lost GPU has a handle too, so that a client can still name it. Every call with it then returns "GPU is lost".

use super::exports;
use super::handle::{device, handle_of, subject};
use super::pointer::{Out, TextIn, TextOut};
use super::session;
use super::structs::{PciInfo, PlatformInfo, c_text, version_of};
use crate::engine::status::Status;

exports! {
    fn nvmlDeviceGetCount_v2(count: Out<u32>) {
        count.put(session::machine()?.node.gpus.len() as u32)
    }

    fn nvmlDeviceGetHandleByIndex_v2(index: u32, handle: Out<usize>) {
        let machine = session::machine()?;
        let gpu = machine.node.gpus.get(index as usize).ok_or(Status::InvalidArgument)?;
        handle.put(handle_of(&machine, gpu.index))
    }

    /// The UUID of a GPU or of an instance.
    fn nvmlDeviceGetHandleByUUID(uuid: TextIn, handle: Out<usize>) {
        let machine = session::machine()?;
        let uuid = uuid.get()?;
        if let Some(gpu) = machine.node.with_uuid(&uuid) {
            return handle.put(handle_of(&machine, gpu.index));
        }
        let found = machine.node.instance_with_uuid(&uuid, machine.now());
        let (gpu, instance) = found.ok_or(Status::NotFound)?;
        handle.put(handle_of(&machine, gpu.index) + 1 + instance.id as usize)
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: TextIn, handle: Out<usize>) {
        let machine = session::machine()?;
        let gpu = machine.node.at_bus_id(&bus_id.get()?).ok_or(Status::NotFound)?;
        handle.put(handle_of(&machine, gpu.index))
    }

    fn nvmlDeviceGetName(handle: usize, name: TextOut, length: u32) {
        let subject = subject(handle)?;
        let model = subject.device.gpu().profile.name;
        match subject.instance {
            None => name.put_text(length, model),
            Some(instance) => name.put_text(length, &format!("{model} MIG {}", instance.slice.name)),
        }
    }

    fn nvmlDeviceGetUUID(handle: usize, uuid: TextOut, length: u32) {
        let subject = subject(handle)?;
        let gpu = subject.device.gpu();
        match subject.instance {
            None => uuid.put_text(length, &gpu.identity.uuid),
            Some(instance) => uuid.put_text(length, &instance.uuid(gpu.noise)),
        }
    }

    fn nvmlDeviceGetIndex(handle: usize, index: Out<u32>) {
        let subject = subject(handle)?;
        let gpu = subject.device.gpu();
        let Some(instance) = subject.instance else {
            return index.put(gpu.index);
        };
        // The index of an instance is its position among the instances of its GPU.
        let instances = gpu.instances(subject.device.t).unwrap_or_default();
        let place = instances.iter().position(|other| other.id == instance.id);
        index.put(place.ok_or(Status::NotFound)? as u32)
    }

    fn nvmlDeviceGetMinorNumber(handle: usize, minor: Out<u32>) {
        minor.put(device(handle)?.gpu().index)
    }

    /// Modules of a baseboard are numbered from one.
    fn nvmlDeviceGetModuleId(handle: usize, module: Out<u32>) {
        module.put(device(handle)?.gpu().index + 1)
    }

    fn nvmlDeviceGetPciInfo_v3(handle: usize, pci: Out<PciInfo>) {
        let subject = subject(handle)?;
        let gpu = subject.device.gpu();
        pci.put(PciInfo {
            bus_id_legacy: c_text(&gpu.identity.bus_id_legacy()),
            domain: 0,
            bus: gpu.identity.pci_bus,
            device: 0,
            pci_device_id: gpu.profile.pci_device_id,
            pci_subsystem_id: gpu.profile.pci_subsystem_id,
            bus_id: c_text(&gpu.identity.bus_id()),
        })
    }

    /// Workstation boards have no serial number.
    fn nvmlDeviceGetSerial(handle: usize, serial: TextOut, length: u32) {
        let device = device(handle)?;
        if !device.gpu().profile.datacenter {
            return Err(Status::NotSupported);
        }
        serial.put_text(length, &device.gpu().identity.serial)
    }

    fn nvmlDeviceGetArchitecture(handle: usize, architecture: Out<u32>) {
        architecture.put(subject(handle)?.device.gpu().profile.architecture)
    }

    fn nvmlDeviceGetCudaComputeCapability(handle: usize, major: Out<i32>, minor: Out<i32>) {
        let capability = subject(handle)?.device.gpu().profile.compute_capability;
        major.put(capability.0)?;
        minor.put(capability.1)
    }

    fn nvmlDeviceGetBrand(handle: usize, brand: Out<u32>) {
        brand.put(subject(handle)?.device.gpu().profile.brand)
    }

    fn nvmlDeviceGetVbiosVersion(handle: usize, version: TextOut, length: u32) {
        version.put_text(length, device(handle)?.gpu().profile.vbios)
    }

    /// NVML has no length argument here and requires a buffer of 80 bytes.
    fn nvmlDeviceGetGspFirmwareVersion(handle: usize, version: TextOut) {
        let device = device(handle)?;
        version.put_text(80, &device.node().driver.at(device.t).to_string())
    }

    fn nvmlDeviceGetGspFirmwareMode(handle: usize, enabled: Out<u32>, default: Out<u32>) {
        device(handle)?;
        enabled.put(1)?;
        default.put(1)
    }

    /// The NUMA node of the GPU's own memory: only on Grace superchips.
    fn nvmlDeviceGetNumaNodeId(handle: usize, _node: Out<u32>) {
        device(handle)?;
        Err(Status::NotSupported)
    }

    /// The position of the GPU in its rack, since Blackwell.
    fn nvmlDeviceGetPlatformInfo(handle: usize, info: Out<PlatformInfo>) {
        let device = device(handle)?;
        let version = info.version()?;
        if version != version_of::<PlatformInfo>(1) && version != version_of::<PlatformInfo>(2) {
            return Err(Status::ArgumentVersionMismatch);
        }
        let gpu = device.gpu();
        if !gpu.profile.is_blackwell() {
            return Err(Status::NotSupported);
        }
        // Peer type 1: connected through a switch.
        info.put(PlatformInfo {
            version,
            ib_guid: [0; 16],
            chassis_serial: [0; 16],
            slot: 0,
            tray: 0,
            host: 1,
            peer_type: 1,
            module: gpu.index as u8 + 1,
        })
    }

    fn nvmlDeviceGetPersistenceMode(handle: usize, mode: Out<u32>) {
        let datacenter = device(handle)?.gpu().profile.datacenter;
        mode.put(u32::from(datacenter))
    }

    fn nvmlDeviceGetComputeMode(handle: usize, mode: Out<u32>) {
        device(handle)?;
        mode.put(0)
    }

    fn nvmlDeviceGetDisplayMode(handle: usize, mode: Out<u32>) {
        device(handle)?;
        mode.put(0)
    }

    fn nvmlDeviceGetDisplayActive(handle: usize, active: Out<u32>) {
        device(handle)?;
        active.put(0)
    }

    /// Windows only.
    fn nvmlDeviceGetDriverModel_v2(handle: usize, _current: Out<u32>, _pending: Out<u32>) {
        device(handle)?;
        Err(Status::NotSupported)
    }

    /// `NVML_GPU_VIRTUALIZATION_MODE_NONE`: bare metal.
    fn nvmlDeviceGetVirtualizationMode(handle: usize, mode: Out<u32>) {
        device(handle)?;
        mode.put(0)
    }

    /// Licences belong to virtual GPUs.
    fn nvmlDeviceGetGridLicensableFeatures_v4(handle: usize, _features: Out<u32>) {
        device(handle)?;
        Err(Status::NotSupported)
    }

    /// There are no virtual GPUs.
    fn nvmlDeviceGetHostVgpuMode(handle: usize, _mode: Out<u32>) {
        device(handle)?;
        Err(Status::NotSupported)
    }
}
