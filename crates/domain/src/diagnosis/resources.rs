//! What processes, GPUs and nodes use, kept as rates: what can corroborate a cause.

use crate::diagnosis::input::{GpuCondition, NodeResources, Resources};
use crate::diagnosis::members::seconds;
use crate::time::TimestampMs;

/// Weight of the newest second in a rate: about the last five seconds count.
const WEIGHT: f64 = 0.2;
/// A counter that was not read for longer begins anew.
const GAP_MS: i64 = 30_000;

/// The newest about all ranks and nodes, by place.
#[derive(Debug, Clone, Default)]
pub(super) struct Usage {
    ranks: Vec<RankUsage>,
    nodes: Vec<NodeUsage>,
}

/// What a rank's process uses, as shares of time, and how its GPU is.
#[derive(Debug, Clone, Default)]
pub(super) struct RankUsage {
    cpu: Rate,
    run_delay: Rate,
    major_faults: Rate,
    /// When and at which CPU time the rank's last movement was followed by a reading.
    cpu_base: Option<(TimestampMs, f64)>,
    cpu_last: Option<(TimestampMs, f64)>,
    pub(super) gpu: Option<GpuCondition>,
}

#[derive(Debug, Clone, Default)]
struct NodeUsage {
    cpus: Option<f64>,
    steal: Rate,
    network_errors: Rate,
}

/// A counter's increase per second, smoothed.
#[derive(Debug, Clone, Copy, Default)]
struct Rate {
    last: Option<(TimestampMs, f64)>,
    per_second: Option<f64>,
}

impl Rate {
    fn take(&mut self, at_ms: TimestampMs, total: Option<f64>) {
        let Some(total) = total else { return };
        if let Some((before_ms, before)) = self.last {
            let dt = at_ms - before_ms;
            if dt <= 0 {
                return;
            }
            let is_continued = dt <= GAP_MS && total >= before;
            self.per_second = is_continued.then(|| {
                let now = (total - before) / seconds(dt);
                let weight = (WEIGHT * seconds(dt)).min(1.0);
                self.per_second.map_or(now, |rate| rate + weight * (now - rate))
            });
        }
        self.last = Some((at_ms, total));
    }
}

impl Usage {
    pub(super) fn new(ranks: usize, nodes: usize) -> Self {
        Self {
            ranks: vec![RankUsage::default(); ranks],
            nodes: vec![NodeUsage::default(); nodes],
        }
    }

    /// Takes a reading of a rank that last moved at `moved_ms`.
    pub(super) fn take(&mut self, place: usize, read: Resources, moved_ms: Option<TimestampMs>) {
        let rank = &mut self.ranks[place];
        rank.cpu.take(read.at_ms, read.cpu_seconds_total);
        rank.run_delay.take(read.at_ms, read.run_delay_seconds_total);
        rank.major_faults.take(read.at_ms, read.major_faults_total);
        if let Some(total) = read.cpu_seconds_total {
            let is_base_old = rank
                .cpu_base
                .is_none_or(|(base_ms, _)| moved_ms.is_some_and(|moved| base_ms < moved));
            if is_base_old {
                rank.cpu_base = Some((read.at_ms, total));
            }
            rank.cpu_last = Some((read.at_ms, total));
        }
        if read.gpu.is_some() {
            rank.gpu = read.gpu;
        }
    }

    pub(super) fn take_node(&mut self, node: usize, read: &NodeResources) {
        let usage = &mut self.nodes[node];
        usage.cpus = read.cpus.or(usage.cpus);
        usage.steal.take(read.at_ms, read.steal_seconds_total);
        usage.network_errors.take(read.at_ms, read.network_errors_total);
    }

    pub(super) fn gpu(&self, place: usize) -> Option<&GpuCondition> {
        self.ranks[place].gpu.as_ref()
    }

    /// Processors that a rank has used since it last moved, after two seconds at least.
    pub(super) fn cpu_share_since_move(&self, place: usize) -> Option<f64> {
        let rank = &self.ranks[place];
        let ((base_ms, base), (last_ms, last)) = (rank.cpu_base?, rank.cpu_last?);
        (last_ms - base_ms >= 2_000).then(|| (last - base) / seconds(last_ms - base_ms))
    }

    pub(super) fn run_delay(&self, place: usize) -> Option<f64> {
        self.ranks[place].run_delay.per_second
    }

    pub(super) fn major_faults(&self, place: usize) -> Option<f64> {
        self.ranks[place].major_faults.per_second
    }

    /// Share of a node's processor time that the hypervisor took.
    pub(super) fn steal(&self, node: usize) -> Option<f64> {
        let node = &self.nodes[node];
        Some(node.steal.per_second? / node.cpus?.max(1.0))
    }

    /// Network errors of a node per second.
    pub(super) fn network_errors(&self, node: usize) -> Option<f64> {
        self.nodes[node].network_errors.per_second
    }
}
