//! One node: its telemetry stream is open without samples; on its control stream it carries out commands.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use domain::ident::Rank;
use domain::noise::mix;
use domain::run::state::{EndCause, NodeCommand, NodeEnd, NodeReport, Prepared, RankExit};
use domain::topology::Inventory;
use wire::control::ControlStream;
use wire::proto::telemetry_down::Message as Down;
use wire::proto::telemetry_up::Message as Up;
use wire::proto::{Hello, Holding, RunEvent, control_down, control_up};
use wire::telemetry::{Endpoint, OpenError, Receiving, Sending};

use super::{Fleet, Signal};
use crate::hello;

/// The time after the start within which all ranks make their first step: ranks import PyTorch at different speeds.
const START_SPREAD_MS: u64 = 2_000;

/// One node.
pub(super) struct Agent {
    fleet: Arc<Fleet>,
    node: u32,
    instance: String,
}

impl Agent {
    pub(super) fn new(fleet: Arc<Fleet>, node: u32) -> Self {
        Self {
            fleet,
            node,
            instance: hello::instance(node),
        }
    }

    /// Runs until the stream ends, which is an error, or the fleet is dropped.
    pub(super) async fn run(self) -> Result<()> {
        let (telemetry, mut control) = {
            let _turn = self.fleet.joining.acquire().await?;
            let (sending, receiving, credential) = self.join().await?;
            let control = self.open_control(&credential).await?;
            ((sending, receiving), control)
        };
        self.fleet.joined.fetch_add(1, Ordering::Relaxed);
        let mut signal = self.fleet.signal.subscribe();
        loop {
            tokio::select! {
                message = control.stream.next() => {
                    match message?.context("the control stream ended")? {
                        control_down::Message::Command(command) => {
                            let (run, attempt) = (command.run, command.attempt);
                            let order = serde_json::from_str(&command.command_json)?;
                            control.begin(&run, attempt);
                            control.carry_out(&self, command.id, order).await?;
                        }
                        control_down::Message::EventAck(ack) => control.acknowledged(&self.fleet, ack.id),
                        _ => {}
                    }
                }
                changed = signal.changed() => {
                    changed?;
                    let signal = *signal.borrow_and_update();
                    control.follow(&self, signal).await?;
                }
            }
            // Keeps the telemetry stream open, as an agent does.
            let _open = &telemetry;
        }
    }

    async fn join(&self) -> Result<(Sending, Receiving, String)> {
        let endpoint = Endpoint::new(&self.fleet.url, None)?;
        let (mut sending, mut receiving) = loop {
            match endpoint.open(&self.fleet.join).await {
                Ok(opened) => break opened,
                Err(OpenError::Refused(status)) if wire::busy::retry_after(&status).is_some() => {
                    tokio::time::sleep(wire::busy::retry_after(&status).unwrap_or_default()).await;
                }
                Err(error) => return Err(error).context("cannot connect"),
            }
        };
        sending.send(Up::Hello(self.hello())).await?;
        match receiving.next().await? {
            Some(Down::Hello(ack)) => Ok((sending, receiving, ack.credential)),
            _ => bail!("unexpected answer to the hello"),
        }
    }

    async fn open_control(&self, credential: &str) -> Result<Control> {
        let stream =
            wire::control::open(&self.fleet.url, credential, self.hello(), Holding::default()).await?;
        Ok(Control { stream, part: None })
    }

    fn hello(&self) -> Hello {
        let inventory = Inventory {
            hostname: format!("node-{:05}", self.node),
            simulated: Some("loadgen".to_owned()),
            accepts_runs: true,
            ..Inventory::default()
        };
        hello::hello(&inventory, &self.instance)
    }

    fn ranks(&self, first: u32) -> impl Iterator<Item = (u32, Rank)> + use<> {
        (0..self.fleet.plan.ranks).map(move |local| (local, Rank(first + local)))
    }
}

/// A control stream, and the node's task of an attempt.
struct Control {
    stream: ControlStream,
    part: Option<Part>,
}

/// A node's task of an attempt.
struct Part {
    run: String,
    attempt: u32,
    first_rank: u32,
    next_id: u64,
    /// The reports of first steps that are not acknowledged yet.
    steps: HashSet<u64>,
    runs: bool,
    has_ended: bool,
}

impl Control {
    /// Begins an attempt. It replaces the one before.
    fn begin(&mut self, run: &str, attempt: u32) {
        let is_known = self
            .part
            .as_ref()
            .is_some_and(|part| part.run == run && part.attempt == attempt);
        if !is_known {
            self.part = Some(Part {
                run: run.to_owned(),
                attempt,
                first_rank: 0,
                next_id: 1,
                steps: HashSet::new(),
                runs: false,
                has_ended: false,
            });
        }
    }

    async fn carry_out(&mut self, agent: &Agent, command: u64, order: NodeCommand) -> Result<()> {
        self.report(NodeReport::Accepted { command }).await?;
        match order {
            NodeCommand::Prepare { node_rank, .. } => {
                self.part.as_mut().context("a part")?.first_rank = node_rank * agent.fleet.plan.ranks;
                self.report(NodeReport::Prepared(prepared(agent))).await?;
            }
            NodeCommand::Start(_) => self.start(agent).await?,
            NodeCommand::Stop { .. } => {
                self.exit(agent, |rank| RankExit {
                    rank,
                    signal: Some(15),
                    at_ns: crate::fleet::now_ms() * 1_000_000,
                    ..RankExit::default()
                })
                .await?;
                self.end(NodeEnd {
                    cause: EndCause::Stopped,
                    ..NodeEnd::default()
                })
                .await?;
            }
            _ => {}
        }
        Ok(())
    }

    async fn start(&mut self, agent: &Agent) -> Result<()> {
        let part = self.part.as_mut().context("a part")?;
        part.runs = true;
        let first = part.first_rank;
        self.report(NodeReport::ShimStarted {
            pid: 100,
            command: "torchrun train.py".to_owned(),
            kept_by: String::new(),
        })
        .await?;
        for (local_rank, rank) in agent.ranks(first) {
            let pid = 1_000 + local_rank;
            self.report(NodeReport::RankStarted {
                rank,
                local_rank,
                pid,
            })
            .await?;
        }
        tokio::time::sleep(Duration::from_millis(
            mix(u64::from(agent.node)) % START_SPREAD_MS,
        ))
        .await;
        for (_, rank) in agent.ranks(first) {
            let id = self.report(NodeReport::FirstStep { rank, step: 1 }).await?;
            self.part.as_mut().context("a part")?.steps.insert(id);
        }
        Ok(())
    }

    async fn follow(&mut self, agent: &Agent, signal: Signal) -> Result<()> {
        let Some(part) = self.part.as_ref().filter(|part| part.runs && !part.has_ended) else {
            return Ok(());
        };
        let first = part.first_rank;
        match signal {
            Signal::Train => Ok(()),
            // The first rank of the first node. The collector stops the other ranks.
            Signal::Fail if first == 0 && part.attempt == 1 => {
                let exit = RankExit {
                    rank: Rank(0),
                    code: Some(1),
                    error_type: Some("ValueError".to_owned()),
                    message: Some("sample 4711 cannot be read".to_owned()),
                    at_ns: crate::fleet::now_ms() * 1_000_000,
                    last_step: Some(1_000),
                    ..RankExit::default()
                };
                self.report(NodeReport::RankExited(exit)).await.map(|_| ())
            }
            Signal::Fail => Ok(()),
            Signal::Finish => {
                self.exit(agent, |rank| RankExit {
                    rank,
                    code: Some(0),
                    at_ns: crate::fleet::now_ms() * 1_000_000,
                    ..RankExit::default()
                })
                .await?;
                self.end(NodeEnd {
                    code: Some(0),
                    ..NodeEnd::default()
                })
                .await
            }
        }
    }

    async fn exit(&mut self, agent: &Agent, exit: impl Fn(Rank) -> RankExit) -> Result<()> {
        let part = self.part.as_ref().context("a part")?;
        if !part.runs || part.has_ended {
            return Ok(());
        }
        for (_, rank) in agent.ranks(part.first_rank) {
            self.report(NodeReport::RankExited(exit(rank))).await?;
        }
        Ok(())
    }

    async fn end(&mut self, end: NodeEnd) -> Result<()> {
        self.report(NodeReport::Ended(end)).await?;
        self.part.as_mut().context("a part")?.has_ended = true;
        Ok(())
    }

    async fn report(&mut self, report: NodeReport) -> Result<u64> {
        let part = self.part.as_mut().context("a report without a node task")?;
        let id = part.next_id;
        part.next_id += 1;
        let event = RunEvent {
            run: part.run.clone(),
            attempt: part.attempt,
            id,
            at_ms: crate::fleet::now_ms(),
            report_json: serde_json::to_string(&report)?,
        };
        self.stream.send(control_up::Message::Event(event)).await?;
        Ok(id)
    }

    fn acknowledged(&mut self, fleet: &Fleet, id: u64) {
        fleet.reports.fetch_add(1, Ordering::Relaxed);
        if self.part.as_mut().is_some_and(|part| part.steps.remove(&id)) {
            fleet.steps.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn prepared(agent: &Agent) -> Prepared {
    Prepared {
        address: format!(
            "10.{}.{}.{}",
            agent.node >> 16,
            (agent.node >> 8) & 255,
            agent.node & 255
        ),
        port: 29_500,
        python: "/usr/bin/python3".to_owned(),
        python_version: "3.11.2".to_owned(),
        torch_version: "2.10.0".to_owned(),
        nproc_default: agent.fleet.plan.ranks,
        ..Prepared::default()
    }
}
