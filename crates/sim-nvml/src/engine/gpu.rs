//! One simulated GPU: what it is, what a call to it meets, its work, memory and processes.
//!
//! Its other gauges and counters are beside this file, one subject each: `power`, `pcie`, `ecc`, `nvlink`, `partition`.

use super::driver::DriverHistory;
use super::fault::{Fault, Gate, Trouble};
use super::identity::Identity;
use super::job::Job;
use super::noise::Noise;
use super::nvlink::Links;
use super::partition::Partitions;
use super::profile::Profile;
use super::status::Status;

/// A GPU of the node. Every reading is a function of `t`, seconds since the simulation began.
#[derive(Debug, Clone)]
pub(crate) struct Gpu {
    pub index: u32,
    pub profile: &'static Profile,
    pub identity: Identity,
    pub job: Job,
    /// Troubles of this GPU, not of its neighbours, in the order in which they begin.
    pub faults: Vec<Fault>,
    /// Whether there is another GPU to talk to over NVLink.
    pub has_peers: bool,
    pub noise: Noise,
    pub driver: DriverHistory,
    /// Field values it has no answer for, in NVML 12's numbers.
    pub without: Vec<u32>,
    pub links: Links,
    pub partitions: Partitions,
}

/// Memory in bytes; `used` leaves `reserved` out.
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
    /// The GPU instance it runs in.
    pub instance: Option<u32>,
}

/// Above the highest process id Linux can give (2^22), so that no real process is taken for ours.
const FIRST_PID: u32 = 4_200_000;
/// Where the processes in instances of partitioned GPUs begin, sixteen ids a GPU.
const FIRST_INSTANCE_PID: u32 = FIRST_PID + 1_000;
const MIB: u64 = 1 << 20;
/// What a process takes beside its tensors.
const CONTEXT: u64 = 10 * MIB;

const CHANNEL_MEMORY: u64 = 1;

// === What a call meets ===

impl Gpu {
    /// Whether a call at `t` is answered, and when.
    pub(crate) fn gate(&self, t: f64) -> Gate {
        let gates = self.faults.iter().map(|fault| fault.gate(t));
        gates.fold(Gate::Open, Gate::or_worse)
    }

    /// The troubles that last at `t`.
    pub(crate) fn troubles(&self, t: f64) -> impl Iterator<Item = Trouble> {
        let lasting = self.faults.iter().filter(move |fault| fault.window.holds(t));
        lasting.map(|fault| fault.trouble)
    }

    /// The mean slope of a counter over the `width` seconds before `t`.
    pub(crate) fn mean(&self, counter: impl Fn(&Job, f64) -> f64, t: f64, width: f64) -> f64 {
        (counter(&self.job, t) - counter(&self.job, t - width)) / width
    }

    /// How much a counter has risen since the driver was loaded, which is when most of them begin again.
    pub(crate) fn since_load<N: std::ops::Sub<Output = N>>(&self, counter: impl Fn(f64) -> N, t: f64) -> N {
        counter(t) - counter(self.driver.loaded_at(t))
    }
}

// === Work and memory ===

impl Gpu {
    /// `nvmlDeviceGetUtilizationRates`: GPU and memory, percent. NVML has none for a partitioned GPU.
    pub(crate) fn utilization_rates(&self, t: f64) -> Result<(u32, u32), Status> {
        if self.instances(t).is_some() {
            return Err(Status::NotSupported);
        }
        Ok((self.utilization(t), self.memory_utilization(t)))
    }

    /// Percent of the last half second in which some kernel was resident.
    pub(crate) fn utilization(&self, t: f64) -> u32 {
        percent(self.mean(Job::kernel_seconds, t, 0.5))
    }

    /// Percent of time in which memory was read or written.
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

    /// With what the driver reserved, as users count it. Allocations come in pages of 2 MiB.
    fn used_by_job(&self, t: f64, total: u64) -> u64 {
        let share = if self.troubles(t).any(|trouble| trouble == Trouble::MemoryPressure) {
            0.98
        } else if self.job.is_training(t) {
            0.80 + 0.004 * self.noise.each_second(CHANNEL_MEMORY, t)
        } else {
            0.0
        };
        (total as f64 * share) as u64
    }

    /// One rank a GPU, or one process an instance; none without a job.
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

    /// The name of a simulated process.
    pub(crate) fn process_name(&self, pid: u32, t: f64) -> Option<&'static str> {
        let runs = self.processes(t).iter().any(|process| process.pid == pid);
        runs.then_some("/usr/bin/python3")
    }
}

fn percent(share: f64) -> u32 {
    (share * 100.0).round().clamp(0.0, 100.0) as u32
}
