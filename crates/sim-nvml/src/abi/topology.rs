//! How GPUs are connected to each other and to the CPUs.

use super::exports;
use super::handle::{Device, device, handle_of};
use super::pointer::Out;
use crate::engine::status::Status;

/// The CPUs of one socket, as in a DGX.
const SOCKET_CPUS: u32 = 56;
/// The number of CPUs in one word of a CPU set.
const WORD_CPUS: u32 = u64::BITS;

/// `nvmlGpuP2PStatus_t`.
const P2P_OK: u32 = 0;
const P2P_CHIPSET_NOT_SUPPORTED: u32 = 1;
const P2P_NOT_SUPPORTED: u32 = 5;

exports! {
    fn nvmlDeviceGetTopologyCommonAncestor(handle: usize, other: usize, level: Out<u32>) {
        let one = device(handle)?;
        let other = device(other)?;
        level.put(one.node().topology_level(one.gpu(), other.gpu()) as u32)
    }

    fn nvmlDeviceGetTopologyNearestGpus(handle: usize, level: u32, count: Out<u32>, handles: Out<usize>) {
        let device = device(handle)?;
        let (node, gpu) = (device.node(), device.gpu());
        let others = node.gpus.iter().filter(|other| other.index != gpu.index);
        let near = others.filter(|other| node.topology_level(gpu, other) as u32 == level);
        let found: Vec<usize> = near.map(|other| handle_of(&device.machine, other.index)).collect();
        let room = count.get()? as usize;
        count.put(found.len() as u32)?;
        if handles.is_null() {
            return Ok(());
        }
        if room < found.len() {
            return Err(Status::InsufficientSize);
        }
        found.iter().enumerate().try_for_each(|(index, handle)| handles.put_at(index, *handle))
    }

    fn nvmlDeviceGetP2PStatus(handle: usize, other: usize, capability: u32, status: Out<u32>) {
        const NVLINK: u32 = 2;
        const COUNT: u32 = 5;
        let one = device(handle)?;
        let other = device(other)?;
        if one.gpu().index == other.gpu().index || capability >= COUNT {
            return Err(Status::InvalidArgument);
        }
        let partitioned = |device: &Device| device.gpu().instances(device.t).is_some();
        if partitioned(&one) || partitioned(&other) {
            return status.put(P2P_NOT_SUPPORTED);
        }
        status.put(match (&one.gpu().profile.nvlink, capability) {
            (Some(_), _) => P2P_OK,
            (None, NVLINK) => P2P_NOT_SUPPORTED,
            (None, _) => P2P_CHIPSET_NOT_SUPPORTED,
        })
    }

    /// The CPUs of the GPU's own socket.
    fn nvmlDeviceGetCpuAffinity(handle: usize, words: u32, set: Out<u64>) {
        let device = device(handle)?;
        if words == 0 {
            return Err(Status::InvalidArgument);
        }
        let first = device.node().socket(device.gpu()) * SOCKET_CPUS;
        let near = first..first + SOCKET_CPUS;
        (0..words).try_for_each(|word| set.put_at(word as usize, bits(&near, word)))
    }
}

/// Returns one word of a CPU set.
fn bits(cpus: &std::ops::Range<u32>, word: u32) -> u64 {
    let inside = |bit: &u32| {
        word.checked_mul(WORD_CPUS)
            .is_some_and(|base| cpus.contains(&(base + bit)))
    };
    (0..WORD_CPUS).filter(inside).fold(0, |bits, bit| bits | 1 << bit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_sets_cross_words() {
        assert_eq!(bits(&(0..56), 0), (1 << 56) - 1);
        assert_eq!(bits(&(56..112), 0), 0xFF << 56);
        assert_eq!(bits(&(56..112), 1), (1 << 48) - 1);
        assert_eq!(bits(&(56..112), u32::MAX), 0);
    }
}
