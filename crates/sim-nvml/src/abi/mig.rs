//! Multi-instance GPUs: whether a GPU is partitioned, its instances and their properties.

use super::exports;
use super::handle::{Subject, device, handle_of, subject};
use super::pointer::Out;
use super::structs::DeviceAttributes;
use crate::engine::mig::Instance;
use crate::engine::status::Status;

exports! {
    fn nvmlDeviceGetMigMode(handle: usize, current: Out<u32>, pending: Out<u32>) {
        let device = device(handle)?;
        if device.gpu().profile.mig.is_empty() {
            return Err(Status::NotSupported);
        }
        let mode = u32::from(device.gpu().instances(device.t).is_some());
        current.put(mode)?;
        pending.put(mode)
    }

    fn nvmlDeviceGetMaxMigDeviceCount(handle: usize, count: Out<u32>) {
        count.put(device(handle)?.gpu().profile.mig_instances_max())
    }

    fn nvmlDeviceIsMigDeviceHandle(handle: usize, is_mig: Out<u32>) {
        is_mig.put(u32::from(subject(handle)?.instance.is_some()))
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex(handle: usize, index: u32, instance: Out<usize>) {
        let device = device(handle)?;
        let gpu = device.gpu();
        if index >= gpu.profile.mig_instances_max() {
            return Err(Status::InvalidArgument);
        }
        let instances = gpu.instances(device.t).unwrap_or_default();
        let found = instances.get(index as usize).ok_or(Status::NotFound)?;
        instance.put(device.instance_handle(found))
    }

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle: usize, parent: Out<usize>) {
        let subject = subject(handle)?;
        instance_of(&subject)?;
        parent.put(handle_of(&subject.device.machine, subject.device.gpu().index))
    }

    fn nvmlDeviceGetGpuInstanceId(handle: usize, id: Out<u32>) {
        id.put(instance_of(&subject(handle)?)?.id)
    }

    /// One compute instance fills each GPU instance.
    fn nvmlDeviceGetComputeInstanceId(handle: usize, id: Out<u32>) {
        instance_of(&subject(handle)?)?;
        id.put(0)
    }

    fn nvmlDeviceGetAttributes_v2(handle: usize, attributes: Out<DeviceAttributes>) {
        let slice = instance_of(&subject(handle)?)?.slice;
        attributes.put(DeviceAttributes {
            multiprocessors: slice.multiprocessors,
            copy_engines: slice.copy_engines,
            decoders: slice.decoders,
            // None of these models has an encoder.
            encoders: 0,
            jpegs: slice.jpegs,
            optical_flows: slice.optical_flows,
            gpu_instance_slices: slice.compute,
            compute_instance_slices: slice.compute,
            memory_mib: slice.memory_mib,
        })
    }
}

/// Returns the instance, for calls that only instances support.
fn instance_of(subject: &Subject) -> Result<Instance, Status> {
    subject.instance.ok_or(Status::NotSupported)
}
