//! The memory of the GPU, and its window in the CPU's address space.

use super::exports;
use super::handle::{Subject, subject};
use super::pointer::Out;
use super::structs::{Memory, MemoryV2, version_of};
use crate::engine::gpu;
use crate::engine::status::Status;

exports! {
    /// The first revision includes reserved memory in the used memory.
    fn nvmlDeviceGetMemoryInfo(handle: usize, memory: Out<Memory>) {
        let now = reading(&subject(handle)?);
        memory.put(Memory { total: now.total, free: now.free, used: now.used + now.reserved })
    }

    fn nvmlDeviceGetMemoryInfo_v2(handle: usize, memory: Out<MemoryV2>) {
        let subject = subject(handle)?;
        let version = memory.version()?;
        if version != version_of::<MemoryV2>(2) {
            return Err(Status::ArgumentVersionMismatch);
        }
        let now = reading(&subject);
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
        let subject = subject(handle)?;
        let whole = subject.device.gpu().profile.bar1_mib * MIB;
        // An instance has the same share of the window as of the memory.
        let eighths = subject.instance.map_or(8, |instance| u64::from(instance.slice.eighths));
        let total = whole / 8 * eighths;
        memory.put(Memory { total, free: total - MAPPED, used: MAPPED })
    }
}

fn reading(subject: &Subject) -> gpu::Memory {
    let (gpu, t) = (subject.device.gpu(), subject.device.t);
    match &subject.instance {
        None => gpu.memory(t),
        Some(instance) => gpu.instance_memory(instance, t),
    }
}
