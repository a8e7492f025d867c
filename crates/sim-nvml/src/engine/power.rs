//! Power, temperature, clocks, and the reasons for the clocks.

use super::fault::{FaultKind, Slowdown, Window};
use super::gpu::Gpu;
use super::job::LEAD_S;

/// A clock domain, with the numbers of `nvmlClockType_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clock {
    Graphics,
    Sm,
    Memory,
    Video,
}

/// The bits of `nvmlClocksEventReasons`.
pub(crate) mod reason {
    pub(crate) const GPU_IDLE: u64 = 0x1;
    pub(crate) const SW_POWER_CAP: u64 = 0x4;
    pub(crate) const HW_SLOWDOWN: u64 = 0x8;
    pub(crate) const SW_THERMAL: u64 = 0x20;
    pub(crate) const HW_THERMAL: u64 = 0x40;
    pub(crate) const HW_POWER_BRAKE: u64 = 0x80;
}

/// The time constant of heating and cooling, in seconds.
const HEAT_TAU_S: f64 = 4.0;
/// Clocks change in steps of this size.
const CLOCK_STEP_MHZ: u32 = 15;

const CHANNEL_TEMPERATURE: u64 = 2;
const CHANNEL_CLOCK: u64 = 3;

impl Gpu {
    /// Returns the millijoules since the driver was loaded.
    pub(crate) fn energy_mj(&self, t: f64) -> u64 {
        self.since_load(|t| (self.energy_j(t) * 1_000.0) as u64, t)
    }

    /// Returns the milliwatts, averaged over `width` seconds. The driver's own average covers one second.
    pub(crate) fn power_mw(&self, t: f64, width: f64) -> u32 {
        ((self.energy_j(t) - self.energy_j(t - width)) / width * 1_000.0) as u32
    }

    fn energy_j(&self, t: f64) -> f64 {
        let idle = f64::from(self.profile.power_idle_w);
        let span = f64::from(self.profile.power_default_w) - idle;
        let work = 0.80 * self.job.compute_seconds(t) + 0.12 * self.job.kernel_seconds(t);
        // Two seconds more than the job's lead, so that a mean that starts before the simulation stays positive.
        idle * (t + LEAD_S + 2.0) + span * work
    }

    /// Returns the temperature of the GPU, in degrees Celsius.
    pub(crate) fn temperature(&self, t: f64) -> u32 {
        let idle = 31.0;
        let power_idle = f64::from(self.profile.power_idle_w);
        let load = (f64::from(self.power_mw(t, 10.0)) / 1_000.0 - power_idle)
            / (0.86 * (f64::from(self.profile.power_default_w) - power_idle));
        let cooled = idle + (f64::from(self.profile.temperature_busy) - idle) * load;
        // The position in the chassis, then a variation.
        let place = 3.0 * (self.noise.unit(CHANNEL_TEMPERATURE) - 0.5);
        let flutter = 0.8 * self.noise.each_second(CHANNEL_TEMPERATURE, t);
        let hot = f64::from(self.profile.temperature_slowdown + 1);
        let heated = cooled + (hot - cooled) * self.overheating(t);
        (heated + place * (1.0 - self.overheating(t)) + flutter)
            .round()
            .max(0.0) as u32
    }

    /// Returns the temperature of the memory, in degrees Celsius. It is a few degrees above that of the GPU.
    pub(crate) fn memory_temperature(&self, t: f64) -> Option<u32> {
        let limit = self.profile.memory_temperature_max?;
        Some((self.temperature(t) + 7).min(limit))
    }

    /// Returns 0 (cooled) to 1 (at the slowdown temperature).
    fn overheating(&self, t: f64) -> f64 {
        let heat = self.brakes().filter(|(brake, _)| *brake == Slowdown::Thermal);
        heat.map(|(_, window)| window.followed(t, HEAT_TAU_S))
            .fold(0.0, f64::max)
    }

    /// Returns the seconds since boot in which this slowdown reduced the clocks.
    pub(crate) fn braked_seconds(&self, by: Slowdown, t: f64) -> f64 {
        let held = self.brakes().filter(|(brake, _)| *brake == by);
        held.map(|(_, window)| window.passed(t)).sum()
    }

    pub(crate) fn clock_mhz(&self, clock: Clock, t: f64) -> u32 {
        let max = self.clock_max_mhz(clock);
        match (clock, self.job.is_training(t), self.brake(t)) {
            (Clock::Memory, true, _) => max,
            (Clock::Memory, false, _) => self.profile.memory_clock_idle_mhz,
            (_, false, _) => max * self.profile.sm_clock_idle_mhz / self.profile.sm_clock_max_mhz,
            (_, true, Some(brake)) => {
                (f64::from(max) * brake.pace()) as u32 / CLOCK_STEP_MHZ * CLOCK_STEP_MHZ
            }
            (_, true, None) => {
                max - CLOCK_STEP_MHZ * u32::from(self.noise.each_second(CHANNEL_CLOCK, t) > 0.0)
            }
        }
    }

    pub(crate) fn clock_max_mhz(&self, clock: Clock) -> u32 {
        match clock {
            Clock::Graphics | Clock::Sm => self.profile.sm_clock_max_mhz,
            Clock::Memory => self.profile.memory_clock_max_mhz,
            Clock::Video => self.profile.video_clock_max_mhz,
        }
    }

    /// Returns the reasons for the clocks: bits of [`reason`].
    pub(crate) fn clock_reasons(&self, t: f64) -> u64 {
        match self.brake(t) {
            Some(Slowdown::Thermal) => reason::HW_SLOWDOWN | reason::HW_THERMAL | reason::SW_THERMAL,
            Some(Slowdown::PowerBrake) => reason::HW_SLOWDOWN | reason::HW_POWER_BRAKE,
            Some(Slowdown::Power) => reason::SW_POWER_CAP,
            None if self.job.is_training(t) => 0,
            None => reason::GPU_IDLE,
        }
    }

    /// Returns the performance state. 0 is the fastest.
    pub(crate) fn performance_state(&self, t: f64) -> u32 {
        if self.job.is_training(t) {
            0
        } else {
            self.profile.pstate_idle
        }
    }

    /// Returns the fan speed in percent. Only workstation boards have their own fan.
    pub(crate) fn fan_percent(&self, t: f64) -> Option<u32> {
        let warm = self.temperature(t).saturating_sub(40);
        (!self.profile.datacenter).then(|| (30 + warm * 3 / 2).min(100))
    }

    /// Returns the slowdown at `t`. A GPU has only one at a time.
    fn brake(&self, t: f64) -> Option<Slowdown> {
        self.faults_at(t).find_map(|fault| match fault {
            FaultKind::Throttle(brake) => Some(brake),
            _ => None,
        })
    }

    fn brakes(&self) -> impl Iterator<Item = (Slowdown, Window)> {
        self.faults.iter().filter_map(|fault| match fault.kind {
            FaultKind::Throttle(brake) => Some((brake, fault.window)),
            _ => None,
        })
    }
}
