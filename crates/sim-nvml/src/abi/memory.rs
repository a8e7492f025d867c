//! Memory of the GPU and its window in the CPU's address space.

use super::exports;
use super::pointer::Out;
use super::session::device;
use super::structs::{Memory, MemoryV2, version_of};
use crate::engine::status::Status;

exports! {
    /// The first revision counts what the driver reserved as used.
    fn nvmlDeviceGetMemoryInfo(handle: usize, memory: Out<Memory>) {
        let device = device(handle)?;
        let now = device.gpu().memory(device.t);
        memory.put(Memory { total: now.total, free: now.free, used: now.used + now.reserved })
    }

    fn nvmlDeviceGetMemoryInfo_v2(handle: usize, memory: Out<MemoryV2>) {
        let device = device(handle)?;
        let version = memory.version()?;
        if version != version_of::<MemoryV2>(2) {
            return Err(Status::ArgumentVersionMismatch);
        }
        let now = device.gpu().memory(device.t);
        memory.put(MemoryV2 {
            version,
            total: now.total,
            reserved: now.reserved,
            free: now.free,
            used: now.used,
        })
    }

    fn nvmlDeviceGetBAR1MemoryInfo(handle: usize, memory: Out<Memory>) {
        const MIB: u64 = 1 << 20;
        const MAPPED: u64 = 6 * MIB;
        let total = device(handle)?.gpu().profile.bar1_mib * MIB;
        memory.put(Memory { total, free: total - MAPPED, used: MAPPED })
    }
}
