//! The steps of one attempt: how long each part takes on each rank, which ranks wait, and the pools that the probe reports.
//!
//! ```text
//! own time of a rank = parts of the trace × stretch × noise × slowdown + additional time
//! step               = the longest own time + the exposed part of the recorded wait;   wait of a rank = step − own time
//! pool               = steps up to one whose number is divisible by a power of two, on all ranks
//! ```

use std::sync::Arc;

use domain::diagnosis::input::Phase;
use domain::time::TimestampMs;

use crate::fault::Part;
use crate::scenario::{Scenario, WaitPath};

/// The approximate length of a pool, in seconds.
const POOL_S: f64 = 1.0;
/// On GPUs, a sharded model's waits are measured in about four steps per second, as by the probe.
const SAMPLE_S: f64 = 0.25;
const SAMPLE_EVERY_MAX: u64 = 256;

/// The parts of a step on one rank, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Parts {
    pub(crate) step: f64,
    pub(crate) data: f64,
    pub(crate) forward: f64,
    pub(crate) backward: f64,
    pub(crate) optimizer: f64,
    pub(crate) save: f64,
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
    /// The share of a step that computes, in steps whose waits are known.
    pub(crate) compute_ratio: Vec<f64>,
    /// False if the waits of no step are known.
    pub(crate) has_waits: bool,
    pub(crate) loss: f64,
    pub(crate) grad_norm: f64,
}

/// How much a rank is slowed down in a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Slowdown {
    /// A factor of the usual time for computing.
    pub(crate) compute: f64,
    /// A factor of the recorded time of the data loader.
    pub(crate) data: f64,
    /// Additional time.
    pub(crate) more: Parts,
}

/// When a step begins, and when the one before it began, in milliseconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StepTime {
    pub(crate) previous_ms: f64,
    pub(crate) begins_ms: f64,
}

/// The steps of an attempt.
#[derive(Debug)]
pub(crate) struct Training {
    scenario: Arc<Scenario>,
    /// The factor by which a step is longer than in the recording.
    stretch: f64,
    seed: u64,
    ranks: usize,
    /// The last step that all ranks have finished.
    step: u64,
    /// When the current step began and when it ends, in milliseconds since the epoch.
    began_ms: f64,
    ends_ms: f64,
    current_step: Vec<Parts>,
    pool: Sums,
    pool_steps: u64,
    /// Waits are measured in steps whose number is divisible by this.
    sample_every: u64,
}

#[derive(Debug, Default)]
struct Sums {
    steps: u64,
    sum: Vec<Parts>,
    max: Vec<Parts>,
    /// The number of steps whose waits are known, and their time for computing and in total.
    timed: u64,
    compute_s: Vec<f64>,
    timed_s: Vec<f64>,
}

impl Training {
    /// Starts the first step, the one after `resume_step`, at `at_ms`.
    pub(crate) fn new(
        scenario: Arc<Scenario>,
        seed: u64,
        ranks: usize,
        resume_step: u64,
        at_ms: TimestampMs,
        slowdown: impl Fn(usize, StepTime) -> Slowdown,
    ) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a small positive number"
        )]
        let pool_steps = ((POOL_S / scenario.step_s).max(1.0) as u64).next_power_of_two();
        let mut training = Self {
            stretch: scenario.workload.stretch(scenario.step_s),
            sample_every: sample_every(&scenario),
            scenario,
            seed,
            ranks,
            step: resume_step,
            began_ms: at_ms as f64,
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
        let mut into = self.seconds_into_step(now_ms);
        for (phase, seconds) in [
            (Phase::Data, parts.data),
            (Phase::Forward, parts.forward),
            (Phase::Backward, parts.backward),
            (Phase::Collective, parts.sync),
            (Phase::Optimizer, parts.optimizer),
            (Phase::Save, parts.save),
        ] {
            if into < seconds {
                return (phase, into.max(0.0));
            }
            into -= seconds;
        }
        (Phase::Host, into)
    }

    /// Like [`Self::phase`], for a rank whose peers do not arrive: it waits from the end of its backward pass on.
    pub(crate) fn phase_without_peers(&self, rank: usize, now_ms: TimestampMs) -> (Phase, f64) {
        let parts = &self.current_step[rank];
        let before_s = parts.data + parts.forward + parts.backward;
        let into_s = self.seconds_into_step(now_ms);
        if into_s < before_s {
            self.phase(rank, now_ms)
        } else {
            (Phase::Collective, into_s - before_s)
        }
    }

    fn seconds_into_step(&self, now_ms: TimestampMs) -> f64 {
        (now_ms as f64 - self.began_ms) / 1e3
    }

    /// Finishes steps up to a time. Returns the complete pools.
    pub(crate) fn advance(
        &mut self,
        now_ms: TimestampMs,
        slowdown: impl Fn(usize, StepTime) -> Slowdown,
    ) -> Vec<Pool> {
        let mut pools = Vec::new();
        while self.ends_ms <= now_ms as f64 {
            self.step += 1;
            self.pool
                .add(&self.current_step, self.step.is_multiple_of(self.sample_every));
            if self.step.is_multiple_of(self.pool_steps) {
                let recorded = self.scenario.workload.trace().at(self.step);
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

    fn begin_step(&mut self, slowdown: impl Fn(usize, StepTime) -> Slowdown) {
        let recorded = self.scenario.workload.trace().at(self.step);
        let (stretch, noise) = (self.stretch, self.scenario.noise);
        let time = StepTime {
            previous_ms: self.began_ms,
            begins_ms: self.ends_ms,
        };
        let own = |rank: usize| {
            let slow = slowdown(rank, time);
            let jitter = |part: u64| noise.factor((self.seed, part), rank as u64, self.step);
            let compute = stretch * slow.compute;
            let batch = noise.batch_factor(self.seed, rank as u64, self.step);
            Parts {
                data: recorded.data * stretch * slow.data * jitter(1)
                    + noise.loader_pause_s(self.seed, rank as u64, self.step)
                    + slow.more.data,
                forward: recorded.forward * compute * batch * jitter(2) + slow.more.forward,
                backward: recorded.backward * compute * batch * jitter(3) + slow.more.backward,
                optimizer: recorded.optimizer * compute * jitter(4) + slow.more.optimizer,
                host: recorded.host * stretch * jitter(5) + slow.more.host,
                save: slow.more.save,
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
        self.began_ms = self.ends_ms;
        self.ends_ms += step * 1e3;
    }
}

fn sample_every(scenario: &Scenario) -> u64 {
    if !scenario.is_sharded() || !matches!(scenario.waits, WaitPath::Nccl { .. }) {
        return 1;
    }
    let mut every = 1;
    while every as f64 * scenario.step_s < SAMPLE_S && every < SAMPLE_EVERY_MAX {
        every *= 2;
    }
    every
}

impl Parts {
    /// Returns the time without the wait for other ranks.
    pub(crate) fn own(&self) -> f64 {
        self.data + self.forward + self.backward + self.optimizer + self.save + self.host
    }

    /// Returns the share of the step that computes.
    pub(crate) fn compute_ratio(&self) -> f64 {
        self.compute() / self.step
    }

    /// Adds time to a part.
    pub(crate) fn add(&mut self, part: Part, seconds: f64) {
        match part {
            Part::Data => self.data += seconds,
            Part::Forward => self.forward += seconds,
            Part::Backward => self.backward += seconds,
            Part::Optimizer => self.optimizer += seconds,
            Part::Host => self.host += seconds,
            Part::Save => self.save += seconds,
            Part::Everything => {
                for part in [Part::Forward, Part::Backward, Part::Optimizer, Part::Host] {
                    self.add(part, seconds / 4.0);
                }
            }
        }
    }

    fn compute(&self) -> f64 {
        self.forward + self.backward + self.optimizer
    }

    /// Returns the parts as they are reported if the wait was not measured: it is part of the backward pass.
    fn without_wait(&self) -> Self {
        Self {
            backward: self.backward + self.sync,
            sync: 0.0,
            ..*self
        }
    }

    fn map_with(&self, other: &Self, of: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            step: of(self.step, other.step),
            data: of(self.data, other.data),
            forward: of(self.forward, other.forward),
            backward: of(self.backward, other.backward),
            optimizer: of(self.optimizer, other.optimizer),
            save: of(self.save, other.save),
            host: of(self.host, other.host),
            sync: of(self.sync, other.sync),
        }
    }
}

impl Sums {
    fn add(&mut self, step: &[Parts], has_waits: bool) {
        if self.sum.is_empty() {
            self.sum = vec![Parts::default(); step.len()];
            self.max = vec![Parts::default(); step.len()];
            self.compute_s = vec![0.0; step.len()];
            self.timed_s = vec![0.0; step.len()];
        }
        self.steps += 1;
        self.timed += u64::from(has_waits);
        for (rank, parts) in step.iter().enumerate() {
            let reported = if has_waits {
                self.compute_s[rank] += parts.compute();
                self.timed_s[rank] += parts.step;
                *parts
            } else {
                parts.without_wait()
            };
            self.sum[rank] = self.sum[rank].map_with(&reported, |a, b| a + b);
            self.max[rank] = self.max[rank].map_with(&reported, f64::max);
        }
    }

    fn close(self, at_ms: TimestampMs, last_step: u64, (loss, grad_norm): (f64, f64)) -> Pool {
        let (count, timed) = (self.steps as f64, self.timed.max(1) as f64);
        let mean = self.sum.iter().map(|sum| Parts {
            sync: sum.sync / timed,
            ..sum.map_with(sum, |all, _| all / count)
        });
        // If no wait is known, all steps count, and waits are part of the backward pass.
        let compute_ratio = self.sum.iter().zip(self.compute_s.iter().zip(&self.timed_s));
        let compute_ratio = compute_ratio.map(|(sum, (compute_s, timed_s))| {
            if *timed_s > 0.0 {
                compute_s / timed_s
            } else {
                sum.compute_ratio()
            }
        });
        Pool {
            at_ms,
            last_step,
            steps: self.steps,
            mean: mean.collect(),
            compute_ratio: compute_ratio.collect(),
            has_waits: self.timed > 0,
            max: self.max,
            loss,
            grad_norm,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::BlockedIn;
    use crate::workload::workloads;

    const HEALTHY: Slowdown = Slowdown {
        compute: 1.0,
        data: 1.0,
        more: Parts {
            step: 0.0,
            data: 0.0,
            forward: 0.0,
            backward: 0.0,
            optimizer: 0.0,
            save: 0.0,
            host: 0.0,
            sync: 0.0,
        },
    };

    fn demo() -> Arc<Scenario> {
        Arc::new(Scenario::demo(&workloads()[0]))
    }

    fn pools(slow_rank: Option<usize>) -> Vec<Pool> {
        let slowdown = |rank: usize, _: StepTime| Slowdown {
            compute: if slow_rank == Some(rank) { 1.5 } else { 1.0 },
            ..HEALTHY
        };
        let mut training = Training::new(demo(), 7, 4, 0, 0, slowdown);
        training.advance(60_000, slowdown)
    }

    fn mean_sync(pools: &[Pool], rank: usize) -> f64 {
        let all: Vec<f64> = pools.iter().map(|pool| pool.mean[rank].sync).collect();
        all.iter().sum::<f64>() / all.len() as f64
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
        assert!(mean_sync(&slow, 0) > 2.0 * mean_sync(&slow, 2));
        assert!((mean_sync(&healthy, 0) / mean_sync(&healthy, 2) - 1.0).abs() < 0.5);
        let step = |pools: &[Pool]| pools[5].mean[0].step;
        assert!(step(&slow) > 1.2 * step(&healthy));
    }

    #[test]
    fn on_gpus_the_waits_of_a_sharded_model_are_measured_in_sampled_steps() {
        let short = |waits| {
            Arc::new(Scenario {
                step_s: 0.1,
                waits,
                ..Scenario::even("r".to_owned(), &workloads()[0])
            })
        };
        let slowdown = |rank: usize, _: StepTime| Slowdown {
            compute: if rank == 2 { 1.5 } else { 1.0 },
            ..HEALTHY
        };
        let pools = |waits| {
            let mut training = Training::new(short(waits), 7, 4, 0, 0, slowdown);
            training.advance(60_000, slowdown)
        };
        let all = pools(WaitPath::Gloo);
        let sampled = pools(WaitPath::Nccl {
            blocked_in: BlockedIn::Host,
        });
        let backward =
            |pools: &[Pool], rank: usize| pools.iter().map(|pool| pool.mean[rank].backward).sum::<f64>();
        assert!(sampled.iter().all(|pool| pool.has_waits));
        assert!((mean_sync(&sampled, 0) / mean_sync(&all, 0) - 1.0).abs() < 0.5);
        assert!(
            backward(&sampled, 0) > 1.1 * backward(&all, 0),
            "it contains the waits that are not measured"
        );
    }

    #[test]
    fn a_rank_whose_peers_do_not_arrive_waits_from_its_backward_pass_on() {
        let training = Training::new(demo(), 7, 4, 0, 0, |_, _| HEALTHY);
        let (phase, _) = training.phase_without_peers(1, 1);
        assert_ne!(phase, Phase::Collective);
        let (phase, age_s) = training.phase_without_peers(1, 60_000);
        assert_eq!(phase, Phase::Collective);
        assert!((58.0..60.0).contains(&age_s), "{age_s}");
    }

    #[test]
    fn it_goes_on_from_the_step_of_a_checkpoint() {
        let training = Training::new(demo(), 7, 4, 120, 0, |_, _| HEALTHY);
        assert_eq!(training.step(), 120);
    }
}
