//! Single readings that the wrapper does not have.

use std::mem::size_of;

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{
    nvmlConfComputeSystemState_t, nvmlEccSramErrorStatus_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfoV_t,
    nvmlMemory_t, nvmlMemory_v2_t,
};

/// NVML's version of a struct: its size and its revision.
const fn version_of<T>(revision: u32) -> u32 {
    size_of::<T>() as u32 | revision << 24
}

/// The frame buffer, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    pub(crate) used: u64,
    /// Reserved by driver and firmware. `None` with an old library, which counts it as used.
    pub(crate) reserved: Option<u64>,
}

/// Reads the use of the frame buffer. A library without the second version of the call has the first one.
pub(crate) fn memory(device: &Device<'_>) -> Result<Memory, NvmlError> {
    let lib = device.nvml().lib();
    if let Ok(call) = &lib.nvmlDeviceGetMemoryInfo_v2 {
        // SAFETY: plain numbers.
        let mut info: nvmlMemory_v2_t = unsafe { std::mem::zeroed() };
        info.version = version_of::<nvmlMemory_v2_t>(2);
        // SAFETY: the handle lives, and the struct is ours.
        nvml_try(unsafe { call(device.handle(), &mut info) })?;
        return Ok(Memory {
            total: info.total,
            used: info.used,
            reserved: Some(info.reserved),
        });
    }
    let call = nvml_sym(lib.nvmlDeviceGetMemoryInfo.as_ref())?;
    // SAFETY: plain numbers.
    let mut info: nvmlMemory_t = unsafe { std::mem::zeroed() };
    // SAFETY: the handle lives, and the struct is ours.
    nvml_try(unsafe { call(device.handle(), &mut info) })?;
    Ok(Memory {
        total: info.total,
        used: info.used,
        reserved: None,
    })
}

/// The number of remapped rows of device memory, and whether a remapping is pending or has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RemappedRows {
    pub(crate) corrected: u32,
    pub(crate) uncorrected: u32,
    pub(crate) pending: bool,
    pub(crate) failed: bool,
}

/// Reads the remapped rows.
pub(crate) fn remapped_rows(device: &Device<'_>) -> Result<RemappedRows, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetRemappedRows.as_ref())?;
    let (mut corrected, mut uncorrected, mut pending, mut failed) = (0, 0, 0, 0);
    // SAFETY: the handle lives, and the four numbers are ours.
    nvml_try(unsafe {
        call(
            device.handle(),
            &mut corrected,
            &mut uncorrected,
            &mut pending,
            &mut failed,
        )
    })?;
    Ok(RemappedRows {
        corrected,
        uncorrected,
        pending: pending != 0,
        failed: failed != 0,
    })
}

/// Reads why the clocks are reduced, as NVML's bits. Older libraries have only the old name of the call.
pub(crate) fn clocks_event_reasons(device: &Device<'_>) -> Result<u64, NvmlError> {
    let lib = device.nvml().lib();
    let new = lib.nvmlDeviceGetCurrentClocksEventReasons.as_ref();
    let call = new.or(lib.nvmlDeviceGetCurrentClocksThrottleReasons.as_ref());
    let mut reasons = 0;
    // SAFETY: the handle lives, and the number is ours.
    nvml_try(unsafe { nvml_sym(call)?(device.handle(), &mut reasons) })?;
    Ok(reasons)
}

/// Errors in the caches and registers of the chip since the driver was loaded, the units of the uncorrectable errors in the GPU's whole
/// life, and whether there are so many that NVIDIA replaces the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SramErrors {
    pub(crate) corrected: u64,
    pub(crate) parity: u64,
    pub(crate) sec_ded: u64,
    /// L2, SM, PCIe, microcontroller, other.
    pub(crate) lifetime_by_unit: [u64; 5],
    pub(crate) threshold_exceeded: bool,
}

/// Reads the errors in SRAM.
pub(crate) fn sram_errors(device: &Device<'_>) -> Result<SramErrors, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetSramEccErrorStatus.as_ref())?;
    // SAFETY: plain numbers.
    let mut status: nvmlEccSramErrorStatus_t = unsafe { std::mem::zeroed() };
    status.version = version_of::<nvmlEccSramErrorStatus_t>(1);
    // SAFETY: the handle lives, and the struct is ours.
    nvml_try(unsafe { call(device.handle(), &mut status) })?;
    Ok(SramErrors {
        corrected: status.volatileCor,
        parity: status.volatileUncParity,
        sec_ded: status.volatileUncSecDed,
        lifetime_by_unit: [
            status.aggregateUncBucketL2,
            status.aggregateUncBucketSm,
            status.aggregateUncBucketPcie,
            status.aggregateUncBucketMcu,
            status.aggregateUncBucketOther,
        ],
        threshold_exceeded: status.bThresholdExceeded != 0,
    })
}

/// The membership of a GPU in an NVLink domain that spans nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fabric {
    pub(crate) cluster: [u8; 16],
    pub(crate) clique: u32,
    /// 1 not started, 2 in progress, 3 completed.
    pub(crate) state: u32,
    /// The result of the registration, as an NVML return code.
    pub(crate) status: u32,
    /// 1 healthy, 2 unhealthy, 3 limited capacity. `None` with older drivers.
    pub(crate) health: Option<u8>,
}

/// Reads the state of the fabric with the newest revision of the struct that the driver supports.
pub(crate) fn fabric(device: &Device<'_>) -> Result<Fabric, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuFabricInfoV.as_ref())?;
    // The second revision is the third without its last member, so one struct serves for both.
    let versions = [
        version_of::<nvmlGpuFabricInfoV_t>(3),
        version_of::<nvmlGpuFabricInfo_v2_t>(2),
    ];
    let mut refused = NvmlError::NotSupported;
    for (version, knows_health) in versions.into_iter().zip([true, false]) {
        // SAFETY: plain numbers.
        let mut info: nvmlGpuFabricInfoV_t = unsafe { std::mem::zeroed() };
        info.version = version;
        // SAFETY: the handle lives, and the struct is ours and at least as large as its version says.
        match nvml_try(unsafe { call(device.handle(), &mut info) }) {
            Ok(()) if info.state == 0 => return Err(NvmlError::NotSupported),
            Ok(()) => {
                return Ok(Fabric {
                    cluster: info.clusterUuid,
                    clique: info.cliqueId,
                    state: info.state.into(),
                    status: info.status,
                    health: (knows_health && info.healthSummary != 0).then_some(info.healthSummary),
                });
            }
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// Reads how a GPU is shared with virtual machines, as `nvmlGpuVirtualizationMode_t`.
pub(crate) fn virtualization(device: &Device<'_>) -> Result<u32, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetVirtualizationMode.as_ref())?;
    let mut mode = 0;
    // SAFETY: the handle lives, and the number is ours.
    nvml_try(unsafe { call(device.handle(), &mut mode) })?;
    Ok(mode)
}

/// Returns true if confidential computing is on for the whole system.
pub(crate) fn confidential_computing(device: &Device<'_>) -> Result<bool, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlSystemGetConfComputeState.as_ref())?;
    // SAFETY: plain numbers.
    let mut state: nvmlConfComputeSystemState_t = unsafe { std::mem::zeroed() };
    // SAFETY: the struct is ours.
    nvml_try(unsafe { call(&mut state) })?;
    Ok(state.ccFeature != 0)
}

/// Returns the numbers of a MIG device: its GPU instance and its compute instance.
pub(crate) fn mig_instance(device: &Device<'_>) -> Result<(u32, u32), NvmlError> {
    let lib = device.nvml().lib();
    let gpu = nvml_sym(lib.nvmlDeviceGetGpuInstanceId.as_ref())?;
    let compute = nvml_sym(lib.nvmlDeviceGetComputeInstanceId.as_ref())?;
    let (mut gpu_instance, mut compute_instance) = (0, 0);
    // SAFETY: the handle lives, and the numbers are ours.
    unsafe {
        nvml_try(gpu(device.handle(), &mut gpu_instance))?;
        nvml_try(compute(device.handle(), &mut compute_instance))?;
    }
    Ok((gpu_instance, compute_instance))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_as_in_the_header() {
        assert_eq!(version_of::<nvmlMemory_v2_t>(2), 0x0200_0028);
        assert_eq!(version_of::<nvmlEccSramErrorStatus_t>(1), 0x0100_0068);
        assert_eq!(version_of::<nvmlGpuFabricInfo_v2_t>(2), 0x0200_0024);
        assert_eq!(version_of::<nvmlGpuFabricInfoV_t>(3), 0x0300_0028);
    }
}
