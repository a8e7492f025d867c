//! The control stream: it receives commands and sends reports and logs.
//!
//! This module stores nothing. On each connection the agent sends every report that the collector has not acknowledged, and every log from
//! the end of the collector's copy on. So a lost connection, collector or agent costs repetition, but no data.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::ident::{AttemptNo, RunId};
use domain::run::state::NodeReport;
use shim::{Entry, Secrets, files, read_from};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Streaming;
use wire::proto::{
    Answer, Command, ControlDown, ControlUp, Held, Holding, LogChunk, Question, RunEvent, control_down,
    control_up,
};

use crate::launch::Supervisor;
use crate::launch::inspect::{self, AnswerPart};
use crate::launch::output::Logs;
use crate::launch::supervise::Attempt;
use crate::uplink::events::Events;
use crate::uplink::link::{Link, LinkError, Retry, now_ms};

/// How often the agent checks files for something to send, while there is an attempt that may write them.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum number of messages that wait to be sent. Reports go first; logs leave [`RESERVED_FOR_REPORTS`] places for them.
const OUTBOUND_MAX: usize = 64;
/// The number of places in the queue that logs leave for reports.
const RESERVED_FOR_REPORTS: usize = 32;
/// The maximum number of answers of ranks that wait to be sent. When the queue is full, the next answer waits.
const ANSWERS_MAX: usize = 4;

/// Keeps a control stream open until `shutdown` is cancelled.
pub async fn run(link: Arc<Link>, supervisor: Arc<Supervisor>, events: Events, shutdown: CancellationToken) {
    let mut retry = Retry::default();
    loop {
        let ended = tokio::select! {
            () = shutdown.cancelled() => return,
            ended = session(&link, &supervisor, &events, &mut retry) => ended,
        };
        if let Err(error) = &ended {
            tracing::warn!(collector = link.url(), %error, "no control connection; runs continue, commands wait");
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = retry.wait(ended.as_ref().err()) => {}
        }
    }
}

async fn session(
    link: &Link,
    supervisor: &Arc<Supervisor>,
    events: &Events,
    retry: &mut Retry,
) -> Result<(), LinkError> {
    let mut client = link.connect_control().await?;
    let (outbound, receiver) = mpsc::channel(OUTBOUND_MAX);
    send(&outbound, control_up::Message::Hello(link.hello())).await?;
    let opened = client
        .control(ReceiverStream::new(receiver))
        .await
        .inspect_err(|status| link.handle_refusal(status))?;
    let mut inbound = opened.into_inner();
    let first = inbound
        .message()
        .await
        .inspect_err(|status| link.handle_refusal(status))?;
    match first.and_then(|down| down.message) {
        Some(control_down::Message::Hello(ack)) => link.accept_hello(&ack)?,
        _ => return Err(LinkError::Closed),
    }
    retry.connected();
    let held = supervisor.attempts();
    let held = held.iter().map(|attempt| Held {
        run: attempt.run().to_string(),
        attempt: attempt.number().0,
    });
    send(
        &outbound,
        control_up::Message::Holding(Holding { held: held.collect() }),
    )
    .await?;
    Session {
        supervisor: supervisor.clone(),
        events: events.clone(),
        outbound,
        senders: BTreeMap::new(),
        questions: JoinSet::new(),
    }
    .serve(&mut inbound)
    .await
}

async fn send(outbound: &mpsc::Sender<ControlUp>, message: control_up::Message) -> Result<(), LinkError> {
    let sent = outbound.send(message.into()).await;
    sent.map_err(|_| LinkError::Closed)
}

struct Session {
    supervisor: Arc<Supervisor>,
    events: Events,
    outbound: mpsc::Sender<ControlUp>,
    senders: BTreeMap<(RunId, AttemptNo), AttemptSender>,
    /// The questions being answered. They are dropped with the connection: a client that asked over another connection no longer waits.
    questions: JoinSet<()>,
}

/// What this connection has sent for one attempt.
#[derive(Default)]
struct AttemptSender {
    agent_offset: u64,
    shim_offset: u64,
    checkpoints_id: u64,
    first_rank: u32,
    logs: Logs,
    waiting: Vec<Entry>,
    /// The secrets of the attempt. `None` until the attempt starts.
    secrets: Option<Secrets>,
}

impl Session {
    async fn serve(mut self, inbound: &mut Streaming<ControlDown>) -> Result<(), LinkError> {
        let mut polls = tokio::time::interval(POLL_INTERVAL);
        polls.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                message = inbound.message() => match message?.ok_or(LinkError::Closed)?.message {
                    Some(control_down::Message::Command(command)) => self.command(command),
                    Some(control_down::Message::EventAck(ack)) => {
                        if let Some(attempt) = self.find(&ack.run, ack.attempt) {
                            attempt.acknowledge(ack.id);
                        }
                    }
                    Some(control_down::Message::LogAck(ack)) => {
                        let attempt = self.find(&ack.run, ack.attempt);
                        let key = RunId::new(ack.run).ok().map(|run| (run, AttemptNo(ack.attempt)));
                        if let Some(sender) = key.and_then(|key| self.senders.get_mut(&key)) {
                            sender.logs.acknowledge(ack.rank, &ack.stream, ack.length);
                            // Send the next chunk now, so that a rank that writes much does not wait for the next tick after each window.
                            if let Some(attempt) = attempt {
                                sender.send_logs(&attempt, &self.outbound);
                            }
                        }
                    }
                    Some(control_down::Message::Burst(burst)) => {
                        tracing::info!(alert = burst.alert, "the collector requested the burst of the GPUs' last minutes");
                        self.events.alarm(now_ms());
                    }
                    Some(control_down::Message::Question(question)) => {
                        self.questions.spawn(answer(self.supervisor.clone(), question, self.outbound.clone()));
                    }
                    // A second hello, or a message that is newer than this agent.
                    Some(control_down::Message::Hello(_)) | None => {}
                },
                // Some attempts start without a command.
                () = self.supervisor.attempt_added() => {}
                // Without attempts there are no files to check.
                _ = polls.tick(), if !self.supervisor.is_idle() => self.send_pending(),
                Some(_) = self.questions.join_next() => {}
            }
        }
    }

    fn find(&self, run: &str, attempt: u32) -> Option<Arc<Attempt>> {
        self.supervisor
            .attempt(&RunId::new(run).ok()?, AttemptNo(attempt))
    }

    fn command(&mut self, command: Command) {
        let Ok(run) = RunId::new(command.run) else { return };
        let attempt = AttemptNo(command.attempt);
        let asked = serde_json::from_str(&command.command_json).map_err(|error| error.to_string());
        let answer = self.supervisor.command(&run, attempt, command.id, asked);
        // A repeated command gets its earlier answer again: the collector repeats a command only if it does not have the answer.
        if let Some(entry) = answer {
            self.senders
                .entry((run, attempt))
                .or_default()
                .waiting
                .push(entry);
        }
    }

    /// Sends new reports and logs as far as the queue has room. It does not wait.
    fn send_pending(&mut self) {
        let attempts = self.supervisor.attempts();
        self.senders.retain(|key, _| {
            attempts
                .iter()
                .any(|attempt| (attempt.run(), attempt.number()) == (&key.0, key.1))
        });
        for attempt in &attempts {
            let sender = self
                .senders
                .entry((attempt.run().clone(), attempt.number()))
                .or_default();
            sender.read(attempt);
            sender.send_reports(attempt, &self.outbound);
        }
        for attempt in &attempts {
            let Some(sender) = self.senders.get_mut(&(attempt.run().clone(), attempt.number())) else {
                continue;
            };
            sender.find_logs(attempt);
            sender.send_logs(attempt, &self.outbound);
            if sender.waiting.is_empty() && attempt.all_reported() && sender.logs.complete() {
                self.supervisor.forget(attempt);
            }
        }
    }
}

/// Sends the answers to a question as they arrive, and then a last message that ends them.
async fn answer(supervisor: Arc<Supervisor>, question: Question, outbound: mpsc::Sender<ControlUp>) {
    let (sender, mut answers) = mpsc::channel::<AnswerPart>(ANSWERS_MAX);
    let Question {
        id,
        run,
        attempt,
        question_json,
    } = question;
    let run = RunId::new(run).ok();
    let folder = run.and_then(|run| supervisor.folder(&run, AttemptNo(attempt)));
    let forwarded = async {
        let message = |answer: Answer| ControlUp::from(control_up::Message::Answer(answer));
        while let Some((answer, bytes)) = answers.recv().await {
            let answer_json = serde_json::to_string(&answer).unwrap_or_default();
            let answer = Answer {
                id,
                answer_json,
                bytes,
                last: false,
            };
            if outbound.send(message(answer)).await.is_err() {
                return;
            }
        }
        let last = Answer {
            id,
            last: true,
            ..Answer::default()
        };
        let _no_connection = outbound.send(message(last)).await;
    };
    let answered = async move {
        match (folder, serde_json::from_str(&question_json)) {
            (Some(folder), Ok(asked)) => inspect::answer(&folder, asked, &sender).await,
            (None, _) => inspect::fail("this node no longer has files of this attempt", &sender).await,
            (_, Err(error)) => {
                let message = format!(
                    "this agent does not support the question; it may be older than the collector: {error}"
                );
                inspect::fail(&message, &sender).await;
            }
        }
    };
    tokio::join!(answered, forwarded);
}

impl AttemptSender {
    fn read(&mut self, attempt: &Attempt) {
        // Before the start of the attempt there are no secrets and no output that could contain them.
        if self.secrets.is_none() && attempt.folder().has(files::START) {
            self.secrets = Some(Secrets::of(attempt.folder()));
        }
        for (name, offset) in [
            (files::AGENT_REPORTS, &mut self.agent_offset),
            (files::SHIM_REPORTS, &mut self.shim_offset),
        ] {
            match read_from(&attempt.folder().file(name), *offset) {
                Ok((entries, end)) => {
                    *offset = end;
                    self.waiting.extend(
                        entries
                            .into_iter()
                            .filter(|entry| !attempt.is_acknowledged(entry.id)),
                    );
                }
                Err(error) => {
                    tracing::warn!(run = %attempt.run(), name = name.as_str(), %error, "cannot read reports")
                }
            }
        }
        if let Some(parts) = attempt.checkpoints_after(self.checkpoints_id) {
            self.checkpoints_id = parts.last().map_or(self.checkpoints_id, |last| last.id);
            // An older report of checkpoints that was not sent yet is out of date.
            self.waiting
                .retain(|waiting| !matches!(waiting.report, NodeReport::Checkpoints(_)));
            let fresh = parts.into_iter().filter(|part| !attempt.is_acknowledged(part.id));
            self.waiting.extend(fresh);
        }
    }

    fn send_reports(&mut self, attempt: &Attempt, outbound: &mpsc::Sender<ControlUp>) {
        let mut sent = 0;
        let none = Secrets::default();
        let secrets = self.secrets.as_ref().unwrap_or(&none);
        for entry in &self.waiting {
            let Ok(room) = outbound.try_reserve() else { break };
            let report_json = secrets.report(&entry.report.bounded());
            let (run, attempt) = (attempt.run().to_string(), attempt.number().0);
            let event = RunEvent {
                run,
                attempt,
                id: entry.id,
                at_ms: entry.at_ms,
                report_json,
            };
            room.send(control_up::Message::Event(event).into());
            sent += 1;
        }
        self.waiting.drain(..sent);
    }

    fn find_logs(&mut self, attempt: &Attempt) {
        if self.first_rank == 0 {
            self.first_rank = attempt.first_rank();
        }
        self.logs.find_files(attempt.folder(), self.first_rank);
    }

    fn send_logs(&mut self, attempt: &Attempt, outbound: &mpsc::Sender<ControlUp>) {
        let none = Secrets::default();
        let secrets = self.secrets.as_ref().unwrap_or(&none);
        while outbound.capacity() > RESERVED_FOR_REPORTS {
            let chunk = match self.logs.next_chunk(secrets) {
                Ok(Some(chunk)) => chunk,
                Ok(None) => return,
                Err(error) => return tracing::warn!(run = %attempt.run(), %error, "cannot read a log"),
            };
            let Ok(room) = outbound.try_reserve() else { return };
            let log = LogChunk {
                run: attempt.run().to_string(),
                attempt: attempt.number().0,
                rank: chunk.rank,
                stream: chunk.stream.to_owned(),
                offset: chunk.offset,
                bytes: chunk.bytes,
                kept_from: chunk.kept_from,
            };
            room.send(control_up::Message::Log(log).into());
        }
    }
}
