//! The steps of one attempt: how long each part takes on each rank, which ranks wait, and the pools that the probe reports.
//!
//! ```text
//! own time of a rank = parts of the trace × stretch × noise × slowdown of its GPU
//! step               = the longest own time + the exposed part of the recorded wait;   wait of a rank = step − own time
//! pool               = steps up to one whose number is divisible by a power of two, on all ranks
//! ```

use domain::diagnosis::input::Phase;
use domain::time::TimestampMs;

use crate::noise::noise;
use crate::workload::Workload;

/// The approximate length of a pool, in seconds.
const POOL_S: f64 = 1.0;
/// The share of a part by which ranks differ from step to step.
const NOISE: f64 = 0.012;

/// The parts of a step on one rank, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Parts {
    pub(crate) step: f64,
    pub(crate) data: f64,
    pub(crate) forward: f64,
    pub(crate) backward: f64,
    pub(crate) optimizer: f64,
    pub(crate) host: f64,
    pub(crate) sync: f64,
}

/// The means and maxima of the steps of a pool, by rank.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pool {
    pub(crate) at_ms: TimestampMs,
    pub(crate) last_step: u64,
    pub(crate) steps: u64,
    pub(crate) mean: Vec<Parts>,
    pub(crate) max: Vec<Parts>,
    pub(crate) loss: f64,
    pub(crate) grad_norm: f64,
}

/// How much a rank is slowed down now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Slowdown {
    /// A factor of the usual time for computing.
    pub(crate) compute: f64,
    /// A factor of the recorded time of the data loader.
    pub(crate) data: f64,
}

/// The steps of an attempt.
#[derive(Debug)]
pub(crate) struct Training {
    workload: &'static Workload,
    /// The factor by which a step is longer than in the recording.
    stretch: f64,
    seed: u64,
    ranks: usize,
    /// The last step that all ranks have finished.
    step: u64,
    /// When the current step ends, in milliseconds since the epoch.
    ends_ms: f64,
    current_step: Vec<Parts>,
    pool: Sums,
    pool_steps: u64,
}

#[derive(Debug, Default)]
struct Sums {
    steps: u64,
    sum: Vec<Parts>,
    max: Vec<Parts>,
}

impl Training {
    /// Starts the first step, the one after `resume_step`, at `at_ms`.
    pub(crate) fn new(
        workload: &'static Workload,
        seed: u64,
        ranks: usize,
        resume_step: u64,
        at_ms: TimestampMs,
        slowdown: impl Fn(usize) -> Slowdown,
    ) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a small positive number"
        )]
        let pool_steps = ((POOL_S / workload.step_s).max(1.0) as u64).next_power_of_two();
        let mut training = Self {
            workload,
            stretch: workload.stretch(),
            seed,
            ranks,
            step: resume_step,
            ends_ms: at_ms as f64,
            current_step: Vec::new(),
            pool: Sums::default(),
            pool_steps,
        };
        training.begin_step(slowdown);
        training
    }

    /// Returns the last step that all ranks have finished.
    pub(crate) fn step(&self) -> u64 {
        self.step
    }

    /// Returns the parts of the current step, by rank.
    pub(crate) fn current_step(&self) -> &[Parts] {
        &self.current_step
    }

    /// Returns the phase of a rank at a time within the current step, and for how many seconds it has been in it.
    pub(crate) fn phase(&self, rank: usize, now_ms: TimestampMs) -> (Phase, f64) {
        let parts = &self.current_step[rank];
        let mut into = (now_ms as f64 - self.ends_ms) / 1e3 + parts.step;
        for (phase, seconds) in [
            (Phase::Data, parts.data),
            (Phase::Forward, parts.forward),
            (Phase::Backward, parts.backward),
            (Phase::Collective, parts.sync),
            (Phase::Optimizer, parts.optimizer),
        ] {
            if into < seconds {
                return (phase, into.max(0.0));
            }
            into -= seconds;
        }
        (Phase::Host, into)
    }

    /// Finishes steps up to a time. Returns the complete pools.
    pub(crate) fn advance(&mut self, now_ms: TimestampMs, slowdown: impl Fn(usize) -> Slowdown) -> Vec<Pool> {
        let mut pools = Vec::new();
        while self.ends_ms <= now_ms as f64 {
            self.step += 1;
            self.pool.add(&self.current_step);
            if self.step.is_multiple_of(self.pool_steps) {
                let recorded = self.workload.trace().at(self.step);
                #[expect(clippy::cast_possible_truncation, reason = "a time of this century")]
                pools.push(std::mem::take(&mut self.pool).close(
                    self.ends_ms as TimestampMs,
                    self.step,
                    (recorded.loss, recorded.grad_norm),
                ));
            }
            self.begin_step(&slowdown);
        }
        pools
    }

    fn begin_step(&mut self, slowdown: impl Fn(usize) -> Slowdown) {
        let recorded = self.workload.trace().at(self.step);
        let stretch = self.stretch;
        let own = |rank: usize| {
            let slow = slowdown(rank);
            let jitter = |part: u64| 1.0 + NOISE * noise([self.seed ^ part, rank as u64, self.step]);
            Parts {
                data: recorded.data * stretch * slow.data * jitter(1),
                forward: recorded.forward * stretch * slow.compute * jitter(2),
                backward: recorded.backward * stretch * slow.compute * jitter(3),
                optimizer: recorded.optimizer * stretch * slow.compute * jitter(4),
                host: recorded.host * stretch * jitter(5),
                ..Parts::default()
            }
        };
        let mut all: Vec<Parts> = (0..self.ranks).map(own).collect();
        let longest = all.iter().map(Parts::own).fold(0.0, f64::max);
        let step = longest + recorded.exposed_seconds() * stretch;
        for parts in &mut all {
            parts.step = step;
            parts.sync = step - parts.own();
        }
        self.current_step = all;
        self.ends_ms += step * 1e3;
    }
}

impl Parts {
    /// Returns the time without the wait for other ranks.
    pub(crate) fn own(&self) -> f64 {
        self.data + self.forward + self.backward + self.optimizer + self.host
    }

    /// Returns the share of the step that computes.
    pub(crate) fn compute_ratio(&self) -> f64 {
        (self.forward + self.backward + self.optimizer) / self.step
    }

    fn map_with(&self, other: &Self, of: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            step: of(self.step, other.step),
            data: of(self.data, other.data),
            forward: of(self.forward, other.forward),
            backward: of(self.backward, other.backward),
            optimizer: of(self.optimizer, other.optimizer),
            host: of(self.host, other.host),
            sync: of(self.sync, other.sync),
        }
    }
}

impl Sums {
    fn add(&mut self, step: &[Parts]) {
        self.steps += 1;
        if self.sum.is_empty() {
            (self.sum, self.max) = (step.to_vec(), step.to_vec());
            return;
        }
        for ((sum, max), parts) in self.sum.iter_mut().zip(&mut self.max).zip(step) {
            *sum = sum.map_with(parts, |a, b| a + b);
            *max = max.map_with(parts, f64::max);
        }
    }

    fn close(self, at_ms: TimestampMs, last_step: u64, (loss, grad_norm): (f64, f64)) -> Pool {
        let count = self.steps as f64;
        let mean = self.sum.iter().map(|sum| sum.map_with(sum, |all, _| all / count));
        Pool {
            at_ms,
            last_step,
            steps: self.steps,
            mean: mean.collect(),
            max: self.max,
            loss,
            grad_norm,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::workloads;

    const HEALTHY: Slowdown = Slowdown {
        compute: 1.0,
        data: 1.0,
    };

    fn pools(slow_rank: Option<usize>) -> Vec<Pool> {
        let slowdown = |rank: usize| Slowdown {
            compute: if slow_rank == Some(rank) { 1.5 } else { 1.0 },
            ..HEALTHY
        };
        let mut training = Training::new(&workloads()[0], 7, 4, 0, 0, slowdown);
        training.advance(60_000, slowdown)
    }

    #[test]
    fn pools_end_at_the_same_steps_on_all_ranks_and_last_about_a_second() {
        let all = pools(None);
        assert!((30..120).contains(&all.len()), "{}", all.len());
        for two in all.windows(2) {
            assert_eq!(two[1].last_step - two[0].last_step, two[1].steps);
            assert!(two[1].steps.is_power_of_two() && two[1].last_step.is_multiple_of(two[1].steps));
            assert!(two[1].at_ms > two[0].at_ms);
        }
    }

    #[test]
    fn peers_wait_for_a_slow_rank_and_it_does_not_wait() {
        let (healthy, slow) = (pools(None), pools(Some(2)));
        let sync = |pools: &[Pool], rank: usize| {
            let all: Vec<f64> = pools.iter().map(|pool| pool.mean[rank].sync).collect();
            all.iter().sum::<f64>() / all.len() as f64
        };
        assert!(sync(&slow, 0) > 2.0 * sync(&slow, 2));
        assert!((sync(&healthy, 0) / sync(&healthy, 2) - 1.0).abs() < 0.5);
        let step = |pools: &[Pool]| pools[5].mean[0].step;
        assert!(step(&slow) > 1.2 * step(&healthy));
    }

    #[test]
    fn it_goes_on_from_the_step_of_a_checkpoint() {
        let training = Training::new(&workloads()[0], 7, 4, 120, 0, |_| HEALTHY);
        assert_eq!(training.step(), 120);
    }
}
