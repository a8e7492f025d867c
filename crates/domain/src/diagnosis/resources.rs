//! Resource use of processes, GPUs and nodes as rates, to corroborate causes.

use crate::diagnosis::input::{GpuCondition, NodeResources, Resources};
use crate::diagnosis::members::seconds;
use crate::time::TimestampMs;

/// Weight of the newest second in a rate: the rate covers about the last five seconds.
const WEIGHT: f64 = 0.2;
/// If a counter was not read for longer than this, its rate starts again.
const GAP_MS: i64 = 30_000;

/// The newest values of all ranks and nodes, by place.
#[derive(Debug, Clone, Default)]
pub(super) struct Usage {
    ranks: Vec<RankUsage>,
    nodes: Vec<NodeUsage>,
}

/// Resource use of a rank's process as shares of time, and the condition of its GPU.
#[derive(Debug, Clone, Default)]
pub(super) struct RankUsage {
    cpu: Rate,
    run_delay: Rate,
    major_faults: Rate,
    /// First reading after the rank last moved, and newest reading.
    base: Option<Reading>,
    last: Option<Reading>,
    pub(super) gpu: Option<GpuCondition>,
}

/// Seconds that a process has used a processor or waited for one since it started.
#[derive(Debug, Clone, Copy)]
struct Reading {
    at_ms: TimestampMs,
    cpu_s: f64,
    run_delay_s: f64,
}

#[derive(Debug, Clone, Default)]
struct NodeUsage {
    cpus: Option<f64>,
    steal: Rate,
}

/// Increase of a counter per second, smoothed.
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
        if let Some(cpu_s) = read.cpu_seconds_total {
            let reading = Reading {
                at_ms: read.at_ms,
                cpu_s,
                run_delay_s: read.run_delay_seconds_total.unwrap_or_default(),
            };
            let is_base_old = rank
                .base
                .is_none_or(|base| moved_ms.is_some_and(|moved| base.at_ms < moved));
            if is_base_old {
                rank.base = Some(reading);
            }
            rank.last = Some(reading);
        }
        if read.gpu.is_some() {
            rank.gpu = read.gpu;
        }
    }

    pub(super) fn take_node(&mut self, node: usize, read: &NodeResources) {
        let usage = &mut self.nodes[node];
        usage.cpus = read.cpus.or(usage.cpus);
        usage.steal.take(read.at_ms, read.steal_seconds_total);
    }

    pub(super) fn gpu(&self, place: usize) -> Option<&GpuCondition> {
        self.ranks[place].gpu.as_ref()
    }

    /// Returns how many processors a rank has used since it last moved, once two seconds have passed.
    pub(super) fn cpu_share_since_move(&self, place: usize) -> Option<f64> {
        self.share_since_move(place, |reading| reading.cpu_s)
    }

    /// Like [`Self::cpu_share_since_move`], plus the time in which the rank waited for a processor. On a busy node, a rank in an endless
    /// loop gets only a part of a processor.
    pub(super) fn work_share_since_move(&self, place: usize) -> Option<f64> {
        self.share_since_move(place, |reading| reading.cpu_s + reading.run_delay_s)
    }

    fn share_since_move(&self, place: usize, total: impl Fn(Reading) -> f64) -> Option<f64> {
        let rank = &self.ranks[place];
        let (base, last) = (rank.base?, rank.last?);
        let dt = last.at_ms - base.at_ms;
        (dt >= 2_000).then(|| (total(last) - total(base)) / seconds(dt))
    }

    pub(super) fn run_delay(&self, place: usize) -> Option<f64> {
        self.ranks[place].run_delay.per_second
    }

    pub(super) fn major_faults(&self, place: usize) -> Option<f64> {
        self.ranks[place].major_faults.per_second
    }

    /// Returns the share of a node's processor time that the hypervisor took.
    pub(super) fn steal(&self, node: usize) -> Option<f64> {
        let node = &self.nodes[node];
        Some(node.steal.per_second? / node.cpus?.max(1.0))
    }
}
