//! The simulated training job: the same step again and again, as one GPU sees it.
//!
//! ```text
//!  one step   0 ───────────────────────────────── 0.93 ── 0.97 ─ 1
//!  kernels    ██████████████████████████████████████████████      data loading leaves a gap
//!  compute    ██████████████████████████████████████▂▂▂▂▂▂        forward, backward; then the optimizer
//!  NVLink      ▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆                gathers and reductions, overlapped
//! ```
//!
//! All counters are integrals in closed form, so a counter is a function of time that never decreases. A gauge is the slope of its counter
//! over the gauge's own averaging time, so both agree.

use std::f64::consts::TAU;

use super::pace::Pace;

/// Seconds for which the job has been running when the simulation starts, so that no counter starts at zero.
pub(crate) const LEAD_S: f64 = 3_600.0;

/// Seconds of one undisturbed step.
const STEP_S: f64 = 1.2;
/// Steps are alternately a little faster and slower: the maximum deviation in seconds, and the period.
const SWAY_S: f64 = 0.4;
const SWAY_PERIOD_S: f64 = 47.0;

/// The share of the multiprocessors that the kernel of a collective occupies.
const COLLECTIVE_SHARE: f64 = 0.12;

/// A part of a step (0 to 1) with an activity at a level (0 to 1).
struct Pulse {
    from: f64,
    to: f64,
    level: f64,
}

const KERNELS: [Pulse; 1] = [Pulse {
    from: 0.0,
    to: 0.97,
    level: 1.0,
}];
const COMPUTE: [Pulse; 2] = [
    Pulse {
        from: 0.0,
        to: 0.93,
        level: 0.97,
    },
    Pulse {
        from: 0.93,
        to: 0.97,
        level: 0.35,
    },
];
const NVLINK: [Pulse; 1] = [Pulse {
    from: 0.02,
    to: 0.94,
    level: 0.76,
}];

/// The job as one GPU sees it.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    /// True if there is a job.
    pub exists: bool,
    pub pace: Pace,
    /// 0 to 1: the position in the variation of steps at which this GPU starts.
    pub phase: f64,
}

impl Job {
    /// Returns true if a rank of the job is on this GPU.
    pub(crate) fn is_training(&self, t: f64) -> bool {
        self.exists && !self.pace.is_paused(t)
    }

    /// Returns the seconds since boot in which a kernel was resident. Ranks that wait for others spin inside their collectives, so a slow
    /// or stuck job does not look less busy, but busier.
    pub(crate) fn kernel_seconds(&self, t: f64) -> f64 {
        let flow = self.pace.flow(t);
        self.seconds(&KERNELS, flow.progress) + self.if_exists(flow.held)
    }

    /// Returns the seconds since boot in which all multiprocessors were busy with the model, at full clocks.
    pub(crate) fn compute_seconds(&self, t: f64) -> f64 {
        self.seconds(&COMPUTE, self.pace.flow(t).progress)
    }

    /// Returns the same at the actual clocks: a slow GPU is as active as before, but for longer; the others spin on the few multiprocessors
    /// that a collective needs.
    pub(crate) fn active_seconds(&self, t: f64) -> f64 {
        let flow = self.pace.flow(t);
        self.seconds(&COMPUTE, flow.active) + COLLECTIVE_SHARE * self.if_exists(flow.waiting)
    }

    /// Returns the seconds since boot in which all NVLinks were busy at full rate.
    pub(crate) fn nvlink_seconds(&self, t: f64) -> f64 {
        self.seconds(&NVLINK, self.pace.flow(t).progress)
    }

    fn if_exists(&self, seconds: f64) -> f64 {
        if self.exists { seconds } else { 0.0 }
    }

    fn seconds(&self, pulses: &[Pulse], progress: f64) -> f64 {
        if !self.exists {
            return 0.0;
        }
        let since = |t: f64| integral(pulses, self.swayed(t) / STEP_S) * STEP_S;
        since(progress) - since(-LEAD_S)
    }

    /// Returns the time with a slow variation. Its slope stays positive because SWAY_S * TAU / SWAY_PERIOD_S < 1.
    fn swayed(&self, t: f64) -> f64 {
        t + SWAY_S * ((t / SWAY_PERIOD_S + self.phase) * TAU).sin()
    }
}

/// Returns the area under a pulse train from step 0 to step `x` (negative steps count negatively).
fn integral(pulses: &[Pulse], x: f64) -> f64 {
    let (whole, part) = (x.floor(), x - x.floor());
    pulses
        .iter()
        .map(|p| p.level * (whole * (p.to - p.from) + (part.min(p.to) - p.from).max(0.0)))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::fault::Window;
    use crate::engine::pace::{Drag, DragKind};

    fn job(pace: f64, here: bool) -> Job {
        let drag = Drag {
            window: Window {
                start: 10.0,
                end: 40.0,
            },
            kind: DragKind::Slow { pace, here },
        };
        Job {
            exists: true,
            pace: Pace::new(&[drag]),
            phase: 0.3,
        }
    }

    fn mean(of: impl Fn(f64) -> f64, from: f64, to: f64) -> f64 {
        (of(to) - of(from)) / (to - from)
    }

    #[test]
    fn integrals_never_run_backwards() {
        for pace in [1.0, 0.55, 0.0] {
            let job = job(pace, false);
            let mut last = (0.0, 0.0, 0.0);
            for step in -2_000..8_000 {
                let t = f64::from(step) * 0.01;
                let now = (
                    job.kernel_seconds(t),
                    job.compute_seconds(t),
                    job.nvlink_seconds(t),
                );
                assert!(
                    now.0 >= last.0 && now.1 >= last.1 && now.2 >= last.2,
                    "pace {pace}, t {t}"
                );
                last = now;
            }
        }
    }

    #[test]
    fn slopes_stay_within_one() {
        let job = job(0.55, true);
        for step in 0..8_000 {
            let t = f64::from(step) * 0.01;
            let slope = mean(|t| job.kernel_seconds(t), t - 0.5, t);
            assert!((0.0..=1.06).contains(&slope), "{slope} at {t}");
        }
    }

    #[test]
    fn healthy_job_is_in_its_bands() {
        let job = job(1.0, false);
        for (name, value, low, high) in [
            ("compute", mean(|t| job.compute_seconds(t), 0.0, 60.0), 0.85, 1.0),
            ("nvlink", mean(|t| job.nvlink_seconds(t), 0.0, 60.0), 0.6, 0.8),
            ("kernels", mean(|t| job.kernel_seconds(t), 0.0, 60.0), 0.95, 1.0),
        ] {
            assert!((low..high).contains(&value), "{name}: {value}");
        }
    }

    #[test]
    fn slow_rank_works_while_the_others_wait() {
        let (slow, other) = (job(0.55, true), job(0.55, false));
        assert!(mean(|t| slow.active_seconds(t), 12.0, 38.0) > 0.85);
        assert!(mean(|t| other.active_seconds(t), 12.0, 38.0) < 0.6);
        assert!(mean(|t| other.kernel_seconds(t), 12.0, 38.0) > 0.95);
        assert!(
            mean(|t| other.active_seconds(t), 45.0, 75.0) > 0.85,
            "and recovers"
        );
    }

    #[test]
    fn stuck_job_moves_nothing_but_looks_busy() {
        let job = job(0.0, false);
        assert_eq!(mean(|t| job.nvlink_seconds(t), 12.0, 38.0), 0.0);
        assert!(mean(|t| job.kernel_seconds(t), 12.0, 38.0) > 0.99);
    }
}
