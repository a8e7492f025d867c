//! Multi-instance GPUs: the simulated ones can be partitioned, and are not.

use super::exports;
use super::pointer::Out;
use super::session::device;
use crate::engine::status::Status;

exports! {
    fn nvmlDeviceGetMigMode(handle: usize, current: Out<u32>, pending: Out<u32>) {
        if device(handle)?.gpu().profile.mig_instances_max == 0 {
            return Err(Status::NotSupported);
        }
        current.put(0)?;
        pending.put(0)
    }

    fn nvmlDeviceGetMaxMigDeviceCount(handle: usize, count: Out<u32>) {
        count.put(device(handle)?.gpu().profile.mig_instances_max)
    }

    fn nvmlDeviceIsMigDeviceHandle(handle: usize, is_mig: Out<u32>) {
        device(handle)?;
        is_mig.put(0)
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex(handle: usize, _index: u32, _instance: Out<usize>) {
        device(handle)?;
        Err(Status::NotFound)
    }

    /// What follows is for handles of instances, and there are none.
    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle: usize, _parent: Out<usize>) {
        device(handle)?;
        Err(Status::NotSupported)
    }

    fn nvmlDeviceGetGpuInstanceId(handle: usize, _id: Out<u32>) {
        device(handle)?;
        Err(Status::NotSupported)
    }

    fn nvmlDeviceGetComputeInstanceId(handle: usize, _id: Out<u32>) {
        device(handle)?;
        Err(Status::NotSupported)
    }

    fn nvmlDeviceGetAttributes_v2(handle: usize, _attributes: Out<u64>) {
        device(handle)?;
        Err(Status::NotSupported)
    }
}
