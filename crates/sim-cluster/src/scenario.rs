//! What one simulated run plays: a recorded recipe, its speed, the noise of its ranks, its pauses and its faults.
//!
//! ```text
//! part of a step = recorded part × step time ÷ recorded step time × noise × slowdowns + pauses
//! noise          = uniform within 1.2 % (the demo), or log-normal with the median 1
//! batch          = log-normal, per rank and step: batches of different sizes
//! loader pause   = Pareto, cut off: now and then, a batch is not ready
//! ```

use crate::fault::{Fault, Part};
use crate::noise::{log_normal, noise, pareto, unit_of};
use crate::workload::Workload;

/// The share of a part by which ranks of the demo differ from step to step.
const UNIFORM: f64 = 0.012;
/// The shape of the Pareto distribution: without the cut-off, its variance would be infinite.
const PAUSE_ALPHA: f64 = 1.5;
/// The shortest and the longest pause of a data loader, in seconds.
const PAUSE_S_MIN: f64 = 0.02;
const PAUSE_S_MAX: f64 = 1.5;
/// Distinguishes the random numbers of a seed. Numbers up to 15 are those of the parts of a step.
const BATCH: u64 = 16;
const PAUSE_COMES: u64 = 17;
const PAUSE_LENGTH: u64 = 18;
const PLANNED_PAUSE: u64 = 19;

/// What a run plays.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The name of the run that plays it.
    pub name: String,
    /// The recording, and the size of the model.
    pub workload: &'static Workload,
    /// The median time of a step without faults and noise, in seconds.
    pub step_s: f64,
    /// The seed of the noise. `None`: from the id of the run.
    pub seed: Option<u64>,
    /// How the ranks see and report their waits.
    pub waits: WaitPath,
    /// The noise of the ranks.
    pub noise: Noise,
    /// The factor by which the data loader is slower than in the recording, unless the run sets `num_workers`.
    pub slow_data: f64,
    /// Pauses that are part of healthy work.
    pub pauses: Vec<Pause>,
    /// True if checkpoints are saved on a simulated file system.
    pub has_storage: bool,
    /// The faults of the first attempt.
    pub faults: Vec<Fault>,
    /// The script ends by itself after this time, in seconds. `None`: never.
    pub ends_after_s: Option<f64>,
}

/// How ranks wait for each other, and how their probes see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitPath {
    /// NCCL on GPUs, but with the waits of Gloo: a page shows each wait, and each step is measured. Only for the demo.
    Demo,
    /// Gloo on processors: the host waits. Under DDP it waits within the backward pass, which the page does not show.
    Gloo,
    /// NCCL on GPUs: only the GPU's stream waits, so no page shows it. The host is blocked wherever it next needs a result. Waits are measured
    /// between two CUDA events: under DDP in each step, under FSDP and HSDP in sampled steps, and in all other steps they are part of the
    /// backward pass.
    Nccl {
        /// Where the hosts of waiting ranks are blocked.
        blocked_in: BlockedIn,
    },
}

/// Where the host of a rank is blocked while its GPU waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockedIn {
    /// In the backward pass: the queue of kernels is full.
    Backward,
    /// Between steps: the script reads the loss.
    Host,
}

/// The noise of the ranks of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Noise {
    /// The standard deviation of the logarithm of each part. `None`: uniform within 1.2 %.
    pub sigma: Option<f64>,
    /// The same of the size of batches; 0 if all batches are equal.
    pub batch_sigma: f64,
    /// The probability that a batch is not ready, per rank and step.
    pub pause_chance: f64,
}

/// A pause that is part of healthy work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pause {
    /// The rank that pauses; all ranks if it is `None`.
    pub rank: Option<u32>,
    /// The part of the step in which it pauses.
    pub part: Part,
    /// The time until the first pause, and from one pause to the next, in seconds.
    pub every_s: f64,
    /// The median length in seconds.
    pub median_s: f64,
    /// The standard deviation of the logarithm of the length.
    pub sigma: f64,
}

impl Scenario {
    /// Returns what the demo plays for a workload.
    #[must_use]
    pub fn demo(workload: &'static Workload) -> Self {
        Self {
            slow_data: workload.slow_data,
            waits: WaitPath::Demo,
            has_storage: true,
            faults: workload.faults.to_vec(),
            ..Self::even(workload.name.to_owned(), workload)
        }
    }

    /// Returns a run on Gloo without faults and pauses and with the least noise.
    #[must_use]
    pub fn even(name: String, workload: &'static Workload) -> Self {
        Self {
            name,
            workload,
            step_s: workload.step_s,
            seed: None,
            waits: WaitPath::Gloo,
            noise: Noise {
                sigma: None,
                batch_sigma: 0.0,
                pause_chance: 0.0,
            },
            slow_data: 1.0,
            pauses: Vec::new(),
            has_storage: false,
            faults: Vec::new(),
            ends_after_s: None,
        }
    }

    /// Returns true if the ranks compute on GPUs.
    pub(crate) fn has_gpus(&self) -> bool {
        self.waits != WaitPath::Gloo
    }

    /// Returns true if the model is sharded, so that the host waits in functions that the probe watches.
    pub(crate) fn is_sharded(&self) -> bool {
        matches!(self.workload.recipe, "fsdp" | "hsdp")
    }
}

impl Noise {
    /// Returns the factor of a part of a step.
    pub(crate) fn factor(&self, (seed, part): (u64, u64), rank: u64, step: u64) -> f64 {
        let keys = [seed ^ part, rank, step];
        match self.sigma {
            None => 1.0 + UNIFORM * noise(keys),
            Some(sigma) => log_normal(sigma, keys),
        }
    }

    /// Returns the factor of the batch of a rank.
    pub(crate) fn batch_factor(&self, seed: u64, rank: u64, step: u64) -> f64 {
        if self.batch_sigma > 0.0 {
            log_normal(self.batch_sigma, [seed ^ BATCH, rank, step])
        } else {
            1.0
        }
    }

    /// Returns for how many seconds the data loader has no batch ready.
    pub(crate) fn loader_pause_s(&self, seed: u64, rank: u64, step: u64) -> f64 {
        if self.pause_chance > 0.0 && unit_of([seed ^ PAUSE_COMES, rank, step]) < self.pause_chance {
            pareto(PAUSE_S_MIN, PAUSE_ALPHA, [seed ^ PAUSE_LENGTH, rank, step]).min(PAUSE_S_MAX)
        } else {
            0.0
        }
    }
}

impl Pause {
    /// Returns the length of the pause with this number, in seconds. It is the same on all ranks.
    pub(crate) fn seconds(&self, seed: u64, number: u64) -> f64 {
        self.median_s * log_normal(self.sigma, [seed ^ PLANNED_PAUSE, self.part as u64, number])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_rarely_late_and_never_by_more_than_the_limit() {
        let noise = Noise {
            sigma: Some(0.03),
            batch_sigma: 0.0,
            pause_chance: 0.01,
        };
        let pauses: Vec<f64> = (0..100_000)
            .map(|step| noise.loader_pause_s(7, 1, step))
            .filter(|seconds| *seconds > 0.0)
            .collect();
        assert!((800..1_200).contains(&pauses.len()), "{}", pauses.len());
        assert!(
            pauses
                .iter()
                .all(|seconds| (PAUSE_S_MIN..=PAUSE_S_MAX).contains(seconds))
        );
        let long = pauses
            .iter()
            .filter(|seconds| **seconds > 4.0 * PAUSE_S_MIN)
            .count();
        let share = long as f64 / pauses.len() as f64;
        assert!((share - 0.125).abs() < 0.04, "4 to the power of -1.5: {share}");
    }
}
