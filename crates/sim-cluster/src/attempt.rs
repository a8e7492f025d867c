//! One attempt of a run: which ranks each node has, and their progress.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::diagnosis::input::Phase;
use domain::time::TimestampMs;

use crate::fault::{FaultKind, Hold, LearnedValue};
use crate::gpu::{GPUS, Load};
use crate::noise::normal;
use crate::reading::{Reading, Readings, Snapshot};
use crate::scenario::{BlockedIn, Scenario, WaitPath};
use crate::slowdown::BegunFault;
use crate::training::{Pool, Training};

/// Added to the compute share to get the share of the time in which the links carry gradients (at most 1).
const OVERLAPPED_SHARE: f64 = 0.55;
const FIRST_BEST_AFTER_S: f64 = 60.0;
/// The shares of a processor that a rank uses while it waits: in the kernel, or for a GPU, which PyTorch polls.
const WAITING_CPU: f64 = 0.03;
const POLLING_CPU: f64 = 1.0;
/// The share of the time in which a process usually waits for a processor.
const RUN_DELAY: f64 = 0.001;
const LEARNING_RATE: f64 = 3e-4;
/// The standard deviation of a rank's own loss, as a share of the loss of all ranks.
const OWN_LOSS_DEVIATION: f64 = 0.03;
/// Distinguishes the random numbers of losses from those of the parts of a step.
const OWN_LOSS: u64 = 32;
/// The time from one failed save to the next.
const SAVE_EVERY_S: f64 = 20.0;

/// The index of a node in the cluster.
pub(crate) type NodeIndex = usize;

/// An attempt.
pub(crate) struct Attempt {
    pub(crate) run: String,
    pub(crate) no: u32,
    pub(crate) scenario: Arc<Scenario>,
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
    /// The faults that have begun.
    pub(crate) begun: Vec<BegunFault>,
    /// The throughput of a rank after the first minute, in samples per second.
    best_samples_per_second: Option<f64>,
    processes: Processes,
}

/// The processor time of the ranks' processes.
#[derive(Default)]
struct Processes {
    read_ms: Option<TimestampMs>,
    /// By rank: seconds on a processor, and seconds of waiting for one.
    used_s: Vec<(f64, f64)>,
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
        /// The rank for which all others wait; `None` if a rank has died.
        held: Option<Held>,
    },
    /// All ranks have ended.
    Over,
}

/// A rank that stays in a phase.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Held {
    pub(crate) rank: u32,
    pub(crate) phase: Phase,
    pub(crate) hold: Hold,
}

impl Attempt {
    pub(crate) fn new(run: &str, no: u32, scenario: Arc<Scenario>, nnodes: u32) -> Self {
        Self {
            run: run.to_owned(),
            no,
            scenario,
            nnodes,
            nproc: GPUS,
            nodes: BTreeMap::new(),
            resume_step: 0,
            slow_data: 1.0,
            stop_after: None,
            phase: AttemptPhase::Starting { first_step_ms: None },
            failed_saves: 0,
            begun: Vec::new(),
            best_samples_per_second: None,
            processes: Processes::default(),
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

    /// Returns the rank for which all others wait.
    pub(crate) fn held(&self) -> Option<Held> {
        match &self.phase {
            AttemptPhase::Frozen { held, .. } => *held,
            _ => None,
        }
    }

    /// Stops the progress of all ranks from now on.
    pub(crate) fn freeze(&mut self, now_ms: TimestampMs, held: Option<Held>) {
        let phase = std::mem::replace(&mut self.phase, AttemptPhase::Over);
        self.phase = match phase {
            AttemptPhase::Training { training, .. } => AttemptPhase::Frozen {
                training,
                since_ms: now_ms,
                held,
            },
            other => other,
        };
    }

    /// Returns what a rank does with its GPU, if it has one.
    pub(crate) fn load(&self, rank: u32) -> Option<Load> {
        if !self.scenario.has_gpus() {
            return None;
        }
        let (compute, communicates) = match &self.phase {
            AttemptPhase::Over => return None,
            AttemptPhase::Starting { .. } => (0.0, 0.0),
            // A waiting kernel of a collective keeps some multiprocessors busy.
            AttemptPhase::Frozen { held, .. } => (
                if held.is_some_and(|held| held.rank == rank) {
                    0.0
                } else {
                    0.08
                },
                0.0,
            ),
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
            memory_share: self.scenario.workload.memory_share,
        })
    }

    /// Adds the time since the last call to the processor time of each process.
    pub(crate) fn account(&mut self, now_ms: TimestampMs) {
        let since_ms = self.processes.read_ms.replace(now_ms).unwrap_or(now_ms);
        let elapsed_s = seconds(now_ms - since_ms);
        let shares: Vec<(f64, f64)> = (0..self.ranks())
            .map(|rank| self.processor_shares(rank, now_ms))
            .collect();
        self.processes.used_s.resize(shares.len(), (0.0, 0.0));
        for ((cpu_s, delay_s), (cpu, delay)) in self.processes.used_s.iter_mut().zip(shares) {
            *cpu_s += cpu * elapsed_s;
            *delay_s += delay * elapsed_s;
        }
    }

    /// Returns the shares of the time in which a rank uses a processor, and in which it waits for one.
    fn processor_shares(&self, rank: u32, now_ms: TimestampMs) -> (f64, f64) {
        if let Some(held) = self.held().filter(|held| held.rank == rank) {
            return match held.hold {
                Hold::Stopped | Hold::Uninterruptible | Hold::Sleeps => (0.0, 0.0),
                Hold::Spins | Hold::HoldsInterpreter => (1.0, RUN_DELAY),
                Hold::OtherOperation => (self.waiting_share(), RUN_DELAY),
            };
        }
        let busy = self.begun.iter().find_map(|fault| match fault.kind {
            FaultKind::BusyProcessor { rank: culprit, share } if culprit == rank => Some(share),
            _ => None,
        });
        let delay = busy.unwrap_or(RUN_DELAY);
        let share = if self.waits(rank, now_ms) {
            self.waiting_share()
        } else {
            1.0 - delay
        };
        (share, delay)
    }

    /// Returns true if the rank waits for other ranks.
    pub(crate) fn waits(&self, rank: u32, now_ms: TimestampMs) -> bool {
        self.position(rank, now_ms)
            .is_some_and(|(phase, _)| phase == Phase::Collective)
    }

    fn waiting_share(&self) -> f64 {
        match self.scenario.waits {
            WaitPath::Gloo => WAITING_CPU,
            WaitPath::Demo | WaitPath::Nccl { .. } => POLLING_CPU,
        }
    }

    /// Returns the phase of a rank and for how many seconds it has been in it. A wait for other ranks is always [`Phase::Collective`].
    fn position(&self, rank: u32, now_ms: TimestampMs) -> Option<(Phase, f64)> {
        let place = rank as usize;
        match &self.phase {
            AttemptPhase::Frozen {
                training,
                since_ms,
                held,
            } => Some(match held {
                Some(held) if held.rank == rank && held.hold != Hold::OtherOperation => {
                    (held.phase, seconds(now_ms - since_ms))
                }
                _ => training.phase_without_peers(place, now_ms),
            }),
            AttemptPhase::Training { training, .. } => Some(training.phase(place, now_ms)),
            AttemptPhase::Starting { .. } | AttemptPhase::Over => None,
        }
    }

    /// Returns the phase in the rank's page. It shows only the waits of the host in functions that the probe watches.
    fn phase_on_page(&self, phase: Phase) -> Phase {
        match (phase, self.scenario.waits) {
            (Phase::Collective, WaitPath::Gloo) if !self.scenario.is_sharded() => Phase::Backward,
            (Phase::Collective, WaitPath::Nccl { blocked_in }) => match blocked_in {
                BlockedIn::Backward => Phase::Backward,
                BlockedIn::Host => Phase::Host,
            },
            (phase, _) => phase,
        }
    }

    /// Adds the position of each rank of a node, as reported by its probe page and the kernel.
    pub(crate) fn positions(&self, node: NodeIndex, now_ms: TimestampMs, into: &mut Vec<Reading>) {
        let Some(training) = self.training() else {
            return;
        };
        for (rank, _) in self.ranks_on(node) {
            let Some((phase, age_s)) = self.position(rank, now_ms) else {
                continue;
            };
            let (cpu_s, delay_s) = self
                .processes
                .used_s
                .get(rank as usize)
                .copied()
                .unwrap_or_default();
            let mut out = self.of_rank(rank, into);
            out.push("train_process_state", self.process_state(rank));
            out.push("train_phase", f64::from(self.phase_on_page(phase) as u8));
            out.push("train_phase_age_seconds", age_s);
            out.push("train_moves_total", (3 * training.step() + 2) as f64);
            out.push("train_last_step_age_seconds", age_s);
            out.push("train_cpu_seconds_total", cpu_s);
            out.push("train_run_delay_seconds_total", delay_s);
            out.push("train_major_faults_total", 0.0);
            out.push("train_host_memory_bytes", 9.4e9);
            let attempt = self.no.to_string();
            let (device, backend) = if self.scenario.has_gpus() {
                (format!("cuda:{}", rank % self.nproc), "nccl")
            } else {
                ("cpu".to_owned(), "gloo")
            };
            let info = [
                ("attempt", attempt.as_str()),
                ("backend", backend),
                ("device", device.as_str()),
                ("torch", "2.10.0"),
                ("python", "3.11.2"),
            ];
            out.push_with("train_info", &info, 1.0);
            self.push_saves(rank, now_ms, &mut out);
        }
    }

    /// Returns the value of `train_process_state`.
    fn process_state(&self, rank: u32) -> f64 {
        let held = self.held().filter(|held| held.rank == rank);
        match held.map(|held| held.hold) {
            Some(Hold::Stopped) => 1.0,
            Some(Hold::Uninterruptible) => 2.0,
            _ => 0.0,
        }
    }

    fn push_saves(&self, rank: u32, now_ms: TimestampMs, out: &mut Readings<'_>) {
        if self.scenario.has_storage {
            if rank == 0 {
                out.push("train_checkpoint_failures_total", f64::from(self.failed_saves));
            }
            return;
        }
        let since_ms = self.begun.iter().find_map(|fault| match fault.kind {
            FaultKind::FailSaves { rank: culprit } if culprit == rank => Some(fault.at_ms),
            _ => None,
        });
        let failures = since_ms.map_or(0.0, |since_ms| {
            (seconds(now_ms - since_ms) / SAVE_EVERY_S).floor() + 1.0
        });
        out.push("train_checkpoint_failures_total", failures);
        out.push_with("train_checkpoint_errors_total", &[("errno", "ENOSPC")], failures);
    }

    /// Returns a pool as the probes of a node's ranks report it.
    pub(crate) fn pool(&self, node: NodeIndex, pool: &Pool) -> Snapshot {
        let mut readings = Vec::new();
        for (rank, _) in self.ranks_on(node) {
            self.pool_of_rank(rank, pool, &mut readings);
        }
        Snapshot {
            at_ms: pool.at_ms,
            readings,
        }
    }

    fn pool_of_rank(&self, rank: u32, pool: &Pool, into: &mut Vec<Reading>) {
        let (workload, place) = (self.scenario.workload, rank as usize);
        let (mean, max) = (&pool.mean[place], &pool.max[place]);
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
        if max.save > 0.0 {
            out.push("train_save_seconds", mean.save);
        }
        out.push("train_host_seconds", mean.host);
        out.push("train_host_seconds_max", max.host);
        if pool.has_waits {
            out.push("train_sync_seconds", mean.sync);
            out.push("train_sync_seconds_max", max.sync);
        }
        out.push("train_compute_ratio", pool.compute_ratio[place]);
        let micro_batch = f64::from(workload.micro_batch) * self.batch_factor(rank);
        let samples_per_second = micro_batch / mean.step;
        out.push("train_micro_batch", micro_batch);
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
        if self.scenario.has_gpus() {
            let held = workload.memory_share * 80e9;
            out.push("train_memory_reserved_bytes", held);
            out.push("train_memory_allocated_bytes", 0.91 * held);
            out.push("train_memory_split_bytes", 0.02 * held);
            out.push("train_memory_alloc_retries_total", 0.0);
        }
        self.push_learning(rank, pool, &mut out);
    }

    fn push_learning(&self, rank: u32, pool: &Pool, out: &mut Readings<'_>) {
        if let Some((value, culprit, since_step)) = self.not_finite() {
            // The reduction passes it on to all ranks, whose next loss is NaN too.
            let own = value == LearnedValue::Loss && rank == culprit;
            for (name, step) in [("loss", since_step + u64::from(!own)), ("gradient", since_step)] {
                if step <= pool.last_step {
                    out.push_with("train_nonfinite_since_step", &[("value", name)], step as f64);
                }
            }
            if since_step <= pool.last_step {
                return;
            }
        }
        out.push("train_loss", pool.loss);
        out.push("train_grad_norm", pool.grad_norm);
        if self.scenario.waits != WaitPath::Demo {
            let seed = self.scenario.seed.unwrap_or_default() ^ OWN_LOSS;
            let differs = OWN_LOSS_DEVIATION * normal([seed, u64::from(rank), pool.last_step]);
            out.push("train_loss_own", pool.loss * (1.0 + differs));
            out.push("train_learning_rate", LEARNING_RATE * self.rate_factor(rank));
        }
    }

    fn not_finite(&self) -> Option<(LearnedValue, u32, u64)> {
        self.begun.iter().find_map(|fault| match fault.kind {
            FaultKind::NotFinite { rank, value } => Some((value, rank, fault.step)),
            _ => None,
        })
    }

    fn batch_factor(&self, rank: u32) -> f64 {
        let larger = self.begun.iter().find_map(|fault| match fault.kind {
            FaultKind::LargerBatch { rank: culprit, ratio } if culprit == rank => Some(ratio),
            _ => None,
        });
        1.0 + larger.unwrap_or_default()
    }

    fn rate_factor(&self, rank: u32) -> f64 {
        let other = self.begun.iter().find_map(|fault| match fault.kind {
            FaultKind::LearningRate {
                rank: culprit,
                factor,
            } if culprit == rank => Some(factor),
            _ => None,
        });
        other.unwrap_or(1.0)
    }

    /// Records the throughput of the first pool after the first minute. The trace repeats, so this pool is as good as any
    /// other.
    pub(crate) fn note(&mut self, pool: &Pool) {
        if let AttemptPhase::Training { since_ms, .. } = self.phase
            && self.best_samples_per_second.is_none()
            && seconds(pool.at_ms - since_ms) >= FIRST_BEST_AFTER_S
        {
            let samples = f64::from(self.scenario.workload.micro_batch);
            self.best_samples_per_second = Some(samples / pool.mean[0].step);
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
