//! Runs the cluster: one task advances the time in the world, and one task per node communicates with the collector.
//!
//! ```text
//! node task ── Order (command, question) ──▶ cluster task ── ToNode (output, answers) ──▶ node task
//! ```
//! Both queues are bounded. A node task waits for room in the world's queue. The world does not wait for a node: a node that is
//! one minute behind loses messages, and the log reports this.

use std::time::Duration;

use anyhow::Result;
use domain::run::inspect::{Answer, Question};
use domain::run::state::NodeCommand;
use domain::time::TimestampMs;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::answers::answers;
use crate::attempt::NodeIndex;
use crate::node::Node;
use crate::scenario::Scenario;
use crate::world::{FaultBegun, NodeOutput, World};

/// The maximum number of waiting orders of all nodes. A run on all nodes is prepared and started with two orders per node.
const ORDERS_MAX: usize = 256;
/// The maximum number of waiting messages for a node: those of one minute.
const OUTPUTS_MAX: usize = 64;
const TICK: Duration = Duration::from_secs(1);

/// The simulated cluster and how to reach the collector.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// The URL of the collector.
    pub url: String,
    /// The join token, which all nodes use.
    pub join: String,
    /// The number of nodes.
    pub nodes: u32,
    /// True if each node has eight GPUs, false if it has none.
    pub has_gpus: bool,
    /// The beginning of the nodes' names: `demo` for `demo-00`.
    pub prefix: &'static str,
    /// What the collector shows as the specification of the simulation.
    pub simulated: String,
    /// What runs with these names play. All other runs play those of the demo.
    pub scenarios: Vec<Scenario>,
    /// Where the beginning of each fault is reported. If the queue is full, the report is lost, and the log says so.
    pub faults: Option<mpsc::Sender<FaultBegun>>,
}

/// An order from a node to the world.
pub(crate) struct Order {
    pub(crate) node: NodeIndex,
    pub(crate) run: String,
    pub(crate) attempt: u32,
    pub(crate) what: OrderKind,
}

pub(crate) enum OrderKind {
    Command(NodeCommand),
    Question { id: u64, question: Question },
}

/// A message from the world to a node.
pub(crate) enum ToNode {
    Output(NodeOutput),
    Answers { id: u64, answers: Vec<Answer> },
}

/// Joins all nodes. They run until the set is dropped. A task that ends has failed, unless a fault has ended its node.
///
/// # Errors
/// Fails if a node cannot join within some seconds.
pub async fn start(cluster: &Cluster) -> Result<JoinSet<Result<()>>> {
    let (orders, inbox) = mpsc::channel(ORDERS_MAX);
    let (mut tasks, mut nodes) = (JoinSet::new(), Vec::new());
    for index in 0..cluster.nodes {
        let (to_node, from_world) = mpsc::channel(OUTPUTS_MAX);
        let node = Node::join(cluster, index, orders.clone()).await?;
        tasks.spawn(node.run(from_world));
        nodes.push(to_node);
    }
    let world = World::new(nodes.len(), cluster.has_gpus, &cluster.scenarios);
    tasks.spawn(run(world, inbox, nodes, cluster.faults.clone()));
    Ok(tasks)
}

async fn run(
    mut world: World,
    mut inbox: mpsc::Receiver<Order>,
    nodes: Vec<mpsc::Sender<ToNode>>,
    faults: Option<mpsc::Sender<FaultBegun>>,
) -> Result<()> {
    let mut nodes: Vec<Option<mpsc::Sender<ToNode>>> = nodes.into_iter().map(Some).collect();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            order = inbox.recv() => {
                let Some(order) = order else { return Ok(()) };
                let to_node = carry_out(&mut world, &order);
                send(&nodes, order.node, to_node);
            }
            _ = ticks.tick() => {
                let outputs = world.advance(now_ms());
                for begun in world.take_begun() {
                    report(faults.as_ref(), begun);
                }
                for (node, output) in outputs.into_iter().enumerate() {
                    if world.is_lost(node) {
                        nodes[node] = None;
                    }
                    send(&nodes, node, ToNode::Output(output));
                }
            }
        }
    }
}

fn carry_out(world: &mut World, order: &Order) -> ToNode {
    let attempt = (order.run.as_str(), order.attempt);
    match &order.what {
        OrderKind::Command(command) => {
            ToNode::Output(world.command(order.node, attempt, command.clone(), now_ms()))
        }
        OrderKind::Question { id, question } => {
            let of = world.attempt(attempt);
            let answers = of.map(|of| answers(of, order.node, question, now_ms()));
            let answers = answers.unwrap_or_default();
            ToNode::Answers { id: *id, answers }
        }
    }
}

fn report(faults: Option<&mpsc::Sender<FaultBegun>>, begun: FaultBegun) {
    if let Some(faults) = faults
        && let Err(error) = faults.try_send(begun)
    {
        tracing::warn!(%error, "the beginning of a simulated fault is not reported");
    }
}

/// Sends a message to a node that is not lost.
fn send(nodes: &[Option<mpsc::Sender<ToNode>>], node: NodeIndex, to_node: ToNode) {
    if let Some(queue) = &nodes[node]
        && queue.try_send(to_node).is_err()
    {
        tracing::warn!(node, "a simulated node is behind; its measurements are dropped");
    }
}

/// Returns the clock of the machine in milliseconds since the epoch.
pub(crate) fn now_ms() -> TimestampMs {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    TimestampMs::try_from(since.unwrap_or_default().as_millis()).unwrap_or(TimestampMs::MAX)
}
