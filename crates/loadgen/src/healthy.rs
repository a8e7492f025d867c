//! The values of a healthy cluster in training, as a pure function of (keys, tick), for series with Lockstep's own names.
//!
//! ```text
//! step of a rank = data + forward + backward + optimizer + host + sync
//!                  └ own parts: a share of the usual step × noise of the rank ┘   └ the rest of the step
//!                    step: noise of the run, so that all ranks end it together
//! pool           = the two steps of a tick, on all ranks
//! ```
//! All indicators are within their bands, and no rank differs from its peers for long.

use domain::diagnosis::input::Phase;

use crate::signal::{drift, noise, own};

/// Memory of a GPU.
pub(crate) const GPU_MEMORY_BYTES: u64 = 85_520_809_984;
/// Memory of a node.
pub(crate) const NODE_MEMORY_BYTES: f64 = 2_164_000_000_000.0;
/// Highest SM clock of the product.
pub(crate) const SM_CLOCK_MAX_HZ: f64 = 1.98e9;
/// Power limit of the board.
pub(crate) const POWER_LIMIT_W: f64 = 700.0;
/// NVLinks of a GPU.
pub(crate) const NVLINKS: u32 = 18;
/// Steps per tick. The pools of all ranks end at multiples of a power of two.
pub(crate) const STEPS: u64 = 2;
/// Samples of a rank in one step.
pub(crate) const MICRO_BATCH: f64 = 4.0;
/// The highest throughput that [`Quantity::SamplesPerSecond`] reaches.
pub(crate) const SAMPLES_PER_SECOND_BEST: f64 = MICRO_BATCH / (STEP_S * (1.0 - STEP_NOISE));

/// The usual duration of a step, in seconds.
const STEP_S: f64 = 0.5;
/// The shares by which a step, and the own parts of a rank, differ from the usual ones.
const STEP_NOISE: f64 = 0.004;
const OWN_NOISE: f64 = 0.012;
/// The share by which the loss of a rank differs from the mean of all ranks.
const LOSS_NOISE: f64 = 0.03;
/// The SM clock under load, and the size of its changes.
const SM_CLOCK_HZ: f64 = 1.755e9;
const SM_CLOCK_CHANGE_HZ: f64 = 15e6;
/// Memory is allocated in units of this size.
const GPU_PAGE_BYTES: f64 = 2_097_152.0;
const NODE_PAGE_BYTES: f64 = 4_096.0;

/// What a series measures. A unit that is not in the name is that of the metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Quantity {
    /// Always this value.
    Fixed(f64),

    // === a GPU ===
    GpuUtilization,
    GpuMemoryUsed,
    SmClock,
    Power,
    Temperature,
    SmActive,
    TensorActive,
    NvlinkUtilization,
    PcieUtilization,

    // === the rank on a GPU ===
    LastStep,
    /// Mean over the steps of a pool.
    Mean(Part),
    /// Longest in the steps of a pool.
    Max(Part),
    ComputeRatio,
    SamplesPerSecond,
    /// The loss of the rank itself.
    OwnLoss,
    /// The mean loss over all ranks, as the script logs it.
    LoggedLoss,
    BestLoss,
    GradientNorm,
    Phase,
    PhaseAge,
    Moves,
    TensorMemory,
    CpuSeconds,
    RunDelaySeconds,

    // === a node ===
    Load,
    MemoryAvailable,
    /// The time that this many processors spend in a mode.
    ProcessorTime(f64),
    /// A counter that grows by about this many bytes per tick.
    Traffic(f64),
}

/// A part of a step, or the whole step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Step,
    Data,
    Forward,
    Backward,
    Optimizer,
    Host,
    Sync,
}

/// The values of one series.
#[derive(Debug, Clone, Copy)]
pub struct HealthySignal {
    /// The same for all series of a GPU and its rank.
    key: u64,
    /// The same for all ranks of a run.
    run_key: u64,
    quantity: Quantity,
}

impl HealthySignal {
    pub(crate) fn new(key: u64, run_key: u64, quantity: Quantity) -> Self {
        Self {
            key,
            run_key,
            quantity,
        }
    }

    /// Returns the value at a tick.
    #[must_use]
    pub fn at(&self, tick: u64) -> f64 {
        match self.quantity {
            Quantity::Fixed(value) => value,
            Quantity::GpuUtilization => rounded(0.97 + 0.03 * self.noise(1, tick), 2),
            Quantity::GpuMemoryUsed => {
                let share = 0.76 + 0.08 * self.own(2) + 0.002 * self.noise(2, tick / 240);
                pages(share * GPU_MEMORY_BYTES as f64, GPU_PAGE_BYTES)
            }
            Quantity::SmClock => SM_CLOCK_HZ - SM_CLOCK_CHANGE_HZ * (4.0 * self.drift(3, tick, 20)).floor(),
            Quantity::Power => {
                let watts =
                    560.0 + 60.0 * self.own(4) + 50.0 * self.drift(4, tick, 60) + 10.0 * self.noise(4, tick);
                rounded(watts, 3)
            }
            Quantity::Temperature => (50.0 + 10.0 * self.own(5) + 6.0 * self.drift(5, tick, 120)).round(),
            Quantity::SmActive => rounded(0.88 + 0.06 * self.noise(6, tick), 4),
            Quantity::TensorActive => rounded(0.55 + 0.05 * self.noise(7, tick), 4),
            Quantity::NvlinkUtilization => {
                let share =
                    0.6 + 0.08 * self.own(8) + 0.05 * self.drift(8, tick, 60) + 0.02 * self.noise(8, tick);
                rounded(share, 4)
            }
            Quantity::PcieUtilization => rounded(0.03 + 0.02 * self.noise(9, tick), 4),
            Quantity::LastStep => last_step(tick),
            Quantity::Mean(part) => rounded(self.parts(tick).of(part), 6),
            Quantity::Max(part) => {
                let more = 1.0 + 0.005 * self.noise(10, tick);
                rounded(more * self.parts(tick).of(part), 6)
            }
            Quantity::ComputeRatio => rounded(self.parts(tick).compute_ratio(), 6),
            Quantity::SamplesPerSecond => rounded(MICRO_BATCH / self.parts(tick).step, 6),
            Quantity::OwnLoss => {
                let differs = 1.0 + LOSS_NOISE * centred(self.noise(11, tick));
                rounded(differs * loss(tick), 6)
            }
            Quantity::LoggedLoss => {
                let differs = 1.0 + 0.1 * LOSS_NOISE * centred(noise(self.run_key, 12, tick));
                rounded(differs * loss(tick), 6)
            }
            Quantity::BestLoss => rounded((1.0 - 0.1 * LOSS_NOISE) * loss(tick), 6),
            Quantity::GradientNorm => rounded(0.7 + 0.3 * noise(self.run_key, 13, tick), 6),
            Quantity::Phase => f64::from(self.phase(tick).0 as u8),
            Quantity::PhaseAge => rounded(self.phase(tick).1, 6),
            Quantity::Moves => 3.0 * last_step(tick) + 2.0,
            Quantity::TensorMemory => {
                let share = 0.55 + 0.02 * self.own(15) + 0.001 * self.noise(15, tick);
                pages(share * GPU_MEMORY_BYTES as f64, GPU_PAGE_BYTES)
            }
            Quantity::CpuSeconds => rounded(1.02 * (tick + 1) as f64, 2),
            Quantity::RunDelaySeconds => rounded(0.001 * (tick + 1) as f64, 3),
            Quantity::Load => rounded(30.0 + 6.0 * self.drift(16, tick, 60) + self.noise(16, tick), 2),
            Quantity::MemoryAvailable => {
                let share = 0.86 + 0.01 * self.drift(17, tick, 300);
                pages(share * NODE_MEMORY_BYTES, NODE_PAGE_BYTES)
            }
            Quantity::ProcessorTime(processors) => rounded(self.counter(18, tick, processors), 2),
            Quantity::Traffic(bytes) => self.counter(19, tick, bytes).floor(),
        }
    }

    /// Returns the parts of the steps of a tick.
    fn parts(&self, tick: u64) -> Parts {
        let own =
            |share: f64, lane: u64| share * STEP_S * (1.0 + OWN_NOISE * centred(self.noise(20 + lane, tick)));
        Parts {
            step: STEP_S * (1.0 + STEP_NOISE * centred(noise(self.run_key, 20, tick))),
            data: own(0.015, 1),
            forward: own(0.3, 2),
            backward: own(0.57, 3),
            optimizer: own(0.05, 4),
            host: own(0.03, 5),
        }
    }

    /// Returns the phase of the rank when the tick is read, and for how many seconds it has been in it.
    fn phase(&self, tick: u64) -> (Phase, f64) {
        let parts = self.parts(tick);
        let mut into = parts.step * self.noise(14, tick);
        for (phase, seconds) in [
            (Phase::Data, parts.data),
            (Phase::Forward, parts.forward),
            (Phase::Backward, parts.backward),
            (Phase::Collective, parts.sync()),
            (Phase::Optimizer, parts.optimizer),
        ] {
            if into < seconds {
                return (phase, into);
            }
            into -= seconds;
        }
        (Phase::Host, into)
    }

    /// Returns a counter that grows by about `rate` per tick. The jitter is smaller than the growth of one tick.
    fn counter(&self, lane: u64, tick: u64, rate: f64) -> f64 {
        let age = (10_000.0 * self.own(lane)).floor() + tick as f64;
        rate * (age + 0.2 * self.noise(lane, tick))
    }

    fn own(&self, lane: u64) -> f64 {
        own(self.key, lane)
    }

    fn drift(&self, lane: u64, tick: u64, width: u64) -> f64 {
        drift(self.key, lane, tick, width)
    }

    fn noise(&self, lane: u64, at: u64) -> f64 {
        noise(self.key, lane, at)
    }
}

/// The parts of one step, in seconds.
struct Parts {
    step: f64,
    data: f64,
    forward: f64,
    backward: f64,
    optimizer: f64,
    host: f64,
}

impl Parts {
    fn of(&self, part: Part) -> f64 {
        match part {
            Part::Step => self.step,
            Part::Data => self.data,
            Part::Forward => self.forward,
            Part::Backward => self.backward,
            Part::Optimizer => self.optimizer,
            Part::Host => self.host,
            Part::Sync => self.sync(),
        }
    }

    /// Returns the wait for other ranks.
    fn sync(&self) -> f64 {
        self.step - (self.data + self.forward + self.backward + self.optimizer + self.host)
    }

    fn compute_ratio(&self) -> f64 {
        (self.forward + self.backward + self.optimizer) / self.step
    }
}

/// Returns the last step that has ended at a tick.
fn last_step(tick: u64) -> f64 {
    (STEPS * (tick + 1)) as f64
}

/// Returns the mean loss over all ranks. It keeps falling.
fn loss(tick: u64) -> f64 {
    1.9 + 4.1 / (1.0 + last_step(tick) / 500.0).sqrt()
}

/// Converts noise from 0 to 1 into noise from -1 to 1.
fn centred(noise: f64) -> f64 {
    2.0 * noise - 1.0
}

fn rounded(value: f64, decimals: i32) -> f64 {
    let scale = 10_f64.powi(decimals);
    (value * scale).round() / scale
}

fn pages(bytes: f64, page_bytes: f64) -> f64 {
    (bytes / page_bytes).floor() * page_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(key: u64, quantity: Quantity, tick: u64) -> f64 {
        HealthySignal::new(key, 77, quantity).at(tick)
    }

    #[test]
    fn the_parts_of_a_step_add_up_and_all_ranks_end_it_together() {
        let parts = [
            Part::Data,
            Part::Forward,
            Part::Backward,
            Part::Optimizer,
            Part::Host,
            Part::Sync,
        ];
        for (key, tick) in (0..50).flat_map(|key| (0..50).map(move |tick| (key, tick))) {
            let sum: f64 = parts
                .iter()
                .map(|part| at(key, Quantity::Mean(*part), tick))
                .sum();
            let step = at(key, Quantity::Mean(Part::Step), tick);
            assert!((sum - step).abs() < 5e-6, "{sum} {step}");
            assert_eq!(step.to_bits(), at(0, Quantity::Mean(Part::Step), tick).to_bits());
            assert!(at(key, Quantity::Max(Part::Step), tick) >= step);
        }
    }

    #[test]
    fn the_indicators_stay_within_their_bands() {
        for (key, tick) in (0..200).flat_map(|key| (0..100).map(move |tick| (key, tick))) {
            let value = |quantity| at(key, quantity, tick);
            let sync = value(Quantity::Mean(Part::Sync)) / value(Quantity::Mean(Part::Step));
            assert!((0.01..0.055).contains(&sync), "{sync}");
            assert!(value(Quantity::ComputeRatio) > 0.85);
            assert!((0.7..0.9).contains(&(value(Quantity::GpuMemoryUsed) / GPU_MEMORY_BYTES as f64)));
            assert!((0.6..0.8).contains(&value(Quantity::NvlinkUtilization)));
            assert!(value(Quantity::SamplesPerSecond) <= SAMPLES_PER_SECOND_BEST);
        }
        let sync: f64 = (0..100)
            .map(|tick| at(1, Quantity::Mean(Part::Sync), tick) / STEP_S)
            .sum();
        assert!(sync / 100.0 < 0.045, "{sync}");
    }

    #[test]
    fn a_rank_is_in_each_phase_of_a_step_now_and_then() {
        let phases: std::collections::BTreeSet<Option<Phase>> = (0..2_000)
            .map(|tick| Phase::from_value(at(3, Quantity::Phase, tick)))
            .collect();
        assert_eq!(phases.len(), 6, "{phases:?}");
        assert!(!phases.contains(&None));
    }

    #[test]
    fn the_loss_falls_and_is_never_below_the_best() {
        for tick in (0..20_000).step_by(100) {
            assert!(loss(tick + 100) < loss(tick));
            assert!(at(1, Quantity::BestLoss, tick) <= at(1, Quantity::LoggedLoss, tick));
        }
    }
}
