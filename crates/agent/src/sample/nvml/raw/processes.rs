//! Reads the processes on a GPU with one call instead of the wrapper's two: it is the most expensive call.

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{
    nvmlProcessInfo_t, nvmlProcessUtilizationSample_t, nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE,
    nvmlReturn_t,
};

/// The number of processes for which there is room at first. Few GPUs have more.
const PROCESSES_FIRST: usize = 64;
/// The maximum number of processes. A GPU does not have this many contexts.
const PROCESSES_MAX: usize = 4_096;

/// Returns the compute processes: their ids, and their device memory in bytes if the driver knows it.
pub(crate) fn compute_processes(device: &Device<'_>) -> Result<Vec<(u32, Option<u64>)>, NvmlError> {
    let lib = device.nvml().lib();
    let call = nvml_sym(lib.nvmlDeviceGetComputeRunningProcesses_v3.as_ref())?;
    let infos: Vec<nvmlProcessInfo_t> = listed(|count, infos| {
        // SAFETY: the handle lives, and there is room for `count` entries.
        unsafe { call(device.handle(), count, infos) }
    })?;
    let known = |bytes: u64| (bytes != u64::MAX).then_some(bytes);
    Ok(infos
        .iter()
        .map(|info| (info.pid, known(info.usedGpuMemory)))
        .collect())
}

/// Returns each process's share of the multiprocessors' time since `last_seen`, from its newest sample, and advances `last_seen`. Returns
/// `NotFound` if there is no newer sample.
pub(crate) fn processes_utilization(
    device: &Device<'_>,
    last_seen: &mut u64,
) -> Result<Vec<(u32, f64)>, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetProcessUtilization.as_ref())?;
    let seen = *last_seen;
    let mut samples: Vec<nvmlProcessUtilizationSample_t> = listed(|count, samples| {
        // SAFETY: the handle lives, and there is room for `count` entries.
        unsafe { call(device.handle(), samples, count, seen) }
    })?;
    samples.sort_by_key(|sample| (sample.pid, std::cmp::Reverse(sample.timeStamp)));
    samples.dedup_by_key(|sample| sample.pid);
    *last_seen = samples.iter().map(|sample| sample.timeStamp).fold(seen, u64::max);
    // Some drivers return shares above 100 percent, and process 0.
    samples.retain(|sample| sample.pid != 0 && sample.smUtil <= 100);
    Ok(samples
        .iter()
        .map(|sample| (sample.pid, f64::from(sample.smUtil) / 100.0))
        .collect())
}

/// Repeats the call with more room until all entries fit.
fn listed<T: Copy>(call: impl Fn(&mut u32, *mut T) -> nvmlReturn_t) -> Result<Vec<T>, NvmlError> {
    let mut room = PROCESSES_FIRST;
    loop {
        // SAFETY: used for structs of plain numbers only.
        let mut entries: Vec<T> = vec![unsafe { std::mem::zeroed() }; room];
        let mut count = room as u32;
        let code = call(&mut count, entries.as_mut_ptr());
        if code == nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE && room < PROCESSES_MAX {
            // Processes may start in between, so make more room than was missing.
            room = (count as usize + PROCESSES_FIRST).clamp(room * 2, PROCESSES_MAX);
            continue;
        }
        nvml_try(code)?;
        entries.truncate(count as usize);
        return Ok(entries);
    }
}
