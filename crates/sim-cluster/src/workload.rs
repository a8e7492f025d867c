//! The training of simulated runs: traces of real recipes, stretched to the step time of a larger model.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::fault::{Fault, FaultKind};

/// The share of the recorded wait that a step keeps: the recordings used Gloo over loopback, and NVLink hides nearly all of it.
const EXPOSED_SHARE: f64 = 0.08;

/// A kind of training, and its faults.
#[derive(Debug)]
pub struct Workload {
    /// The name of the run. The collector gives the run an id that begins with it.
    pub name: &'static str,
    /// The recipe whose trace is used.
    pub recipe: &'static str,
    /// The number of nodes.
    pub nodes: u32,
    /// The median time of a step without faults, in seconds.
    pub step_s: f64,
    /// Samples per rank and step.
    pub micro_batch: u32,
    /// Tokens per sample.
    pub tokens_per_sample: u32,
    /// The share of the GPU's memory that PyTorch holds.
    pub memory_share: f64,
    /// The size of one checkpoint in bytes.
    pub checkpoint_bytes: u64,
    /// The number of steps between checkpoints.
    pub checkpoint_every: u64,
    /// The number of checkpoints that fit on the disk.
    pub checkpoints_max: u64,
    /// The factor by which the data loader is slower than in the recording, unless the run sets `num_workers` to at least 4.
    pub slow_data: f64,
    /// The faults of the first attempt.
    pub faults: &'static [Fault],
    trace: LazyLock<Trace>,
}

/// The parts of one step in a trace, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
pub(crate) struct TraceStep {
    pub(crate) data: f64,
    pub(crate) forward: f64,
    pub(crate) backward: f64,
    pub(crate) optimizer: f64,
    pub(crate) host: f64,
    /// The recorded wait for other ranks.
    sync: f64,
    pub(crate) loss: f64,
    pub(crate) grad_norm: f64,
}

/// The recording of one rank of a recipe.
#[derive(Debug, Deserialize)]
pub(crate) struct Trace {
    /// What was recorded, where and when, for people.
    #[expect(dead_code, reason = "documents the file")]
    recorded: String,
    steps: Vec<TraceStep>,
}

impl Trace {
    fn read(json: &str) -> Self {
        serde_json::from_str(json).expect("a trace of this crate is well-formed")
    }

    /// Returns the step with this number. After the end of the recording, the timing repeats and the loss stays near its last
    /// value.
    pub(crate) fn at(&self, step: u64) -> TraceStep {
        let count = self.steps.len() as u64;
        let looped = self.steps[usize::try_from(step % count).unwrap_or_default()];
        if step < count {
            return looped;
        }
        // The last quarter, so that the loss keeps its noise.
        let from = count - count / 4;
        let settled = self.steps[usize::try_from(from + step % (count / 4).max(1)).unwrap_or_default()];
        TraceStep {
            loss: settled.loss,
            grad_norm: settled.grad_norm,
            ..looped
        }
    }

    fn median_step_s(&self) -> f64 {
        let mut all: Vec<f64> = self.steps.iter().map(TraceStep::seconds).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    }
}

impl TraceStep {
    pub(crate) fn seconds(&self) -> f64 {
        self.own_seconds() + self.exposed_seconds()
    }

    /// Returns the wait for other ranks that is not hidden behind computing.
    pub(crate) fn exposed_seconds(&self) -> f64 {
        EXPOSED_SHARE * self.sync
    }

    /// Returns the time without the wait for other ranks.
    pub(crate) fn own_seconds(&self) -> f64 {
        self.data + self.forward + self.backward + self.optimizer + self.host
    }
}

impl Workload {
    /// Returns the recording.
    pub(crate) fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Returns the factor by which a step of this length is longer than in the recording.
    pub(crate) fn stretch(&self, step_s: f64) -> f64 {
        step_s / self.trace().median_step_s()
    }
}

/// Returns the runs of `lockstep demo`. Other scenarios use their recordings.
#[must_use]
pub fn workloads() -> &'static [Workload] {
    &WORKLOADS
}

static WORKLOADS: [Workload; 4] = [
    Workload {
        name: "llama-8b-fsdp",
        recipe: "fsdp",
        nodes: 3,
        step_s: 0.42,
        micro_batch: 4,
        tokens_per_sample: 4_096,
        memory_share: 0.82,
        checkpoint_bytes: 96 << 30,
        checkpoint_every: 60,
        checkpoints_max: 40,
        slow_data: 1.0,
        faults: &[Fault {
            after_s: 12.0,
            kind: FaultKind::PowerBrake { rank: 17 },
        }],
        trace: LazyLock::new(|| Trace::read(include_str!("../traces/fsdp.json"))),
    },
    Workload {
        name: "vit-l-ddp",
        recipe: "ddp",
        nodes: 2,
        step_s: 0.19,
        micro_batch: 64,
        tokens_per_sample: 0,
        memory_share: 0.71,
        checkpoint_bytes: 4 << 30,
        checkpoint_every: 100,
        checkpoints_max: 40,
        slow_data: 420.0,
        faults: &[],
        trace: LazyLock::new(|| Trace::read(include_str!("../traces/ddp.json"))),
    },
    Workload {
        name: "moe-hsdp",
        recipe: "hsdp",
        nodes: 1,
        step_s: 0.31,
        micro_batch: 8,
        tokens_per_sample: 2_048,
        memory_share: 0.78,
        checkpoint_bytes: 40 << 30,
        checkpoint_every: 50,
        checkpoints_max: 40,
        slow_data: 1.0,
        faults: &[Fault {
            after_s: 45.0,
            kind: FaultKind::StopProcess { rank: 3 },
        }],
        trace: LazyLock::new(|| Trace::read(include_str!("../traces/hsdp.json"))),
    },
    Workload {
        name: "bert-resume",
        recipe: "resume",
        nodes: 1,
        step_s: 0.12,
        micro_batch: 32,
        tokens_per_sample: 512,
        memory_share: 0.74,
        checkpoint_bytes: 6 << 30,
        checkpoint_every: 80,
        checkpoints_max: 7,
        slow_data: 1.0,
        faults: &[Fault {
            after_s: 25.0,
            kind: FaultKind::MemoryError { rank: 5 },
        }],
        trace: LazyLock::new(|| Trace::read(include_str!("../traces/resume.json"))),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_trace_is_a_recording_of_a_minute_and_stretches_to_the_step_of_its_workload() {
        for workload in workloads() {
            let trace = workload.trace();
            assert!(
                trace.steps.len() >= 30,
                "{}: {}",
                workload.name,
                trace.steps.len()
            );
            let stretched = trace.median_step_s() * workload.stretch(workload.step_s);
            assert!((stretched - workload.step_s).abs() < 1e-9);
            assert!(
                trace
                    .steps
                    .iter()
                    .all(|step| step.seconds() > 0.0 && step.loss.is_finite())
            );
        }
    }

    #[test]
    fn the_loss_does_not_begin_again_when_the_timing_does() {
        for workload in workloads() {
            let trace = workload.trace();
            let count = trace.steps.len() as u64;
            let late: Vec<f64> = (count..2 * count).map(|step| trace.at(step).loss).collect();
            let last = &trace.steps[trace.steps.len() - trace.steps.len() / 4..];
            let highest = last.iter().map(|step| step.loss).fold(f64::MIN, f64::max);
            assert!(late.iter().all(|loss| *loss <= highest), "{}", workload.name);
        }
    }

    #[test]
    fn the_runs_leave_a_node_to_go_to() {
        let used: u32 = workloads().iter().map(|workload| workload.nodes).sum();
        assert_eq!(used, 7);
    }
}
