//! One simulated GPU: what each of its gauges and counters shows at a moment.

use super::driver::Driver;
use super::fault::{Fault, Gate, THROTTLED_PACE, Trouble};
use super::identity::Identity;
use super::job::{Job, LEAD_S};
use super::noise::Noise;
use super::profile::Profile;

/// A GPU of the node. Every reading is a function of `t`, seconds since the simulation began.
#[derive(Debug, Clone)]
pub(crate) struct Gpu {
    pub index: u32,
    pub profile: &'static Profile,
    pub identity: Identity,
    pub job: Job,
    /// Trouble of this GPU, not of its neighbours.
    pub fault: Option<Fault>,
    /// Whether there is another GPU to talk to over NVLink.
    pub has_peers: bool,
    pub noise: Noise,
    pub driver: Driver,
}

/// Memory in bytes; `used` leaves `reserved` out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Memory {
    pub total: u64,
    pub reserved: u64,
    pub used: u64,
    pub free: u64,
}

/// Errors in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Ecc {
    pub corrected: u64,
    pub uncorrected: u64,
}

/// A clock domain, as `nvmlClockType_t` numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clock {
    Graphics,
    Sm,
    Memory,
    Video,
}

/// A process on the GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Process {
    pub pid: u32,
    pub memory: u64,
}

/// Bits of `nvmlClocksEventReasons`.
pub(crate) mod reason {
    pub(crate) const GPU_IDLE: u64 = 0x1;
    pub(crate) const HW_SLOWDOWN: u64 = 0x8;
    pub(crate) const SW_THERMAL: u64 = 0x20;
    pub(crate) const HW_THERMAL: u64 = 0x40;
}

/// Above the highest process id Linux can give (2^22), so that no real process is taken for ours.
const FIRST_PID: u32 = 4_200_000;
const MIB: u64 = 1 << 20;
/// Time constants of the cooling, seconds.
const HEAT_TAU_S: f64 = 4.0;
/// Corrected errors a second in an ECC storm.
const STORM_RATE: f64 = 40.0;

const CHANNEL_MEMORY: u64 = 1;
const CHANNEL_TEMPERATURE: u64 = 2;
const CHANNEL_CLOCK: u64 = 3;

// === What a call meets ===

impl Gpu {
    /// Whether a call at `t` is answered, and when.
    pub(crate) fn gate(&self, t: f64) -> Gate {
        self.fault.map_or(Gate::Open, |fault| fault.gate(t))
    }

    /// The fault if it is of this kind and lasts at `t`.
    fn suffers(&self, trouble: Trouble, t: f64) -> bool {
        self.fault
            .is_some_and(|fault| fault.trouble == trouble && fault.window.holds(t))
    }

    /// The mean slope of a counter over the `width` seconds before `t`.
    pub(crate) fn mean(&self, counter: impl Fn(&Job, f64) -> f64, t: f64, width: f64) -> f64 {
        (counter(&self.job, t) - counter(&self.job, t - width)) / width
    }
}

// === Work and memory ===

impl Gpu {
    /// `nvmlDeviceGetUtilizationRates().gpu`, percent over half a second.
    pub(crate) fn utilization(&self, t: f64) -> u32 {
        percent(self.mean(Job::kernel_seconds, t, 0.5))
    }

    /// Percent of time in which memory was read or written.
    pub(crate) fn memory_utilization(&self, t: f64) -> u32 {
        percent(0.6 * self.mean(Job::compute_seconds, t, 0.5))
    }

    pub(crate) fn memory(&self, t: f64) -> Memory {
        let (total, reserved) = (self.profile.memory_mib * MIB, self.profile.reserved_mib * MIB);
        let share = if self.suffers(Trouble::MemoryPressure, t) {
            0.98
        } else if self.job.training {
            0.80 + 0.004 * self.noise.each_second(CHANNEL_MEMORY, t)
        } else {
            0.0
        };
        // Allocations come in pages of 2 MiB. The share counts what the driver reserved, as users do.
        let used = ((total as f64 * share) as u64).saturating_sub(reserved) / (2 * MIB) * (2 * MIB);
        Memory {
            total,
            reserved,
            used,
            free: total - reserved - used,
        }
    }

    /// One rank a GPU; none without a job.
    pub(crate) fn processes(&self, t: f64) -> Vec<Process> {
        let context = 10 * MIB;
        let process = Process {
            pid: FIRST_PID + self.index,
            memory: self.memory(t).used.saturating_sub(context),
        };
        if self.job.training {
            vec![process]
        } else {
            Vec::new()
        }
    }

    /// The name of a simulated process.
    pub(crate) fn process_name(&self, pid: u32) -> Option<&'static str> {
        (self.job.training && pid == FIRST_PID + self.index).then_some("/usr/bin/python3")
    }
}

// === Power, heat, clocks ===

impl Gpu {
    /// Millijoules since the driver was loaded.
    pub(crate) fn energy_mj(&self, t: f64) -> u64 {
        (self.energy_j(t) * 1_000.0) as u64
    }

    /// Milliwatts, averaged over `width` seconds: one second is what the driver's own average covers.
    pub(crate) fn power_mw(&self, t: f64, width: f64) -> u32 {
        ((self.energy_j(t) - self.energy_j(t - width)) / width * 1_000.0) as u32
    }

    fn energy_j(&self, t: f64) -> f64 {
        let idle = f64::from(self.profile.power_idle_w);
        let span = f64::from(self.profile.power_default_w) - idle;
        let work = 0.80 * self.job.compute_seconds(t) + 0.12 * self.job.kernel_seconds(t);
        // Two seconds more than the job's lead: a mean that reaches back before the start stays positive.
        idle * (t + LEAD_S + 2.0) + span * work
    }

    /// Degrees Celsius of the GPU.
    pub(crate) fn temperature(&self, t: f64) -> u32 {
        let idle = 31.0;
        let power_idle = f64::from(self.profile.power_idle_w);
        let load = (f64::from(self.power_mw(t, 10.0)) / 1_000.0 - power_idle)
            / (0.86 * (f64::from(self.profile.power_default_w) - power_idle));
        let cooled = idle + (f64::from(self.profile.temperature_busy) - idle) * load;
        // The placement in the chassis, then a flutter.
        let place = 3.0 * (self.noise.unit(CHANNEL_TEMPERATURE) - 0.5);
        let flutter = 0.8 * self.noise.each_second(CHANNEL_TEMPERATURE, t);
        let hot = f64::from(self.profile.temperature_slowdown + 1);
        let heated = cooled + (hot - cooled) * self.overheating(t);
        (heated + place * (1.0 - self.overheating(t)) + flutter)
            .round()
            .max(0.0) as u32
    }

    /// Degrees Celsius of the memory: it follows the GPU a few degrees above.
    pub(crate) fn memory_temperature(&self, t: f64) -> Option<u32> {
        let limit = self.profile.memory_temperature_max?;
        Some((self.temperature(t) + 7).min(limit))
    }

    /// 0 (cooled) to 1 (at the slowdown temperature).
    fn overheating(&self, t: f64) -> f64 {
        match self.fault {
            Some(Fault {
                trouble: Trouble::Throttle,
                window,
            }) => window.followed(t, HEAT_TAU_S),
            _ => 0.0,
        }
    }

    /// Seconds of thermal slowdown since boot.
    pub(crate) fn throttled_seconds(&self, t: f64) -> f64 {
        match self.fault {
            Some(Fault {
                trouble: Trouble::Throttle,
                window,
            }) => window.passed(t),
            _ => 0.0,
        }
    }

    pub(crate) fn clock_mhz(&self, clock: Clock, t: f64) -> u32 {
        let max = self.clock_max_mhz(clock);
        match (clock, self.job.training) {
            (Clock::Memory, true) => max,
            (Clock::Memory, false) => self.profile.memory_clock_idle_mhz,
            (_, false) => max * self.profile.sm_clock_idle_mhz / self.profile.sm_clock_max_mhz,
            (_, true) if self.suffers(Trouble::Throttle, t) => {
                (f64::from(max) * THROTTLED_PACE) as u32 / 15 * 15
            }
            // Clocks move in steps of 15 MHz.
            (_, true) => max - 15 * (self.noise.each_second(CHANNEL_CLOCK, t) > 0.0) as u32,
        }
    }

    pub(crate) fn clock_max_mhz(&self, clock: Clock) -> u32 {
        match clock {
            Clock::Graphics | Clock::Sm => self.profile.sm_clock_max_mhz,
            Clock::Memory => self.profile.memory_clock_max_mhz,
            Clock::Video => self.profile.video_clock_max_mhz,
        }
    }

    /// Why the clocks are what they are: bits of [`reason`].
    pub(crate) fn clock_reasons(&self, t: f64) -> u64 {
        if self.suffers(Trouble::Throttle, t) {
            reason::HW_SLOWDOWN | reason::HW_THERMAL | reason::SW_THERMAL
        } else if self.job.training {
            0
        } else {
            reason::GPU_IDLE
        }
    }

    /// 0 is the fastest.
    pub(crate) fn performance_state(&self) -> u32 {
        if self.job.training {
            0
        } else {
            self.profile.pstate_idle
        }
    }

    /// Percent; a fan of its own only on workstation boards.
    pub(crate) fn fan_percent(&self, t: f64) -> Option<u32> {
        let warm = self.temperature(t).saturating_sub(40);
        (!self.profile.datacenter).then(|| (30 + warm * 3 / 2).min(100))
    }
}

// === PCIe ===

/// One direction of the PCIe link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Transmit,
    Receive,
}

impl Gpu {
    /// Bytes over PCIe since boot: batches come in, checkpoints and logs go out.
    pub(crate) fn pcie_bytes(&self, direction: Direction, t: f64) -> u64 {
        (self.pcie_bytes_per_second(direction) * self.job.compute_seconds(t)) as u64
    }

    /// While computing.
    pub(crate) fn pcie_bytes_per_second(&self, direction: Direction) -> f64 {
        // Without NVLink the gradients travel over PCIe too.
        let gradients = if self.profile.nvlink.is_none() && self.has_peers {
            9.0e9
        } else {
            0.0
        };
        match direction {
            Direction::Transmit => 0.4e9 + gradients,
            Direction::Receive => 2.1e9 + gradients,
        }
    }

    pub(crate) fn pcie_generation(&self) -> u32 {
        if self.job.training {
            self.profile.pcie_generation
        } else {
            self.profile.pcie_generation_idle
        }
    }
}

/// Lanes of every simulated GPU.
pub(crate) const PCIE_WIDTH: u32 = 16;

/// Megatransfers a second of one lane in a PCIe generation.
pub(crate) fn pcie_lane_mts(generation: u32) -> u32 {
    match generation {
        1 => 2_500,
        2 => 5_000,
        3 => 8_000,
        4 => 16_000,
        5 => 32_000,
        _ => 64_000,
    }
}

// === Memory errors ===

impl Gpu {
    /// Errors since the driver was loaded.
    pub(crate) fn ecc(&self, t: f64) -> Ecc {
        match self.fault {
            Some(fault) if fault.trouble == Trouble::Ecc => Ecc {
                corrected: (STORM_RATE * fault.window.passed(t)) as u64,
                uncorrected: u64::from(t >= fault.uncorrectable_at()),
            },
            _ => Ecc::default(),
        }
    }

    /// Rows of memory replaced by spare ones because of an uncorrectable error; takes effect at the next reset.
    pub(crate) fn rows_remapped(&self, t: f64) -> u32 {
        self.ecc(t).uncorrected as u32
    }

    /// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`: 0 none, 1 reset the GPU.
    pub(crate) fn recovery_action(&self, t: f64) -> u32 {
        u32::from(self.rows_remapped(t) > 0)
    }
}

fn percent(share: f64) -> u32 {
    (share * 100.0).round().clamp(0.0, 100.0) as u32
}
