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
use crate::world::{NodeOutput, World};

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
    /// The number of nodes. Each has eight GPUs.
    pub nodes: u32,
    /// The beginning of the nodes' names: `demo` for `demo-00`.
    pub prefix: &'static str,
    /// What the collector shows as the specification of the simulation.
    pub simulated: String,
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

/// Joins all nodes. They run until the set is dropped. A task that ends has failed.
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
    tasks.spawn(run(World::new(nodes.len()), inbox, nodes));
    Ok(tasks)
}

async fn run(
    mut world: World,
    mut inbox: mpsc::Receiver<Order>,
    nodes: Vec<mpsc::Sender<ToNode>>,
) -> Result<()> {
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
                for (node, output) in world.advance(now_ms()).into_iter().enumerate() {
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
            let answers = of.map(|of| answers(of, order.node, question)).unwrap_or_default();
            ToNode::Answers { id: *id, answers }
        }
    }
}

fn send(nodes: &[mpsc::Sender<ToNode>], node: NodeIndex, to_node: ToNode) {
    if nodes[node].try_send(to_node).is_err() {
        tracing::warn!(node, "a simulated node is behind; its measurements are dropped");
    }
}

/// Returns the clock of the machine in milliseconds since the epoch.
pub(crate) fn now_ms() -> TimestampMs {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    TimestampMs::try_from(since.unwrap_or_default().as_millis()).unwrap_or(TimestampMs::MAX)
}
