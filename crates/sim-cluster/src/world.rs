//! The state of the whole cluster. It does no I/O: time and commands are inputs; reports, readings, events and log lines are
//! outputs.

mod checkpoints;
mod commands;
mod faults;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain::event::Event;
use domain::run::state::NodeReport;
use domain::time::TimestampMs;

use self::checkpoints::Storage;
use crate::attempt::{Attempt, AttemptPhase, NodeIndex, seconds};
use crate::gpu::{self, GPUS, GpuState};
use crate::noise::mix;
use crate::reading::{Readings, Snapshot};
use crate::scenario::Scenario;
use crate::slowdown::Slowdowns;
use crate::training::{Pool, Training};

const HOST_MEMORY_BYTES: f64 = 2e12;
const ROOT_DISK_BYTES: f64 = 1.9e12;
/// The number of CPUs of a node.
pub(crate) const CPUS: u32 = 96;

/// The cluster.
pub(crate) struct World {
    /// GPUs by node; none if the nodes have no GPUs.
    gpus: Vec<Vec<GpuState>>,
    attempts: BTreeMap<(String, u32), Attempt>,
    /// Checkpoints by run.
    storage: BTreeMap<String, Storage>,
    scenarios: BTreeMap<String, Arc<Scenario>>,
    /// By scenario: the run that has its faults, and which of them have begun. A clone of a run has none.
    with_faults: BTreeMap<String, (String, BTreeSet<usize>)>,
    /// Faults that have begun since the last call of [`World::take_begun`].
    begun: Vec<FaultBegun>,
    /// Nodes whose processes have all ended.
    lost: BTreeSet<NodeIndex>,
}

/// A fault of a scenario has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultBegun {
    /// The name of the scenario.
    pub scenario: String,
    /// When it began.
    pub at_ms: TimestampMs,
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
    pub(crate) fn new(nodes: usize, has_gpus: bool, scenarios: &[Scenario]) -> Self {
        let gpus = if has_gpus { GPUS as usize } else { 0 };
        let scenarios = scenarios.iter().cloned().map(Arc::new);
        Self {
            gpus: vec![vec![GpuState::default(); gpus]; nodes],
            attempts: BTreeMap::new(),
            storage: BTreeMap::new(),
            scenarios: scenarios
                .map(|scenario| (scenario.name.clone(), scenario))
                .collect(),
            with_faults: BTreeMap::new(),
            begun: Vec::new(),
            lost: BTreeSet::new(),
        }
    }

    /// Returns an attempt, or `None` if the cluster does not have it.
    pub(crate) fn attempt(&self, (run, attempt): (&str, u32)) -> Option<&Attempt> {
        self.attempts.get(&(run.to_owned(), attempt))
    }

    /// Returns the faults that have begun since the last call.
    pub(crate) fn take_begun(&mut self) -> Vec<FaultBegun> {
        std::mem::take(&mut self.begun)
    }

    /// Returns true if all processes on a node have ended.
    pub(crate) fn is_lost(&self, node: NodeIndex) -> bool {
        self.lost.contains(&node)
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
        for fault in self.due_faults(attempt, now_ms) {
            self.train(attempt, fault.at_ms, outputs);
            self.begin(fault, attempt, outputs);
        }
        self.train(attempt, now_ms, outputs);
        if !attempt.is_over() {
            attempt.account(now_ms);
        }
    }

    /// Trains up to a time.
    fn train(&mut self, attempt: &mut Attempt, until_ms: TimestampMs, outputs: &mut [NodeOutput]) {
        let AttemptPhase::Training { since_ms, .. } = attempt.phase else {
            return;
        };
        let slowdowns = self.slowdowns(attempt, since_ms);
        let AttemptPhase::Training { training, .. } = &mut attempt.phase else {
            return;
        };
        let pools = training.advance(until_ms, |rank, time| slowdowns.of(rank, time));
        let step = training.step();
        for pool in &pools {
            self.take_pool(attempt, pool, outputs);
        }
        let is_asked = attempt.stop_after.is_some_and(|last| step >= last);
        let trained_s = seconds(until_ms - since_ms);
        let is_done = attempt
            .scenario
            .ends_after_s
            .is_some_and(|end_s| trained_s >= end_s);
        if is_asked || is_done {
            commands::end_after_step(attempt, (step, is_asked), until_ms, outputs);
        }
    }

    fn begin_training(&self, attempt: &mut Attempt, at_ms: TimestampMs, outputs: &mut [NodeOutput]) {
        let slowdowns = self.slowdowns(attempt, at_ms);
        let training = Training::new(
            Arc::clone(&attempt.scenario),
            seed(attempt),
            attempt.ranks() as usize,
            attempt.resume_step,
            at_ms,
            |rank, time| slowdowns.of(rank, time),
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

    fn slowdowns(&self, attempt: &Attempt, since_ms: TimestampMs) -> Slowdowns {
        let is_braked = |rank: u32| {
            let gpu = attempt
                .place(rank)
                .and_then(|(node, gpu)| self.gpus[node].get(gpu as usize));
            gpu.is_some_and(|gpu| gpu.is_braked)
        };
        Slowdowns {
            scenario: Arc::clone(&attempt.scenario),
            seed: seed(attempt),
            since_ms,
            slow_data: attempt.slow_data,
            braked: (0..attempt.ranks()).map(is_braked).collect(),
            begun: attempt.begun.clone(),
        }
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

/// Returns the seed of an attempt.
fn seed(attempt: &Attempt) -> u64 {
    let no = u64::from(attempt.no);
    match attempt.scenario.seed {
        Some(seed) => mix(seed ^ no),
        None => attempt
            .run
            .bytes()
            .fold(no, |seed, byte| mix(seed ^ u64::from(byte))),
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
