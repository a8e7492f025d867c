//! One simulated GPU: its identity, the effect of faults on calls, its work, memory and processes.
//!
//! Its other values are in the files beside this one, by subject: `power`, `pcie`, `ecc`, `nvlink`, `partition`.

use super::driver::DriverHistory;
use super::fault::{CallEffect, Fault, FaultKind};
use super::identity::Identity;
use super::job::Job;
use super::noise::Noise;
use super::nvlink::Links;
use super::partition::Partitions;
use super::profile::Profile;
use super::status::Status;

/// A GPU of the node. Every reading is a function of `t`, the seconds since the simulation started.
#[derive(Debug, Clone)]
pub(crate) struct Gpu {
    pub index: u32,
    pub profile: &'static Profile,
    pub identity: Identity,
    pub job: Job,
    /// The faults of this GPU only, in the order of their start.
    pub faults: Vec<Fault>,
    /// True if there is another GPU to communicate with over NVLink.
    pub has_peers: bool,
    pub noise: Noise,
    pub driver: DriverHistory,
    /// The fields that the GPU does not support, in the numbering of NVML 12.
    pub without: Vec<u32>,
    pub links: Links,
    pub partitions: Partitions,
}

/// Memory in bytes. `used` does not include `reserved`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Memory {
    pub total: u64,
    pub reserved: u64,
    pub used: u64,
    pub free: u64,
}

/// A process on the GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Process {
    pub pid: u32,
    pub memory: u64,
    /// The GPU instance in which the process runs.
    pub instance: Option<u32>,
}

/// The first process id. It is above Linux's maximum (2^22), so that it is not the id of a real process.
const FIRST_PID: u32 = 4_200_000;
/// The first process id in instances of partitioned GPUs. Each GPU has 16 ids.
const FIRST_INSTANCE_PID: u32 = FIRST_PID + 1_000;
const MIB: u64 = 1 << 20;
/// The memory of a process besides its tensors.
const CONTEXT: u64 = 10 * MIB;

const CHANNEL_MEMORY: u64 = 1;

// === The effect of faults on calls ===

impl Gpu {
    /// Returns the effect of the faults on a call at `t`.
    pub(crate) fn call_effect(&self, t: f64) -> CallEffect {
        let effects = self.faults.iter().map(|fault| fault.call_effect(t));
        effects.fold(CallEffect::Normal, CallEffect::or_worse)
    }

    /// Returns the faults that are active at `t`.
    pub(crate) fn faults_at(&self, t: f64) -> impl Iterator<Item = FaultKind> {
        let lasting = self.faults.iter().filter(move |fault| fault.window.holds(t));
        lasting.map(|fault| fault.kind)
    }

    /// Returns the mean slope of a counter over the `width` seconds before `t`.
    pub(crate) fn mean(&self, counter: impl Fn(&Job, f64) -> f64, t: f64, width: f64) -> f64 {
        (counter(&self.job, t) - counter(&self.job, t - width)) / width
    }

    /// Returns the increase of a counter since the driver was loaded. Most counters restart then.
    pub(crate) fn since_load<N: std::ops::Sub<Output = N>>(&self, counter: impl Fn(f64) -> N, t: f64) -> N {
        counter(t) - counter(self.driver.loaded_at(t))
    }
}

// === Work and memory ===

impl Gpu {
    /// Returns `nvmlDeviceGetUtilizationRates`: GPU and memory, in percent. NVML does not support it for a partitioned GPU.
    pub(crate) fn utilization_rates(&self, t: f64) -> Result<(u32, u32), Status> {
        if self.instances(t).is_some() {
            return Err(Status::NotSupported);
        }
        Ok((self.utilization(t), self.memory_utilization(t)))
    }

    /// Returns the percentage of the last half second in which a kernel was resident.
    pub(crate) fn utilization(&self, t: f64) -> u32 {
        percent(self.mean(Job::kernel_seconds, t, 0.5))
    }

    /// Returns the percentage of time in which memory was read or written.
    pub(crate) fn memory_utilization(&self, t: f64) -> u32 {
        percent(0.6 * self.mean(Job::compute_seconds, t, 0.5))
    }

    pub(crate) fn memory(&self, t: f64) -> Memory {
        let (total, reserved) = (self.profile.memory_mib * MIB, self.profile.reserved_mib * MIB);
        let used = match self.instances(t) {
            Some(_) => self.processes(t).iter().map(|process| process.memory).sum(),
            None => self.used_by_job(t, total).saturating_sub(reserved) / (2 * MIB) * (2 * MIB),
        };
        Memory {
            total,
            reserved,
            used,
            free: total - reserved - used,
        }
    }

    /// Returns the used memory with what the driver reserved, as users count it. Allocations are in pages of 2 MiB.
    fn used_by_job(&self, t: f64, total: u64) -> u64 {
        let share = if self.faults_at(t).any(|fault| fault == FaultKind::MemoryPressure) {
            0.98
        } else if self.job.is_training(t) {
            0.80 + 0.004 * self.noise.each_second(CHANNEL_MEMORY, t)
        } else {
            0.0
        };
        (total as f64 * share) as u64
    }

    /// Returns one rank per GPU, or one process per instance; none without a job.
    pub(crate) fn processes(&self, t: f64) -> Vec<Process> {
        if !self.job.is_training(t) {
            return Vec::new();
        }
        let Some(instances) = self.instances(t) else {
            return vec![Process {
                pid: FIRST_PID + self.index,
                memory: self.memory(t).used.saturating_sub(CONTEXT),
                instance: None,
            }];
        };
        let process = |id, memory| Process {
            pid: FIRST_INSTANCE_PID + 16 * self.index + id,
            memory,
            instance: Some(id),
        };
        let running = instances.iter();
        running
            .map(|one| process(one.id, one.used_bytes(self.noise)))
            .collect()
    }

    /// Returns the name of a simulated process.
    pub(crate) fn process_name(&self, pid: u32, t: f64) -> Option<&'static str> {
        let runs = self.processes(t).iter().any(|process| process.pid == pid);
        runs.then_some("/usr/bin/python3")
    }
}

fn percent(share: f64) -> u32 {
    (share * 100.0).round().clamp(0.0, 100.0) as u32
}
