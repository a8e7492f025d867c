//! One task lets time pass in the world; one task per node speaks with the collector.
//!
//! ```text
//! node task ── Order (command, question) ──▶ cluster task ── ToNode (news, answers) ──▶ node task
//! ```
//! Both queues are bounded. A node task waits for room in the world's queue; the world does not wait for a node: one that is a minute behind
//! loses what comes, and the log says so.

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
use crate::world::{News, World};

/// Orders of all nodes: a run of all nodes is prepared and started with two of each.
const ORDERS_MAX: usize = 256;
/// News of a minute.
const NEWS_MAX: usize = 64;
const TICK: Duration = Duration::from_secs(1);

/// How to reach the collector.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// The collector's address.
    pub url: String,
    /// A token for agents, which all nodes use.
    pub join: String,
    /// Nodes, each with eight GPUs.
    pub nodes: u32,
}

/// From a node to the world.
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

/// From the world to a node.
pub(crate) enum ToNode {
    News(News),
    Answers { id: u64, answers: Vec<Answer> },
}

/// Joins all nodes. They run until the set is dropped; a task that ends has failed.
///
/// # Errors
/// When a node cannot join within some seconds.
pub async fn start(cluster: &Cluster) -> Result<JoinSet<Result<()>>> {
    let (orders, inbox) = mpsc::channel(ORDERS_MAX);
    let (mut tasks, mut news) = (JoinSet::new(), Vec::new());
    for index in 0..cluster.nodes {
        let (to_node, from_world) = mpsc::channel(NEWS_MAX);
        let node = Node::join(cluster, index, orders.clone()).await?;
        tasks.spawn(node.run(from_world));
        news.push(to_node);
    }
    tasks.spawn(run(World::new(news.len()), inbox, news));
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
                for (node, news) in world.advance(now_ms()).into_iter().enumerate() {
                    send(&nodes, node, ToNode::News(news));
                }
            }
        }
    }
}

fn carry_out(world: &mut World, order: &Order) -> ToNode {
    let attempt = (order.run.as_str(), order.attempt);
    match &order.what {
        OrderKind::Command(command) => {
            ToNode::News(world.command(order.node, attempt, command.clone(), now_ms()))
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
        tracing::warn!(node, "a simulated node is behind; what it measured is dropped");
    }
}

/// The machine's clock, milliseconds since the epoch.
pub(crate) fn now_ms() -> TimestampMs {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    TimestampMs::try_from(since.unwrap_or_default().as_millis()).unwrap_or(TimestampMs::MAX)
}
