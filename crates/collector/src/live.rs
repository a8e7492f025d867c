//! Which nodes are heard. In memory, seeded from the store at the start; the store learns of it once a minute.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use domain::api::nodes::{GpuView, NodeState, NodeView};
use domain::event::{Event, Severity};
use domain::ident::NodeName;
use domain::time::TimestampMs;
use store::StateStore;
use store::state::nodes::NodeRecord;

use crate::changes::{Change, Changes};
use crate::clock;
use crate::event_log::EventLog;

/// A node that was silent for this long is down. Agents send every second; ten missed in a row are no accident.
pub const SILENT_MS: i64 = 10_000;
/// An agent that stops may still send something on its other stream.
const STOPPING_MS: i64 = 5_000;
/// How often silence is looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// How often the store is told when living nodes were last heard.
const PERSIST_EVERY_MS: i64 = 60_000;

/// All nodes ever heard.
#[derive(Default)]
pub struct Live {
    nodes: RwLock<BTreeMap<NodeName, LiveNode>>,
}

struct LiveNode {
    record: NodeRecord,
    seen_ms: Arc<AtomicI64>,
    up: AtomicBool,
    /// Heard since this collector began.
    heard: bool,
    /// When its agent said that it stops; 0 when it has not.
    stopped_ms: AtomicI64,
}

/// What is known of a node's agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// It sends.
    Heard,
    /// It was not heard since this collector began.
    NotHeardYet,
    /// It said that it stops.
    StoppedAsPlanned {
        /// How long ago.
        for_ms: i64,
    },
    /// It is not heard any more.
    Silent,
}

/// A node's sign of life, at hand for whoever hears the node all the time.
#[derive(Debug, Clone)]
pub struct Pulse(Arc<AtomicI64>);

impl Pulse {
    /// The agent sent something.
    pub fn beat(&self, now_ms: TimestampMs) {
        self.0.store(now_ms, Ordering::Relaxed);
    }
}

impl Live {
    /// Starts from what the store remembers; every node is down until it is heard.
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

    /// An agent said hello.
    pub fn hello(&self, record: NodeRecord, now_ms: TimestampMs) -> Pulse {
        let mut nodes = self.nodes.write().expect("nothing panics while holding it");
        let before = nodes.get(&record.name);
        let was_up = before.is_some_and(|node| node.up.load(Ordering::Relaxed));
        // The node's other stream goes on with the same one.
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
        Pulse(seen_ms)
    }

    /// An agent said that it stops.
    pub fn stopping(&self, node: &NodeName, now_ms: TimestampMs) {
        let nodes = self.nodes.read().expect("nothing panics while holding it");
        if let Some(node) = nodes.get(node) {
            node.stopped_ms.store(now_ms, Ordering::Relaxed);
        }
    }

    /// What is known of each node's agent.
    #[must_use]
    pub fn presences(&self, now_ms: TimestampMs) -> Vec<(NodeName, Presence)> {
        let nodes = self.nodes.read().expect("nothing panics while holding it");
        let presence = |node: &LiveNode| (node.record.name.clone(), node.presence(now_ms));
        nodes.values().map(presence).collect()
    }

    /// Whether a node is heard now.
    #[must_use]
    pub fn is_up(&self, node: &NodeName, now_ms: TimestampMs) -> bool {
        let nodes = self.nodes.read().expect("nothing panics while holding it");
        nodes.get(node).is_some_and(|node| node.is_heard(now_ms))
    }

    /// The records of all nodes, by name: for placing runs.
    #[must_use]
    pub fn records(&self) -> Vec<NodeRecord> {
        self.nodes
            .read()
            .expect("nothing panics while holding it")
            .values()
            .map(LiveNode::record)
            .collect()
    }

    /// All nodes by name; `runs_on` says which runs are on a node.
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

    /// All GPUs, flat.
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

    /// Nodes whose state is not what it was at the last sweep.
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

/// Watches for nodes that come and go, until the collector stops.
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
            tracing::warn!(%error, node = %record.name, "could not note when a node was last heard");
        }
    }
}

fn transition(node: &NodeName, up: bool, at_ms: TimestampMs) -> Event {
    let (kind, severity, message) = if up {
        (
            "agent_connected",
            Severity::Info,
            format!("the agent of {node} is heard"),
        )
    } else {
        let message = format!(
            "the agent of {node} has not been heard for {} s; runs on it go on, but nobody is watching: check the machine, \
             its network, and `systemctl status lockstep-agent`",
            SILENT_MS / 1_000
        );
        ("agent_lost", Severity::Critical, message)
    };
    Event {
        at_ms,
        severity,
        kind: kind.into(),
        node: Some(node.to_string()),
        gpu: None,
        run: None,
        message,
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
    fn a_node_comes_up_when_heard_and_goes_down_when_silent() {
        let live = Live::from_records(vec![record(0)]);
        let node = record(0).name;
        let state = |now_ms| live.views(now_ms, |_| vec![])[0].state;
        assert_eq!(
            (live.sweep(1_000_000), state(1_000_000)),
            (vec![], NodeState::Down)
        );
        live.hello(record(0), 0).beat(1_000_000);
        assert_eq!(live.sweep(1_000_500), [(node.clone(), true)]);
        assert_eq!(live.sweep(1_001_000), []);
        assert_eq!(live.sweep(1_000_000 + SILENT_MS), [(node.clone(), false)]);
        assert_eq!(state(1_000_000 + SILENT_MS), NodeState::Down);
        assert_eq!(live.gpus().len(), 1);
    }

    #[test]
    fn a_planned_stop_is_told_from_silence_until_the_agent_is_back() {
        let live = Live::from_records(vec![record(0)]);
        let node = record(0).name;
        let presence = |now_ms| live.presences(now_ms)[0].1;
        assert_eq!(presence(1_000_000), Presence::NotHeardYet);
        let pulse = live.hello(record(0), 1_000_000);
        assert_eq!(presence(1_001_000), Presence::Heard);
        live.stopping(&node, 1_002_000);
        pulse.beat(1_003_000);
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
