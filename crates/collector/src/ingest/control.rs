//! The control stream, over gRPC: the collector sends commands, the agent sends reports and logs. Nothing here waits behind samples.
//!
//! The collector sends the response headers at once and reads the hello inside the stream. Otherwise an agent that waits for the headers
//! before it sends its hello would wait forever.

use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::ident::{AttemptId, AttemptNo, NodeName, RunId};
use futures::Stream;
use listener::Connection;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::CompressionEncoding;
use tonic::{Request, Response, Status, Streaming};
use wire::proto::uplink_server::{Uplink, UplinkServer};
use wire::proto::{
    Answer, ControlDown, ControlUp, EventAck, Hello, Holding, LogAck, LogChunk, RunEvent, control_down,
    control_up,
};
use wire::version::MESSAGE_BYTES_MAX;

use super::first_bytes::FirstBytes;
use super::handles::Ingest;
use super::hello::{self, Admitted, AgentSession, HELLO_WITHIN};
use super::open_stream::OpenStream;
use super::refusals::{Refusal, Refusals};
use crate::clock;
use crate::http::client_address::ClientAddress;
use crate::runs::{Incoming, LogError, Receipt, Refused, RunError, log_source};

/// Bound of the queue of messages to one agent. If the queue is full, the sender waits. Commands to one node are few.
const OUTBOUND_MAX: usize = 64;

/// Bound of the attempts that one node can hold: an agent follows 64 attempts, plus those that are being stopped.
const HELD_MAX: usize = 1_024;
/// Bound of the attempts for which a connection caches whether its node may write their logs.
const RIGHTS_MAX: usize = 256;
/// How long a denial of log access is cached before the state of the run is read again.
const DENIED_FOR: Duration = Duration::from_secs(10);
/// Maximum size of one log chunk, in bytes.
const CHUNK_BYTES_MAX: usize = 1 << 20;

/// Maximum size of one answer to an inspection request, in bytes: the stacks of one rank, where each byte may need an escape.
const ANSWER_BYTES_MAX: usize = 2 << 20;

/// The queue of messages to one agent.
type Outbound = mpsc::Sender<Result<ControlDown, Status>>;

/// Returns the gRPC service, ready to be mounted.
pub(super) fn service(ingest: Arc<Ingest>) -> UplinkServer<Service> {
    UplinkServer::new(Service { ingest })
        .accept_compressed(CompressionEncoding::Zstd)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The gRPC service of the control stream.
pub(super) struct Service {
    ingest: Arc<Ingest>,
}

#[tonic::async_trait]
impl Uplink for Service {
    type ControlStream = Pin<Box<dyn Stream<Item = Result<ControlDown, Status>> + Send>>;

    async fn control(
        &self,
        request: Request<Streaming<ControlUp>>,
    ) -> Result<Response<Self::ControlStream>, Status> {
        let admitted = self.admit(&request)?;
        let first_bytes = request.extensions().get::<FirstBytes>().cloned();
        let (outbound, receiver) = mpsc::channel(OUTBOUND_MAX);
        let (ingest, inbound) = (Arc::clone(&self.ingest), request.into_inner());
        let tasks = ingest.tasks.clone();
        self.ingest.tasks.spawn_to_end(async move {
            let ended = tokio::select! {
                () = tasks.stopping().cancelled() => Err(Status::unavailable("the collector is stopping; connect again")),
                ended = converse(&ingest, admitted, first_bytes, inbound, outbound.clone()) => ended,
            };
            if let Err(status) = ended {
                // The stream ends in any case, so a status that does not fit into the queue is dropped.
                let _full_or_gone = outbound.try_send(Err(status));
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

impl Service {
    /// Checks whether the stream may begin. [`FirstBytes`] limits the connection until the hello is decoded.
    fn admit<T>(&self, request: &Request<T>) -> Result<Admitted, Status> {
        let extensions = request.extensions();
        let ClientAddress(address) = *extensions
            .get()
            .ok_or_else(|| Status::internal("the client address of the stream is unknown"))?;
        let admitted = hello::admit(&self.ingest, request.metadata().as_ref(), address.into())?;
        if let Some(connection) = extensions.get::<Connection>() {
            connection.authenticate();
        }
        Ok(admitted)
    }
}

async fn converse(
    ingest: &Arc<Ingest>,
    admitted: Admitted,
    first_bytes: Option<FirstBytes>,
    mut inbound: Streaming<ControlUp>,
    outbound: Outbound,
) -> Result<(), Status> {
    let hello = first(&mut inbound).await?;
    // Before the agent is registered and gets a credential.
    hello::check_name(ingest, &admitted, &hello)?;
    let (session, ack) = hello::greet(ingest, admitted, hello).await?;
    if let Some(first_bytes) = first_bytes {
        first_bytes.lift();
    }
    let _counted = OpenStream::count(ingest, session.node.clone());
    // If the agent is already gone, the first read reports it.
    let _gone = send(&outbound, control_down::Message::Hello(ack)).await;
    serve(ingest, session, inbound, outbound).await
}

async fn first(inbound: &mut Streaming<ControlUp>) -> Result<Hello, Status> {
    let message = tokio::time::timeout(HELLO_WITHIN, inbound.message())
        .await
        .map_err(|_| hello::late())??;
    match message.and_then(|message| message.message) {
        Some(control_up::Message::Hello(hello)) => Ok(hello),
        _ => Err(hello::missing()),
    }
}

/// Serves one agent until its stream ends.
async fn serve(
    ingest: &Arc<Ingest>,
    session: AgentSession,
    inbound: Streaming<ControlUp>,
    outbound: Outbound,
) -> Result<(), Status> {
    let connected = ingest.runs.agents.connect(&session.node, &session.process);
    let (connection, messages) = connected.map_err(|error| hello::name_in_use(&error))?;
    let conversation = Conversation {
        ingest,
        session: &session,
        outbound: &outbound,
        refusals: Refusals::default(),
        logs: LogRights::default(),
    };
    let ended = tokio::select! {
        ended = conversation.read(inbound) => ended,
        () = forward(messages, &outbound) => Ok(()),
    };
    if connection.close() {
        ingest
            .runs
            .node_lost(&session.node)
            .await
            .map_err(|error| failed(&error))?;
    }
    ended
}

async fn forward(mut messages: mpsc::Receiver<control_down::Message>, outbound: &Outbound) {
    while let Some(message) = messages.recv().await {
        if send(outbound, message).await.is_err() {
            return;
        }
    }
}

/// The state of one agent's connection while it is served.
struct Conversation<'a> {
    ingest: &'a Arc<Ingest>,
    session: &'a AgentSession,
    outbound: &'a Outbound,
    refusals: Refusals,
    logs: LogRights,
}

impl Conversation<'_> {
    async fn read(mut self, mut inbound: Streaming<ControlUp>) -> Result<(), Status> {
        while let Some(message) = inbound.message().await? {
            self.session.heartbeat.record(clock::now_ms());
            match message.message {
                Some(control_up::Message::Holding(holding)) => self.holding(&holding).await?,
                Some(control_up::Message::Event(event)) => self.event(event).await?,
                Some(control_up::Message::Log(chunk)) => self.log(chunk).await?,
                Some(control_up::Message::Answer(answer)) => self.answer(answer),
                Some(control_up::Message::Hello(_)) => {
                    return Err(Status::invalid_argument("a second hello on one stream"));
                }
                // A message type of a newer agent, which this collector does not support.
                None => {}
            }
        }
        Ok(())
    }

    fn refuse(&mut self, refusal: Refusal, what: impl std::fmt::Display) {
        self.refusals
            .count(&self.ingest.metrics, &self.session.node, refusal, what);
    }

    async fn holding(&mut self, holding: &Holding) -> Result<(), Status> {
        if holding.held.len() > HELD_MAX {
            let count = holding.held.len();
            self.refuse(
                Refusal::TooManyHeld,
                format!("it holds {count} attempts, more than the maximum of {HELD_MAX}"),
            );
        }
        let held = holding.held.iter().take(HELD_MAX).filter_map(|held| {
            Some(AttemptId::new(
                RunId::new(held.run.as_str()).ok()?,
                AttemptNo(held.attempt),
            ))
        });
        let held: Vec<_> = held.collect();
        self.ingest
            .runs
            .node_back(&self.session.node, &held)
            .await
            .map_err(|error| failed(&error))
    }

    /// Acknowledges a report when it is stored, or when it can never be stored: otherwise the agent would send it again forever.
    async fn event(&mut self, event: RunEvent) -> Result<(), Status> {
        let ack = EventAck {
            run: event.run.clone(),
            attempt: event.attempt,
            id: event.id,
        };
        match RunId::new(event.run.as_str()) {
            Err(_) => self.refuse(Refusal::UnknownRun, "its run id is invalid"),
            Ok(run) => {
                let incoming = Incoming {
                    attempt: &AttemptId::new(run.clone(), AttemptNo(event.attempt)),
                    node: &self.session.node,
                    id: event.id,
                    json: &event.report_json,
                };
                match self.ingest.runs.report(incoming).await {
                    Ok(receipt) => self.note(&run, &event, receipt),
                    // Not acknowledged: the agent keeps the report until a collector that can read the run takes it.
                    Err(error @ RunError::Stored { .. }) => {
                        tracing::error!(node = %self.session.node, %error, "a report could not be processed and is not acknowledged");
                        return Ok(());
                    }
                    Err(error) => return Err(failed(&error)),
                }
            }
        }
        send(self.outbound, control_down::Message::EventAck(ack)).await
    }

    fn note(&mut self, run: &RunId, event: &RunEvent, receipt: Receipt) {
        let refused = match receipt {
            Receipt::Taken => return,
            Receipt::Kept(reason) => {
                let (node, protocol) = (&self.session.node, self.session.protocol);
                tracing::warn!(%node, protocol, %run, id = event.id, ?reason, "a report of an agent could not be read; see the run");
                return;
            }
            Receipt::Refused(refused) => refused,
        };
        let kind = match refused {
            Refused::UnknownRun => Refusal::UnknownRun,
            Refused::NotInAttempt => Refusal::ReportNotInAttempt,
            Refused::NotItsCommand(_) => Refusal::CommandOfOther,
        };
        let what = format!(
            "report {} on attempt {} of run {run}: {refused}",
            event.id, event.attempt
        );
        self.refuse(kind, what);
    }

    /// Acknowledges also chunks that are never written: otherwise the agent would send them again forever.
    async fn log(&mut self, chunk: LogChunk) -> Result<(), Status> {
        let Ok(run) = RunId::new(chunk.run.as_str()) else {
            return Ok(());
        };
        if chunk.bytes.len() > CHUNK_BYTES_MAX {
            return Err(Status::invalid_argument(format!(
                "a log chunk is longer than {CHUNK_BYTES_MAX} bytes"
            )));
        }
        let attempt = AttemptId::new(run.clone(), AttemptNo(chunk.attempt));
        let length = match self.logs.refused(self.ingest, &self.session.node, attempt).await {
            Ok(None) => match self.write(&run, &chunk).await? {
                Some(length) => length,
                None => return Ok(()),
            },
            Ok(Some(refusal)) => {
                self.refuse(
                    refusal,
                    format!("a log chunk of attempt {} of run {run}", chunk.attempt),
                );
                end_of(&chunk)
            }
            Err(error @ RunError::Stored { .. }) => {
                tracing::error!(%error, "a log chunk could not be processed");
                return Ok(());
            }
            Err(error) => return Err(failed(&error)),
        };
        let ack = LogAck {
            run: chunk.run,
            attempt: chunk.attempt,
            rank: chunk.rank,
            stream: chunk.stream,
            length,
        };
        send(self.outbound, control_down::Message::LogAck(ack)).await
    }

    /// Returns the new length of the log in bytes, or `None` if the log cannot have a name. Chunks of such a log are not acknowledged.
    async fn write(&mut self, run: &RunId, chunk: &LogChunk) -> Result<Option<u64>, Status> {
        let (ingest, node) = (self.ingest, &self.session.node);
        let source = log_source(AttemptNo(chunk.attempt), node, chunk.rank, &chunk.stream);
        let written = ingest
            .runs
            .logs
            .write(run, &source, (chunk.offset, chunk.kept_from), &chunk.bytes)
            .await;
        let length = match written {
            Ok(length) => length,
            Err(LogError::Name) => return Ok(None),
            Err(error @ LogError::TooMany { .. }) => {
                self.refuse(Refusal::TooManyLogs, error);
                return Ok(Some(end_of(chunk)));
            }
            Err(error @ LogError::Io(_)) => {
                tracing::error!(%error, %run, "a log cannot be written");
                return Err(Status::unavailable("the collector cannot write logs right now"));
            }
        };
        if !chunk.bytes.is_empty() {
            ingest.changes.send_log(run.clone());
        }
        Ok(Some(length))
    }

    /// Passes an answer to the request that waits for it. The request may have ended already.
    fn answer(&mut self, answer: Answer) {
        let (ingest, node) = (self.ingest, &self.session.node);
        if answer.answer_json.len().max(answer.bytes.len()) > ANSWER_BYTES_MAX {
            ingest.metrics.refused.with_label_values(&["answer"]).inc();
            tracing::warn!(%node, "an agent's answer is longer than {ANSWER_BYTES_MAX} bytes");
            return;
        }
        if !ingest.runs.agents.answered(node, answer) {
            self.refuse(
                Refusal::AnswerOfOther,
                "an answer to a request that was sent to another node",
            );
        }
    }
}

/// Caches which attempts' logs a connection may write. A node's part in an attempt never changes, so one check is enough if it succeeds.
#[derive(Default)]
struct LogRights {
    granted: HashSet<AttemptId>,
    denied: HashMap<AttemptId, (Instant, Refusal)>,
}

impl LogRights {
    /// Returns why a node may not write the logs of an attempt, or `None` if it may.
    async fn refused(
        &mut self,
        ingest: &Arc<Ingest>,
        node: &NodeName,
        attempt: AttemptId,
    ) -> Result<Option<Refusal>, RunError> {
        if self.granted.contains(&attempt) {
            return Ok(None);
        }
        let fresh = self
            .denied
            .get(&attempt)
            .filter(|(at, _)| at.elapsed() < DENIED_FOR);
        if let Some((_, refusal)) = fresh {
            return Ok(Some(*refusal));
        }
        let refusal = match ingest.runs.has_task(node, &attempt).await? {
            Some(true) => None,
            Some(false) => Some(Refusal::LogNotInAttempt),
            None => Some(Refusal::UnknownRun),
        };
        match refusal {
            None => {
                make_room(&mut self.granted, HashSet::len, HashSet::clear);
                self.granted.insert(attempt);
            }
            Some(refusal) => {
                make_room(&mut self.denied, HashMap::len, HashMap::clear);
                self.denied.insert(attempt, (Instant::now(), refusal));
            }
        }
        Ok(refusal)
    }
}

/// Clears the cache when it is full. Its entries are then looked up again.
fn make_room<T>(remembered: &mut T, len: impl Fn(&T) -> usize, clear: impl Fn(&mut T)) {
    if len(remembered) >= RIGHTS_MAX {
        clear(remembered);
    }
}

/// Returns the offset at which a log chunk ends.
fn end_of(chunk: &LogChunk) -> u64 {
    chunk.offset.saturating_add(chunk.bytes.len() as u64)
}

async fn send(outbound: &Outbound, message: control_down::Message) -> Result<(), Status> {
    let sent = outbound
        .send(Ok(ControlDown {
            message: Some(message),
        }))
        .await;
    sent.map_err(|_| Status::cancelled("the agent is gone"))
}

fn failed(error: &RunError) -> Status {
    tracing::error!(%error, "a run's state cannot be changed");
    Status::unavailable("the collector cannot change the run's state right now; try again")
}
