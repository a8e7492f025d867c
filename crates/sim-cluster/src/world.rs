//! The state of the whole cluster. It does no I/O: time and commands are inputs; reports, readings, events and log lines are
//! outputs.

mod checkpoints;
mod commands;
mod faults;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use domain::event::Event;
use domain::run::state::NodeReport;
use domain::time::TimestampMs;

use self::checkpoints::Storage;
use crate::attempt::{Attempt, AttemptPhase, NodeIndex};
use crate::gpu::{self, BRAKED_SLOWDOWN, GPUS, GpuState};
use crate::noise::mix;
use crate::reading::{Readings, Snapshot};
use crate::training::{Pool, Slowdown, Training};

const HOST_MEMORY_BYTES: f64 = 2e12;
const ROOT_DISK_BYTES: f64 = 1.9e12;
/// The number of CPUs of a node.
pub(crate) const CPUS: u32 = 96;

/// The cluster.
pub(crate) struct World {
    /// GPUs by node.
    gpus: Vec<Vec<GpuState>>,
    attempts: BTreeMap<(String, u32), Attempt>,
    /// Checkpoints by run.
    storage: BTreeMap<String, Storage>,
    /// By workload: the run that has its faults, and which of them have begun. A clone of a run has none.
    with_faults: BTreeMap<&'static str, (String, BTreeSet<usize>)>,
}

/// What happened on a node.
#[derive(Default)]
pub(crate) struct NodeOutput {
    pub(crate) reports: Vec<ForAttempt<NodeReport>>,
    pub(crate) snapshots: Vec<Snapshot>,
    pub(crate) events: Vec<Event>,
    pub(crate) lines: Vec<ForAttempt<LogLine>>,
    /// The runs of ended attempts, whose series end.
    pub(crate) over: Vec<String>,
}

/// A report or log line of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ForAttempt<T> {
    pub(crate) run: String,
    pub(crate) attempt: u32,
    pub(crate) what: T,
}

/// A line that a rank wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogLine {
    pub(crate) rank: u32,
    pub(crate) is_error: bool,
    pub(crate) text: String,
}

impl World {
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            gpus: vec![vec![GpuState::default(); GPUS as usize]; nodes],
            attempts: BTreeMap::new(),
            storage: BTreeMap::new(),
            with_faults: BTreeMap::new(),
        }
    }

    /// Returns an attempt, or `None` if the cluster does not have it.
    pub(crate) fn attempt(&self, (run, attempt): (&str, u32)) -> Option<&Attempt> {
        self.attempts.get(&(run.to_owned(), attempt))
    }

    /// Advances the time. Returns what happened, by node.
    pub(crate) fn advance(&mut self, now_ms: TimestampMs) -> Vec<NodeOutput> {
        let mut outputs: Vec<NodeOutput> = (0..self.gpus.len()).map(|_| NodeOutput::default()).collect();
        let keys: Vec<(String, u32)> = self.attempts.keys().cloned().collect();
        for key in keys {
            let Some(mut attempt) = self.attempts.remove(&key) else {
                continue;
            };
            self.advance_attempt(&mut attempt, now_ms, &mut outputs);
            self.attempts.insert(key, attempt);
        }
        for (node, output) in outputs.iter_mut().enumerate() {
            output.snapshots.push(self.read(node, now_ms));
        }
        outputs
    }

    fn advance_attempt(&mut self, attempt: &mut Attempt, now_ms: TimestampMs, outputs: &mut [NodeOutput]) {
        if let AttemptPhase::Starting {
            first_step_ms: Some(at_ms),
        } = attempt.phase
            && at_ms <= now_ms
        {
            self.begin_training(attempt, at_ms, outputs);
        }
        self.begin_faults(attempt, now_ms, outputs);
        let slowdowns = self.slowdowns(attempt);
        let AttemptPhase::Training { training, .. } = &mut attempt.phase else {
            return;
        };
        let pools = training.advance(now_ms, |rank| slowdowns[rank]);
        let step = training.step();
        for pool in &pools {
            self.take_pool(attempt, pool, outputs);
        }
        if attempt.stop_after.is_some_and(|last| step >= last) {
            commands::end_after_step(attempt, step, now_ms, outputs);
        }
    }

    fn begin_training(&self, attempt: &mut Attempt, at_ms: TimestampMs, outputs: &mut [NodeOutput]) {
        let slowdowns = self.slowdowns(attempt);
        let seed = attempt
            .run
            .bytes()
            .fold(u64::from(attempt.no), |seed, byte| mix(seed ^ u64::from(byte)));
        let training = Training::new(
            attempt.workload,
            seed,
            attempt.ranks() as usize,
            attempt.resume_step,
            at_ms,
            |rank| slowdowns[rank],
        );
        attempt.phase = AttemptPhase::Training {
            training,
            since_ms: at_ms,
        };
        let step = attempt.resume_step + 1;
        for node in attempt.nodes.values() {
            for (rank, _) in attempt.ranks_on(*node) {
                let rank = domain::ident::Rank(rank);
                outputs[*node].report(attempt, NodeReport::FirstStep { rank, step });
            }
        }
    }

    fn take_pool(&mut self, attempt: &mut Attempt, pool: &Pool, outputs: &mut [NodeOutput]) {
        attempt.note(pool);
        for node in attempt.nodes.values() {
            outputs[*node].snapshots.push(attempt.pool(*node, pool));
        }
        let Some((first, _)) = attempt.place(0) else {
            return;
        };
        let text = format!(
            "step {}  loss {:.4}  grad norm {:.3}  {:.0} ms/step",
            pool.last_step,
            pool.loss,
            pool.grad_norm,
            pool.mean[0].step * 1e3
        );
        outputs[first].line(attempt, 0, false, text);
        self.save(attempt, pool, &mut outputs[first]);
    }

    fn slowdowns(&self, attempt: &Attempt) -> Vec<Slowdown> {
        let of_rank = |rank: u32| {
            let place = attempt.place(rank);
            let is_braked = place.is_some_and(|(node, gpu)| self.gpus[node][gpu as usize].is_braked);
            Slowdown {
                compute: if is_braked { BRAKED_SLOWDOWN } else { 1.0 },
                data: attempt.slow_data,
            }
        };
        (0..attempt.ranks()).map(of_rank).collect()
    }

    /// Returns what the agent of a node measures once per second.
    fn read(&self, node: NodeIndex, now_ms: TimestampMs) -> Snapshot {
        let mut readings = Vec::new();
        let second = now_ms.unsigned_abs() / 1_000;
        for (index, state) in (0..).zip(&self.gpus[node]) {
            let load = self.attempts.values().find_map(|attempt| {
                let rank = attempt.ranks_on(node).find(|(_, local)| *local == index)?.0;
                attempt.load(rank)
            });
            #[expect(clippy::cast_possible_truncation, reason = "a handful of nodes")]
            gpu::read(node as u32, index, state, load.as_ref(), second, &mut readings);
        }
        for attempt in self.attempts.values() {
            attempt.positions(node, now_ms, &mut readings);
            let is_first = attempt.place(0).is_some_and(|(first, _)| first == node);
            if is_first && !attempt.is_over() {
                self.read_storage(attempt, now_ms, &mut readings);
            }
        }
        let mut out = Readings {
            labels: Vec::new(),
            into: &mut readings,
        };
        let busy =
            f64::from(u8::from(self.attempts.values().any(|attempt| {
                !attempt.is_over() && attempt.nodes.values().any(|at| *at == node)
            })));
        out.push("node_cpus", f64::from(CPUS));
        out.push("node_load1", 0.4 + 11.0 * busy);
        out.push("node_memory_total_bytes", HOST_MEMORY_BYTES);
        out.push(
            "node_memory_available_bytes",
            HOST_MEMORY_BYTES - 4e10 - 9e10 * busy,
        );
        let root = [("mountpoint", "/"), ("device", "/dev/nvme0n1p2")];
        out.push_with("node_filesystem_size_bytes", &root, ROOT_DISK_BYTES);
        out.push_with("node_filesystem_available_bytes", &root, 0.71 * ROOT_DISK_BYTES);
        Snapshot {
            at_ms: now_ms,
            readings,
        }
    }
}

impl NodeOutput {
    pub(crate) fn report(&mut self, attempt: &Attempt, report: NodeReport) {
        self.reports.push(ForAttempt {
            run: attempt.run.clone(),
            attempt: attempt.no,
            what: report,
        });
    }

    pub(crate) fn line(&mut self, attempt: &Attempt, rank: u32, is_error: bool, text: String) {
        self.lines.push(ForAttempt {
            run: attempt.run.clone(),
            attempt: attempt.no,
            what: LogLine { rank, is_error, text },
        });
    }
}
