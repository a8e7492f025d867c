//! The connections of one node to the collector: the telemetry stream with its samples, the control stream with commands and
//! reports.

mod control;
mod telemetry;

use anyhow::{Context as _, Result, bail};
use domain::topology::{Inventory, Source};
use tokio::sync::mpsc;
use wire::proto::Hello;
use wire::proto::telemetry_down::Message as Down;
use wire::proto::telemetry_up::Message as Up;
use wire::telemetry::{Endpoint, Receiving, Sending};
use wire::version::{PROTOCOL_MAX, PROTOCOL_MIN};

use self::control::Control;
use self::telemetry::Segment;
use crate::attempt::NodeIndex;
use crate::cluster::{Cluster, Order, ToNode, now_ms};
use crate::gpu;
use crate::identity::{address, node_name};
use crate::noise::mix;
use crate::world::CPUS;

/// Nodes in one rack. Power and cooling of many racks are enough for four servers with eight GPUs.
const NODES_PER_RACK: u32 = 4;

/// A node that has joined.
pub(crate) struct Node {
    sending: Sending,
    receiving: Receiving,
    control: Control,
    segment: Segment,
}

impl Node {
    /// Opens both streams.
    pub(crate) async fn join(cluster: &Cluster, index: u32, orders: mpsc::Sender<Order>) -> Result<Self> {
        let name = node_name(cluster.prefix, index, cluster.nodes);
        let hello = hello(&name, index, cluster);
        let endpoint = Endpoint::new(&cluster.url, None)?;
        let opened = endpoint.open(&cluster.join).await;
        let (mut sending, mut receiving) = opened.with_context(|| format!("{name} cannot connect"))?;
        sending.send(Up::Hello(hello.clone())).await?;
        let Some(Down::Hello(welcome)) = receiving.next().await? else {
            bail!("the collector did not answer the hello of {name}");
        };
        let node = index as NodeIndex;
        let control = Control::open(&cluster.url, &welcome.credential, hello.clone(), node, orders).await?;
        Ok(Self {
            sending,
            receiving,
            control,
            segment: Segment::new(hello.instance),
        })
    }

    /// Forwards messages in both directions until a stream ends, which is an error.
    pub(crate) async fn run(mut self, mut from_world: mpsc::Receiver<ToNode>) -> Result<()> {
        loop {
            tokio::select! {
                heard = self.receiving.next() => match heard? {
                    Some(Down::Refusal(refusal)) => tracing::warn!(reason = refusal.reason, "samples of a simulated node were refused"),
                    Some(_) => {}
                    None => bail!("the collector closed the telemetry stream"),
                },
                message = self.control.next() => self.control.take(message?).await?,
                to_node = from_world.recv() => match to_node {
                    None => return Ok(()),
                    Some(ToNode::Answers { id, answers }) => self.control.answer(id, &answers).await?,
                    Some(ToNode::Output(output)) => {
                        for message in self.segment.messages(&output)? {
                            self.sending.send(message).await?;
                        }
                        self.control.report(output).await?;
                    }
                },
            }
        }
    }
}

fn hello(name: &str, index: u32, cluster: &Cluster) -> Hello {
    let of_gpus = |version: &str| {
        if cluster.has_gpus {
            version.to_owned()
        } else {
            String::new()
        }
    };
    let inventory = Inventory {
        hostname: name.to_owned(),
        addresses: vec![address(index as NodeIndex)],
        rack: Some(format!("R{:02}", index / NODES_PER_RACK + 1)),
        os: "simulated".to_owned(),
        cpus: CPUS,
        memory_bytes: 2_000_000_000_000,
        driver_version: of_gpus(gpu::DRIVER),
        cuda_version: of_gpus("12.8"),
        simulated: Some(cluster.simulated.clone()),
        gpus: if cluster.has_gpus {
            gpu::inventory(index)
        } else {
            Vec::new()
        },
        accepts_runs: true,
        sources: vec![Source {
            name: "processes".to_owned(),
            available: true,
            detail: "Simulated by Lockstep.".to_owned(),
        }],
        ..Inventory::default()
    };
    let now_ms = now_ms();
    Hello {
        protocol_min: PROTOCOL_MIN,
        protocol_max: PROTOCOL_MAX,
        node: name.to_owned(),
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        instance: format!("{:016x}", mix(u64::from(index) ^ mix(now_ms.unsigned_abs()))),
        now_ms,
        inventory_json: serde_json::to_string(&inventory).expect("an inventory is plain data"),
        lock: String::new(),
    }
}
