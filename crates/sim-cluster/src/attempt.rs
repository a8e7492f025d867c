//! One attempt of a run: which ranks each node has, and their progress.

use std::collections::BTreeMap;

use domain::diagnosis::input::Phase;
use domain::time::TimestampMs;

use crate::gpu::{GPUS, Load};
use crate::reading::{Reading, Readings, Snapshot};
use crate::training::{Parts, Pool, Training};
use crate::workload::Workload;

/// Added to the compute share to get the share of the time in which the links carry gradients (at most 1).
const OVERLAPPED_SHARE: f64 = 0.55;
const FIRST_BEST_AFTER_S: f64 = 60.0;

/// The index of a node in the cluster.
pub(crate) type NodeIndex = usize;

/// An attempt.
pub(crate) struct Attempt {
    pub(crate) run: String,
    pub(crate) no: u32,
    pub(crate) workload: &'static Workload,
    pub(crate) nnodes: u32,
    pub(crate) nproc: u32,
    /// The nodes by their position in the attempt. It contains only nodes that were told to start.
    pub(crate) nodes: BTreeMap<u32, NodeIndex>,
    pub(crate) resume_step: u64,
    /// The factor by which the data loader is slower than in the recording.
    pub(crate) slow_data: f64,
    /// The ranks end after this step, if it is set.
    pub(crate) stop_after: Option<u64>,
    pub(crate) phase: AttemptPhase,
    pub(crate) failed_saves: u32,
    /// The throughput of a rank after the first minute, in samples per second.
    best_samples_per_second: Option<f64>,
}

/// The progress of an attempt.
pub(crate) enum AttemptPhase {
    /// Not all nodes were told to start, or the ranks import PyTorch until the given time.
    Starting { first_step_ms: Option<TimestampMs> },
    /// The ranks train.
    Training {
        training: Training,
        since_ms: TimestampMs,
    },
    /// No rank makes progress.
    Frozen {
        training: Training,
        since_ms: TimestampMs,
        /// The rank whose process is stopped; `None` if a rank has died.
        stopped: Option<u32>,
    },
    /// All ranks have ended.
    Over,
}

impl Attempt {
    pub(crate) fn new(run: &str, no: u32, workload: &'static Workload, nnodes: u32) -> Self {
        Self {
            run: run.to_owned(),
            no,
            workload,
            nnodes,
            nproc: GPUS,
            nodes: BTreeMap::new(),
            resume_step: 0,
            slow_data: 1.0,
            stop_after: None,
            phase: AttemptPhase::Starting { first_step_ms: None },
            failed_saves: 0,
            best_samples_per_second: None,
        }
    }

    pub(crate) fn ranks(&self) -> u32 {
        self.nnodes * self.nproc
    }

    /// Returns the node and the GPU of a rank.
    pub(crate) fn place(&self, rank: u32) -> Option<(NodeIndex, u32)> {
        let node = self.nodes.get(&(rank / self.nproc))?;
        Some((*node, rank % self.nproc))
    }

    /// Returns the ranks on a node with their local ranks.
    pub(crate) fn ranks_on(&self, node: NodeIndex) -> impl Iterator<Item = (u32, u32)> + use<> {
        let first = self
            .nodes
            .iter()
            .find(|(_, index)| **index == node)
            .map(|(place, _)| place * self.nproc);
        let nproc = self.nproc;
        first
            .into_iter()
            .flat_map(move |first| (0..nproc).map(move |local| (first + local, local)))
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, AttemptPhase::Over)
    }

    pub(crate) fn training(&self) -> Option<&Training> {
        match &self.phase {
            AttemptPhase::Training { training, .. } | AttemptPhase::Frozen { training, .. } => Some(training),
            AttemptPhase::Starting { .. } | AttemptPhase::Over => None,
        }
    }

    /// Stops the progress of all ranks from now on.
    pub(crate) fn freeze(&mut self, now_ms: TimestampMs, stopped: Option<u32>) {
        let phase = std::mem::replace(&mut self.phase, AttemptPhase::Over);
        self.phase = match phase {
            AttemptPhase::Training { training, .. } => AttemptPhase::Frozen {
                training,
                since_ms: now_ms,
                stopped,
            },
            other => other,
        };
    }

    /// Returns what a rank does with its GPU.
    pub(crate) fn load(&self, rank: u32) -> Option<Load> {
        let (compute, communicates) = match &self.phase {
            AttemptPhase::Over => return None,
            AttemptPhase::Starting { .. } => (0.0, 0.0),
            // A waiting kernel of a collective keeps some multiprocessors busy.
            AttemptPhase::Frozen { stopped, .. } => (if *stopped == Some(rank) { 0.0 } else { 0.08 }, 0.0),
            AttemptPhase::Training { training, .. } => {
                let parts = training.current_step()[rank as usize];
                let busy = parts.compute_ratio();
                (busy, (busy + OVERLAPPED_SHARE).min(1.0))
            }
        };
        Some(Load {
            run: self.run.clone(),
            rank,
            compute,
            communicates,
            memory_share: self.workload.memory_share,
        })
    }

    /// Adds the position of each rank of a node, as reported by its probe page and the kernel.
    pub(crate) fn positions(&self, node: NodeIndex, now_ms: TimestampMs, into: &mut Vec<Reading>) {
        let Some(training) = self.training() else {
            return;
        };
        let seconds_of_process = training.step() as f64 * self.workload.step_s;
        for (rank, _) in self.ranks_on(node) {
            let (phase, age_s, state) = match &self.phase {
                AttemptPhase::Frozen {
                    since_ms, stopped, ..
                } => {
                    let age_s = seconds(now_ms - since_ms);
                    if *stopped == Some(rank) {
                        (Phase::Backward, age_s, 1.0)
                    } else {
                        (Phase::Collective, age_s, 0.0)
                    }
                }
                _ => {
                    let (phase, age_s) = training.phase(rank as usize, now_ms);
                    (phase, age_s, 0.0)
                }
            };
            let mut out = self.of_rank(rank, into);
            out.push("train_process_state", state);
            out.push("train_phase", f64::from(phase as u8));
            out.push("train_phase_age_seconds", age_s);
            out.push("train_moves_total", (3 * training.step() + 2) as f64);
            out.push("train_last_step_age_seconds", age_s);
            out.push("train_cpu_seconds_total", 1.02 * seconds_of_process);
            out.push("train_run_delay_seconds_total", 0.001 * seconds_of_process);
            out.push("train_major_faults_total", 0.0);
            out.push("train_host_memory_bytes", 9.4e9);
            let attempt = self.no.to_string();
            let device = format!("cuda:{}", rank % self.nproc);
            let info = [
                ("attempt", attempt.as_str()),
                ("backend", "nccl"),
                ("device", device.as_str()),
                ("torch", "2.10.0"),
                ("python", "3.11.2"),
            ];
            out.push_with("train_info", &info, 1.0);
            if rank == 0 {
                out.push("train_checkpoint_failures_total", f64::from(self.failed_saves));
            }
        }
    }

    /// Returns a pool as the probes of a node's ranks report it.
    pub(crate) fn pool(&self, node: NodeIndex, pool: &Pool) -> Snapshot {
        let mut readings = Vec::new();
        for (rank, _) in self.ranks_on(node) {
            let place = rank as usize;
            self.pool_of_rank(rank, pool, (&pool.mean[place], &pool.max[place]), &mut readings);
        }
        Snapshot {
            at_ms: pool.at_ms,
            readings,
        }
    }

    fn pool_of_rank(&self, rank: u32, pool: &Pool, (mean, max): (&Parts, &Parts), into: &mut Vec<Reading>) {
        let workload = self.workload;
        let mut out = self.of_rank(rank, into);
        out.push("train_step", pool.last_step as f64);
        out.push("train_pool_steps", pool.steps as f64);
        out.push("train_step_seconds", mean.step);
        out.push("train_step_seconds_max", max.step);
        out.push("train_data_seconds", mean.data);
        out.push("train_data_seconds_max", max.data);
        out.push("train_forward_seconds", mean.forward);
        out.push("train_forward_seconds_max", max.forward);
        out.push("train_backward_seconds", mean.backward);
        out.push("train_backward_seconds_max", max.backward);
        out.push("train_optimizer_seconds", mean.optimizer);
        out.push("train_optimizer_seconds_max", max.optimizer);
        out.push("train_host_seconds", mean.host);
        out.push("train_host_seconds_max", max.host);
        out.push("train_sync_seconds", mean.sync);
        out.push("train_sync_seconds_max", max.sync);
        out.push("train_compute_ratio", mean.compute_ratio());
        let samples_per_second = f64::from(workload.micro_batch) / mean.step;
        out.push("train_micro_batch", f64::from(workload.micro_batch));
        out.push("train_samples_per_second", samples_per_second);
        if let Some(best) = self.best_samples_per_second {
            out.push("train_samples_per_second_best", best);
        }
        if workload.tokens_per_sample > 0 {
            out.push(
                "train_tokens_per_second",
                samples_per_second * f64::from(workload.tokens_per_sample),
            );
        }
        out.push("train_loss", pool.loss);
        out.push("train_grad_norm", pool.grad_norm);
        let held = workload.memory_share * 80e9;
        out.push("train_memory_reserved_bytes", held);
        out.push("train_memory_allocated_bytes", 0.91 * held);
        out.push("train_memory_split_bytes", 0.02 * held);
        out.push("train_memory_alloc_retries_total", 0.0);
    }

    /// Records the throughput of the first pool after the first minute. The trace repeats, so this pool is as good as any
    /// other.
    pub(crate) fn note(&mut self, pool: &Pool) {
        if let AttemptPhase::Training { since_ms, .. } = self.phase
            && self.best_samples_per_second.is_none()
            && seconds(pool.at_ms - since_ms) >= FIRST_BEST_AFTER_S
        {
            self.best_samples_per_second = Some(f64::from(self.workload.micro_batch) / pool.mean[0].step);
        }
    }

    pub(crate) fn of_rank<'a>(&self, rank: u32, into: &'a mut Vec<Reading>) -> Readings<'a> {
        Readings {
            labels: vec![("run", self.run.clone()), ("rank", rank.to_string())],
            into,
        }
    }
}

pub(crate) fn seconds(ms: i64) -> f64 {
    ms as f64 / 1e3
}
