//! The control stream of a node.

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use domain::run::inspect::Answer;
use domain::run::state::NodeReport;
use tokio::sync::mpsc;
use wire::control::ControlStream;
use wire::proto::{self, Hello, Holding, LogChunk, RunEvent, control_down, control_up};

use crate::attempt::NodeIndex;
use crate::cluster::{Order, OrderKind, now_ms};
use crate::world::{ForAttempt, LogLine, NodeOutput};

/// A control stream.
pub(super) struct Control {
    node: NodeIndex,
    stream: ControlStream,
    orders: mpsc::Sender<Order>,
    /// The last id of a report, by attempt.
    reported: HashMap<(String, u32), u64>,
    /// The length of each log, by attempt, rank and stream.
    logged: HashMap<(String, u32, u32, &'static str), u64>,
}

impl Control {
    pub(super) async fn open(
        url: &str,
        credential: &str,
        hello: Hello,
        node: NodeIndex,
        orders: mpsc::Sender<Order>,
    ) -> Result<Self> {
        let stream = wire::control::open(url, credential, hello, Holding::default()).await?;
        Ok(Self {
            node,
            stream,
            orders,
            reported: HashMap::new(),
            logged: HashMap::new(),
        })
    }

    /// Returns the next message from the collector. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<control_down::Message> {
        let message = self.stream.next().await?;
        message.context("the control stream ended")
    }

    /// Passes a message from the collector to the world.
    pub(super) async fn take(&mut self, message: control_down::Message) -> Result<()> {
        match message {
            control_down::Message::Command(command) => {
                let key = (command.run.clone(), command.attempt);
                let accepted = NodeReport::Accepted { command: command.id };
                let accepted = self.event(&key, &accepted)?;
                self.send(accepted).await?;
                let order = OrderKind::Command(serde_json::from_str(&command.command_json)?);
                self.order(command.run, command.attempt, order).await
            }
            control_down::Message::Question(asked) => {
                let question = serde_json::from_str(&asked.question_json)?;
                let order = OrderKind::Question {
                    id: asked.id,
                    question,
                };
                self.order(asked.run, asked.attempt, order).await
            }
            _ => Ok(()),
        }
    }

    async fn order(&self, run: String, attempt: u32, what: OrderKind) -> Result<()> {
        let order = Order {
            node: self.node,
            run,
            attempt,
            what,
        };
        let sent = self.orders.send(order).await;
        sent.map_err(|_| anyhow::anyhow!("the simulated cluster has ended"))
    }

    /// Reports what happened to the ranks of the node.
    pub(super) async fn report(&mut self, output: NodeOutput) -> Result<()> {
        for ForAttempt { run, attempt, what } in output.reports {
            let message = self.event(&(run, attempt), &what)?;
            self.send(message).await?;
        }
        for line in output.lines {
            let message = self.log_message(line);
            self.send(message).await?;
        }
        Ok(())
    }

    pub(super) async fn answer(&mut self, id: u64, answers: &[Answer]) -> Result<()> {
        for answer in answers {
            self.send(control_up::Message::Answer(proto::Answer {
                id,
                answer_json: serde_json::to_string(answer)?,
                ..proto::Answer::default()
            }))
            .await?;
        }
        self.send(control_up::Message::Answer(proto::Answer {
            id,
            last: true,
            ..proto::Answer::default()
        }))
        .await
    }

    fn event(&mut self, key: &(String, u32), report: &NodeReport) -> Result<control_up::Message> {
        let last = self.reported.entry(key.clone()).or_default();
        *last += 1;
        Ok(control_up::Message::Event(RunEvent {
            run: key.0.clone(),
            attempt: key.1,
            id: *last,
            at_ms: now_ms(),
            report_json: serde_json::to_string(report)?,
        }))
    }

    fn log_message(&mut self, line: ForAttempt<LogLine>) -> control_up::Message {
        let ForAttempt { run, attempt, what } = line;
        let stream = if what.is_error { "stderr" } else { "stdout" };
        let bytes = format!("{}\n", what.text).into_bytes();
        let length = self
            .logged
            .entry((run.clone(), attempt, what.rank, stream))
            .or_default();
        let offset = *length;
        *length += bytes.len() as u64;
        control_up::Message::Log(LogChunk {
            run,
            attempt,
            rank: what.rank.cast_signed(),
            stream: stream.to_owned(),
            offset,
            bytes,
            kept_from: 0,
        })
    }

    async fn send(&self, message: control_up::Message) -> Result<()> {
        let sent = self.stream.send(message).await;
        sent.context("the control stream has ended")
    }
}
