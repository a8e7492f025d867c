//! The processes on a GPU, and how busy each one keeps it.

use super::CallResult;
use super::exports;
use super::handle::{Device, device, subject};
use super::pointer::Out;
use super::structs::{
    NO_INSTANCE, ProcessInfo, ProcessUtilizationInfo, ProcessUtilizationSample, ProcessesUtilization,
    version_of,
};
use crate::engine::samples::processes_sampled_at;
use crate::engine::status::Status;

exports! {
    fn nvmlDeviceGetComputeRunningProcesses_v3(handle: usize, count: Out<u32>, infos: Out<ProcessInfo>) {
        let subject = subject(handle)?;
        let mut running = subject.device.gpu().processes(subject.device.t);
        if let Some(instance) = subject.instance {
            running.retain(|process| process.instance == Some(instance.id));
        }
        let info = |index: usize| ProcessInfo {
            pid: running[index].pid,
            used_memory: running[index].memory,
            gpu_instance: running[index].instance.unwrap_or(NO_INSTANCE),
            compute_instance: running[index].instance.map_or(NO_INSTANCE, |_| 0),
        };
        fill(running.len(), &count, &infos, info)
    }

    /// No process draws on these GPUs.
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(handle: usize, count: Out<u32>, _infos: Out<ProcessInfo>) {
        subject(handle)?;
        count.put(0)
    }

    /// No process uses these GPUs through MPS.
    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(handle: usize, count: Out<u32>, _infos: Out<ProcessInfo>) {
        subject(handle)?;
        count.put(0)
    }

    fn nvmlDeviceGetProcessUtilization(
        handle: usize,
        samples: Out<ProcessUtilizationSample>,
        count: Out<u32>,
        last_seen_us: u64,
    ) {
        let device = device(handle)?;
        let latest = Latest::after(&device, last_seen_us)?;
        let sample = |index: usize| ProcessUtilizationSample {
            pid: latest.pids[index],
            timestamp_us: latest.timestamp_us,
            sm: latest.sm,
            memory: latest.memory,
            encoder: 0,
            decoder: 0,
        };
        fill(latest.pids.len(), &count, &samples, sample)
    }

    fn nvmlDeviceGetProcessesUtilizationInfo(handle: usize, request: Out<ProcessesUtilization>) {
        let device = device(handle)?;
        if request.version()? != version_of::<ProcessesUtilization>(1) {
            return Err(Status::ArgumentVersionMismatch);
        }
        let asked = request.get()?;
        let latest = Latest::after(&device, asked.last_seen_us)?;
        let count = latest.pids.len() as u32;
        request.put(ProcessesUtilization { count, ..asked })?;
        if asked.infos.is_null() || asked.count < count {
            return Err(Status::InsufficientSize);
        }
        let mut pids = latest.pids.iter().enumerate();
        pids.try_for_each(|(index, pid)| asked.infos.put_at(index, latest.info(*pid)))
    }
}

/// The newest sample of all processes of a GPU.
struct Latest {
    timestamp_us: u64,
    pids: Vec<u32>,
    sm: u32,
    memory: u32,
}

impl Latest {
    /// Returns `NotFound` if there is no newer sample or no process, and `NotSupported` for a partitioned GPU.
    fn after(device: &Device, last_seen_us: u64) -> Result<Latest, Status> {
        let (gpu, t) = (device.gpu(), processes_sampled_at(device.t));
        let (sm, memory) = gpu.utilization_rates(t)?;
        let timestamp_us = device.machine.unix_us(t);
        let pids: Vec<u32> = gpu.processes(t).iter().map(|process| process.pid).collect();
        if pids.is_empty() || timestamp_us <= last_seen_us {
            return Err(Status::NotFound);
        }
        Ok(Latest {
            timestamp_us,
            pids,
            sm,
            memory,
        })
    }

    fn info(&self, pid: u32) -> ProcessUtilizationInfo {
        ProcessUtilizationInfo {
            timestamp_us: self.timestamp_us,
            pid,
            sm: self.sm,
            memory: self.memory,
            encoder: 0,
            decoder: 0,
            jpeg: 0,
            optical_flow: 0,
        }
    }
}

/// Fills a list in NVML's way: the caller provides room for `count` items. If that is too little, it gets the required count.
fn fill<T: Copy>(length: usize, count: &Out<u32>, items: &Out<T>, item: impl Fn(usize) -> T) -> CallResult {
    let room = count.get()? as usize;
    count.put(length as u32)?;
    if length == 0 {
        return Ok(());
    }
    if room < length || items.is_null() {
        return Err(Status::InsufficientSize);
    }
    (0..length).try_for_each(|index| items.put_at(index, item(index)))
}
