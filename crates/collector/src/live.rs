//! Which nodes are connected. Kept in memory and loaded from the store at the start; written to the store once per minute.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use domain::api::nodes::{GpuView, NodeState, NodeView};
use domain::event::{Event, Severity};
use domain::ident::NodeName;
use domain::time::TimestampMs;
use domain::topology::Inventory;
use store::StateStore;
use store::state::nodes::NodeRecord;

use crate::changes::{Change, Changes};
use crate::clock;
use crate::event_log::EventLog;
use crate::spec_draft::SmallestGpu;

/// A node that was silent for this long is down. Agents send every second, so ten missing messages in a row are not an accident.
pub const SILENT_MS: i64 = 10_000;
/// How long an agent that stops may still send on its other stream.
const STOPPING_MS: i64 = 5_000;
/// How often nodes are checked for silence.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// How often the last contact of live nodes is written to the store.
const PERSIST_EVERY_MS: i64 = 60_000;

/// All nodes that have ever connected.
#[derive(Default)]
pub struct Live {
    nodes: RwLock<BTreeMap<NodeName, LiveNode>>,
}

struct LiveNode {
    record: NodeRecord,
    seen_ms: Arc<AtomicI64>,
    up: AtomicBool,
    /// The node has connected since this collector started.
    heard: bool,
    /// When its agent reported that it stops; 0 if it has not.
    stopped_ms: AtomicI64,
}

/// The state of a node's agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// The agent sends.
    Heard,
    /// The agent has not connected since this collector started.
    NotHeardYet,
    /// The agent reported that it stops.
    StoppedAsPlanned {
        /// How long ago, in milliseconds.
        for_ms: i64,
    },
    /// The agent no longer sends.
    Silent,
}

/// The time of a node's last message, shared with the streams that receive its messages.
#[derive(Debug, Clone)]
pub struct Heartbeat(Arc<AtomicI64>);

impl Heartbeat {
    /// Records that the agent sent something.
    pub fn record(&self, now_ms: TimestampMs) {
        self.0.store(now_ms, Ordering::Relaxed);
    }
}

impl Live {
    /// Starts from the stored nodes. Every node is down until it connects.
    #[must_use]
    pub fn from_records(records: Vec<NodeRecord>) -> Self {
        let node = |record: NodeRecord| {
            let seen_ms = Arc::new(AtomicI64::new(record.seen_ms));
            (
                record.name.clone(),
                LiveNode {
                    record,
                    seen_ms,
                    up: AtomicBool::new(false),
                    heard: false,
                    stopped_ms: AtomicI64::new(0),
                },
            )
        };
        Self {
            nodes: RwLock::new(records.into_iter().map(node).collect()),
        }
    }

    /// Records the hello of an agent.
    pub fn hello(&self, record: NodeRecord, now_ms: TimestampMs) -> Heartbeat {
        let mut nodes = self.nodes.write().expect("nothing panics while holding it");
        let before = nodes.get(&record.name);
        let was_up = before.is_some_and(|node| node.up.load(Ordering::Relaxed));
        // The node's other stream continues to use the same value.
        let seen_ms = before.map(|node| Arc::clone(&node.seen_ms)).unwrap_or_default();
        seen_ms.store(now_ms, Ordering::Relaxed);
        let node = LiveNode {
            seen_ms: Arc::clone(&seen_ms),
            up: AtomicBool::new(was_up),
            heard: true,
            stopped_ms: AtomicI64::new(0),
            record,
        };
        nodes.insert(node.record.name.clone(), node);
        Heartbeat(seen_ms)
    }

    /// Records that an agent stops.
    pub fn stopping(&self, node: &NodeName, now_ms: TimestampMs) {
        let nodes = self.nodes.read().expect("nothing panics while holding it");
        if let Some(node) = nodes.get(node) {
            node.stopped_ms.store(now_ms, Ordering::Relaxed);
        }
    }

    /// Returns the state of each node's agent.
    #[must_use]
    pub fn presences(&self, now_ms: TimestampMs) -> Vec<(NodeName, Presence)> {
        let nodes = self.nodes.read().expect("nothing panics while holding it");
        let presence = |node: &LiveNode| (node.record.name.clone(), node.presence(now_ms));
        nodes.values().map(presence).collect()
    }

    /// Returns true if a node is connected now.
    #[must_use]
    pub fn is_up(&self, node: &NodeName, now_ms: TimestampMs) -> bool {
        let nodes = self.nodes.read().expect("nothing panics while holding it");
        nodes.get(node).is_some_and(|node| node.is_heard(now_ms))
    }

    /// Returns the connected nodes whose clocks differed from the collector's by at least `least_ms` when their agents connected, with the
    /// difference in milliseconds.
    pub(crate) fn clocks_off(&self, least_ms: u64, now_ms: TimestampMs) -> Vec<(NodeName, i64)> {
        let nodes = self.nodes.read().expect("nothing panics while holding it");
        let off = nodes
            .values()
            .filter(|node| node.is_heard(now_ms) && node.record.clock_offset_ms.unsigned_abs() >= least_ms);
        off.map(|node| (node.record.name.clone(), node.record.clock_offset_ms))
            .collect()
    }

    /// Returns the records of all nodes, ordered by name.
    #[must_use]
    pub fn records(&self) -> Vec<NodeRecord> {
        self.nodes
            .read()
            .expect("nothing panics while holding it")
            .values()
            .map(LiveNode::record)
            .collect()
    }

    /// Returns the views of all nodes, ordered by name. `runs_on` returns the runs on a node.
    #[must_use]
    pub fn views(&self, now_ms: TimestampMs, runs_on: impl Fn(&str) -> Vec<String>) -> Vec<NodeView> {
        let nodes = self.nodes.read().expect("nothing panics while holding it");
        let view = |node: &LiveNode| NodeView {
            name: node.record.name.to_string(),
            state: if node.is_heard(now_ms) {
                NodeState::Up
            } else {
                NodeState::Down
            },
            seen_ms: node.seen_ms.load(Ordering::Relaxed),
            agent_version: node.record.agent_version.clone(),
            clock_offset_ms: node.record.clock_offset_ms,
            inventory: node.record.inventory.clone(),
            runs: runs_on(node.record.name.as_str()),
            unknown_attempts: Vec::new(),
        };
        nodes.values().map(view).collect()
    }

    /// Returns all GPUs of all nodes.
    #[must_use]
    pub fn gpus(&self) -> Vec<GpuView> {
        let nodes = self.nodes.read().expect("nothing panics while holding it");
        let of_node = |node: &LiveNode| {
            let name = node.record.name.to_string();
            let simulated = node.record.inventory.simulated.is_some();
            let gpus = node.record.inventory.gpus.clone();
            gpus.into_iter().map(move |gpu| GpuView {
                node: name.clone(),
                gpu,
                simulated,
            })
        };
        nodes.values().flat_map(of_node).collect()
    }

    /// Returns the GPU with the least memory of the nodes that accept runs. `None` if none of them has GPUs.
    #[must_use]
    pub(crate) fn smallest_gpu(&self) -> Option<SmallestGpu> {
        let nodes = self.nodes.read().expect("nothing panics while holding it");
        let inventories = nodes.values().map(|node| &node.record.inventory);
        let of_node = |inventory: &Inventory| {
            let memory = inventory.gpus.iter().map(|gpu| gpu.memory_total_bytes);
            Some(SmallestGpu {
                memory_bytes: memory.filter(|bytes| *bytes > 0).min()?,
                per_node: u32::try_from(inventory.gpus.len()).ok()?,
            })
        };
        let usable = inventories.filter(|inventory| inventory.accepts_runs);
        usable.filter_map(of_node).min_by_key(|gpu| gpu.memory_bytes)
    }

    /// Returns the nodes whose state has changed since the last sweep.
    fn sweep(&self, now_ms: TimestampMs) -> Vec<(NodeName, bool)> {
        let nodes = self.nodes.read().expect("nothing panics while holding it");
        let changed = |node: &LiveNode| {
            let up = node.is_heard(now_ms);
            (node.up.swap(up, Ordering::Relaxed) != up).then(|| (node.record.name.clone(), up))
        };
        nodes.values().filter_map(changed).collect()
    }
}

impl LiveNode {
    fn presence(&self, now_ms: TimestampMs) -> Presence {
        let stopped_ms = self.stopped_ms.load(Ordering::Relaxed);
        if self.is_heard(now_ms) {
            Presence::Heard
        } else if !self.heard {
            Presence::NotHeardYet
        } else if stopped_ms > 0 && self.seen_ms.load(Ordering::Relaxed) <= stopped_ms + STOPPING_MS {
            Presence::StoppedAsPlanned {
                for_ms: now_ms - stopped_ms,
            }
        } else {
            Presence::Silent
        }
    }

    fn is_heard(&self, now_ms: TimestampMs) -> bool {
        now_ms - self.seen_ms.load(Ordering::Relaxed) < SILENT_MS
    }

    fn record(&self) -> NodeRecord {
        NodeRecord {
            seen_ms: self.seen_ms.load(Ordering::Relaxed),
            ..self.record.clone()
        }
    }
}

/// Watches which nodes connect and disconnect, until the collector stops.
pub(crate) async fn watch(live: Arc<Live>, state: StateStore, changes: Changes, events: EventLog) {
    let mut ticks = tokio::time::interval(SWEEP_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut persisted_ms = clock::now_ms();
    loop {
        ticks.tick().await;
        let now_ms = clock::now_ms();
        let changed = live.sweep(now_ms);
        if !changed.is_empty() {
            changes.send(Change::Nodes);
        }
        for (node, up) in changed {
            events.append(transition(&node, up, now_ms)).await;
        }
        if now_ms - persisted_ms >= PERSIST_EVERY_MS {
            persisted_ms = now_ms;
            persist(&live, &state, now_ms).await;
        }
    }
}

async fn persist(live: &Live, state: &StateStore, now_ms: TimestampMs) {
    let records = live.records();
    let living = records
        .iter()
        .filter(|record| now_ms - record.seen_ms < SILENT_MS);
    for record in living {
        if let Err(error) = state.touch_node(&record.name, record.seen_ms).await {
            tracing::warn!(%error, node = %record.name, "the time of a node's last message could not be stored");
        }
    }
}

fn transition(node: &NodeName, up: bool, at_ms: TimestampMs) -> Event {
    let (kind, severity, message) = if up {
        (
            "agent_connected",
            Severity::Info,
            format!("the agent of {node} is connected"),
        )
    } else {
        let message = format!(
            "no message from the agent of {node} for {} s; runs on it continue, but are not monitored: check the \
             machine, its network, and the process and log of the agent",
            SILENT_MS / 1_000
        );
        ("agent_lost", Severity::Critical, message)
    };
    Event {
        node: Some(node.to_string()),
        ..Event::new(at_ms, severity, kind, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::topology::{Gpu, Inventory};

    fn record(seen_ms: i64) -> NodeRecord {
        NodeRecord {
            name: NodeName::new("n1").expect("a good name"),
            agent_version: "1".into(),
            clock_offset_ms: 0,
            inventory: Inventory {
                gpus: vec![Gpu::default()],
                ..Inventory::default()
            },
            seen_ms,
        }
    }

    #[test]
    fn a_node_is_up_after_data_and_down_after_silence() {
        let live = Live::from_records(vec![record(0)]);
        let node = record(0).name;
        let state = |now_ms| live.views(now_ms, |_| vec![])[0].state;
        assert_eq!(
            (live.sweep(1_000_000), state(1_000_000)),
            (vec![], NodeState::Down)
        );
        live.hello(record(0), 0).record(1_000_000);
        assert_eq!(live.sweep(1_000_500), [(node.clone(), true)]);
        assert_eq!(live.sweep(1_001_000), []);
        assert_eq!(live.sweep(1_000_000 + SILENT_MS), [(node.clone(), false)]);
        assert_eq!(state(1_000_000 + SILENT_MS), NodeState::Down);
        assert_eq!(live.gpus().len(), 1);
    }

    #[test]
    fn a_planned_stop_is_distinguished_from_silence_until_the_agent_is_back() {
        let live = Live::from_records(vec![record(0)]);
        let node = record(0).name;
        let presence = |now_ms| live.presences(now_ms)[0].1;
        assert_eq!(presence(1_000_000), Presence::NotHeardYet);
        let heartbeat = live.hello(record(0), 1_000_000);
        assert_eq!(presence(1_001_000), Presence::Heard);
        live.stopping(&node, 1_002_000);
        heartbeat.record(1_003_000);
        assert_eq!(presence(1_004_000), Presence::Heard, "its other stream");
        assert_eq!(presence(1_022_000), Presence::StoppedAsPlanned { for_ms: 20_000 });
        live.hello(record(0), 1_030_000);
        assert_eq!(
            (presence(1_030_000), presence(1_050_000)),
            (Presence::Heard, Presence::Silent)
        );
    }

    #[test]
    fn a_reconnect_within_the_silence_is_no_transition() {
        let live = Live::from_records(vec![]);
        live.hello(record(0), 1_000);
        assert_eq!(live.sweep(1_000).len(), 1);
        live.hello(record(0), 3_000);
        assert_eq!(live.sweep(3_000), []);
    }
}
