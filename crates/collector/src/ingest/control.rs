//! The control stream, over gRPC: commands down, reports and logs up. Nothing here waits behind samples.
//!
//! The answer's head is sent at once and the hello is read inside the stream, so an agent that waits for the head before it
//! speaks does not wait for ever.

use std::pin::Pin;

use domain::ident::{AttemptNo, NodeName, RunId};
use domain::run::state::NodeReport;
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
use super::hello::{self, Admitted, AgentSession};
use super::{HELLO_WITHIN, OpenStream};
use crate::app::Shared;
use crate::http::client_address::ClientAddress;
use crate::runs::{LogError, RunError, log_source};

/// Messages waiting to be written to one agent. A full queue makes the sender wait; commands to one node are few.
const OUTBOUND_MAX: usize = 64;

/// The longest report: an exit with its traceback.
const REPORT_BYTES_MAX: usize = 64 << 10;
/// The longest piece of a log.
const CHUNK_BYTES_MAX: usize = 1 << 20;

/// The longest answer to a question: the stacks of one rank, each byte of which may need an escape.
const ANSWER_BYTES_MAX: usize = 2 << 20;

/// Messages to one agent.
type Outbound = mpsc::Sender<Result<ControlDown, Status>>;

/// The service, ready to be mounted.
pub(super) fn service(app: Shared) -> UplinkServer<Service> {
    UplinkServer::new(Service { app })
        .accept_compressed(CompressionEncoding::Zstd)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The service itself.
pub(super) struct Service {
    app: Shared,
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
        let (app, inbound) = (self.app.clone(), request.into_inner());
        let stopping = app.stopping.clone();
        app.tasks.clone().spawn(async move {
            let ended = tokio::select! {
                () = stopping.cancelled() => Err(Status::unavailable("the collector is stopping; connect again")),
                ended = converse(&app, admitted, first_bytes, inbound, outbound.clone()) => ended,
            };
            if let Err(status) = ended {
                // Nobody waits for a status that does not fit: the stream ends either way.
                let _full_or_gone = outbound.try_send(Err(status));
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

impl Service {
    /// Whether the stream may begin. The connection stays limited by [`FirstBytes`] until its hello is understood.
    fn admit<T>(&self, request: &Request<T>) -> Result<Admitted, Status> {
        let extensions = request.extensions();
        let ClientAddress(address) = *extensions
            .get()
            .ok_or_else(|| Status::internal("the stream's address is not known"))?;
        let admitted = hello::admit(&self.app, request.metadata().as_ref(), address.into())?;
        if let Some(connection) = extensions.get::<Connection>() {
            connection.authenticate();
        }
        Ok(admitted)
    }
}

async fn converse(
    app: &Shared,
    admitted: Admitted,
    first_bytes: Option<FirstBytes>,
    mut inbound: Streaming<ControlUp>,
    outbound: Outbound,
) -> Result<(), Status> {
    let hello = first(&mut inbound).await?;
    let (session, ack) = hello::greet(app, admitted, hello).await?;
    if let Some(first_bytes) = first_bytes {
        first_bytes.lift();
    }
    let _counted = OpenStream::count(app, session.node.clone());
    // An agent that is gone is noticed by the first read.
    let _gone = send(&outbound, control_down::Message::Hello(ack)).await;
    serve(app, session, inbound, outbound).await
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
    app: &Shared,
    session: AgentSession,
    inbound: Streaming<ControlUp>,
    outbound: Outbound,
) -> Result<(), Status> {
    let (connection, messages) = app.runs.agents.connect(&session.node);
    let ended = tokio::select! {
        ended = read(app, &session, inbound, &outbound) => ended,
        () = forward(messages, &outbound) => Ok(()),
    };
    if connection.close() {
        app.runs
            .node_lost(app, &session.node)
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

async fn read(
    app: &Shared,
    AgentSession { node, pulse }: &AgentSession,
    mut inbound: Streaming<ControlUp>,
    outbound: &Outbound,
) -> Result<(), Status> {
    while let Some(message) = inbound.message().await? {
        pulse.beat(app.now_ms());
        match message.message {
            Some(control_up::Message::Holding(holding)) => holding_of(app, node, &holding).await?,
            Some(control_up::Message::Event(event)) => take_event(app, node, event, outbound).await?,
            Some(control_up::Message::Log(chunk)) => take_log(app, node, chunk, outbound).await?,
            Some(control_up::Message::Answer(answer)) => take_answer(app, node, answer),
            Some(control_up::Message::Hello(_)) => {
                return Err(Status::invalid_argument("a second hello on one stream"));
            }
            // A message of a newer agent that this collector does not know.
            None => {}
        }
    }
    Ok(())
}

async fn holding_of(app: &Shared, node: &NodeName, holding: &Holding) -> Result<(), Status> {
    let held = holding
        .held
        .iter()
        .filter_map(|held| Some((RunId::new(held.run.as_str()).ok()?, AttemptNo(held.attempt))));
    let held: Vec<_> = held.collect();
    app.runs
        .node_back(app, node, &held)
        .await
        .map_err(|error| failed(&error))
}

/// What the agent says of a run that is not known any more is acknowledged, or it would be said for ever.
async fn take_event(
    app: &Shared,
    node: &NodeName,
    event: RunEvent,
    outbound: &Outbound,
) -> Result<(), Status> {
    let ack = EventAck {
        run: event.run.clone(),
        attempt: event.attempt,
        id: event.id,
    };
    let report = (event.report_json.len() <= REPORT_BYTES_MAX)
        .then(|| serde_json::from_str::<NodeReport>(&event.report_json));
    match (RunId::new(event.run.as_str()), report) {
        (Ok(run), Some(Ok(report))) => {
            let taken = app
                .runs
                .report(app, (&run, AttemptNo(event.attempt)), node, event.id, report)
                .await;
            match taken {
                Ok(()) => {}
                Err(RunError::Unknown(run)) => {
                    tracing::warn!(%node, %run, "an agent reports on a run that is not known")
                }
                Err(error) => return Err(failed(&error)),
            }
        }
        _ => {
            app.metrics.refused.with_label_values(&["run_event"]).inc();
            tracing::warn!(%node, run = event.run, id = event.id, "an agent's report cannot be read");
        }
    }
    send(outbound, control_down::Message::EventAck(ack)).await
}

async fn take_log(app: &Shared, node: &NodeName, chunk: LogChunk, outbound: &Outbound) -> Result<(), Status> {
    let Ok(run) = RunId::new(chunk.run.as_str()) else {
        return Ok(());
    };
    if chunk.bytes.len() > CHUNK_BYTES_MAX {
        return Err(Status::invalid_argument(format!(
            "a piece of a log is longer than {CHUNK_BYTES_MAX} bytes"
        )));
    }
    let source = log_source(AttemptNo(chunk.attempt), node, chunk.rank, &chunk.stream);
    let length = match app
        .runs
        .write_log(&run, &source, (chunk.offset, chunk.kept_from), &chunk.bytes)
        .await
    {
        Ok(length) => length,
        Err(LogError::Name) => return Ok(()),
        Err(error) => {
            tracing::error!(%error, %run, "a log cannot be written");
            return Err(Status::unavailable("the collector cannot write logs right now"));
        }
    };
    if !chunk.bytes.is_empty() {
        app.changes.send_log(run);
    }
    let ack = LogAck {
        run: chunk.run,
        attempt: chunk.attempt,
        rank: chunk.rank,
        stream: chunk.stream,
        length,
    };
    send(outbound, control_down::Message::LogAck(ack)).await
}

/// Nobody may be waiting any more.
fn take_answer(app: &Shared, node: &NodeName, answer: Answer) {
    if answer.answer_json.len().max(answer.bytes.len()) > ANSWER_BYTES_MAX {
        app.metrics.refused.with_label_values(&["answer"]).inc();
        tracing::warn!(%node, "an agent's answer is longer than {ANSWER_BYTES_MAX} bytes");
        return;
    }
    app.runs.agents.answered(node, answer);
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
