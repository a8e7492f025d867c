//! What the ranks of a simulated run do: traces of real recipes, stretched to the speed of a larger model.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::fault::{Fault, FaultKind};

/// Share of the recorded wait that a step keeps: the recordings were made with Gloo over loopback, and NVLink hides nearly all of it.
const EXPOSED_SHARE: f64 = 0.08;

/// A kind of training, and what goes wrong in it.
#[derive(Debug)]
pub struct Workload {
    /// The name of the run; the collector gives the run an id that begins with it.
    pub name: &'static str,
    /// The recipe whose trace it plays.
    pub recipe: &'static str,
    /// Nodes.
    pub nodes: u32,
    /// Median time of a step without faults, in seconds.
    pub step_s: f64,
    /// Samples per rank and step.
    pub micro_batch: u32,
    /// Tokens per sample.
    pub tokens_per_sample: u32,
    /// Share of the GPU's memory that PyTorch holds.
    pub memory_share: f64,
    /// Bytes of one checkpoint.
    pub checkpoint_bytes: u64,
    /// Steps between checkpoints.
    pub checkpoint_every: u64,
    /// Checkpoints that fit on the disk.
    pub checkpoints_max: u64,
    /// Times the recorded time of the data loader, unless the run sets `num_workers` to at least 4.
    pub slow_data: f64,
    /// What goes wrong.
    pub faults: &'static [Fault],
    trace: LazyLock<Trace>,
}

/// Parts of one step, in seconds; what the trace holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
pub(crate) struct TraceStep {
    pub(crate) data: f64,
    pub(crate) forward: f64,
    pub(crate) backward: f64,
    pub(crate) optimizer: f64,
    pub(crate) host: f64,
    /// Wait for others, as recorded.
    sync: f64,
    pub(crate) loss: f64,
    pub(crate) grad_norm: f64,
}

/// A recording of one rank of a recipe.
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

    /// The step at a place; the timing repeats after the end of the recording, the loss stays near its last value.
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

    /// The wait for others that is not hidden behind computing.
    pub(crate) fn exposed_seconds(&self) -> f64 {
        EXPOSED_SHARE * self.sync
    }

    /// Everything but the wait for others.
    pub(crate) fn own_seconds(&self) -> f64 {
        self.data + self.forward + self.backward + self.optimizer + self.host
    }
}

impl Workload {
    /// The recording.
    pub(crate) fn trace(&self) -> &Trace {
        &self.trace
    }

    /// How many times longer a step is than in the recording.
    pub(crate) fn stretch(&self) -> f64 {
        self.step_s / self.trace().median_step_s()
    }
}

/// The runs of `lockstep demo`.
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
            let stretched = trace.median_step_s() * workload.stretch();
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
