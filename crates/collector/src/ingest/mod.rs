//! The gRPC service agents connect to. Both streams begin alike: the `authorization` metadata names a token, the first
//! message is a hello. What follows belongs to [`telemetry`] (samples) or [`control`] (runs).
//!
//! ```text
//! open ─▶ hello::greet ─▶ HelloAck ─▶ telemetry::serve | control::serve     until either side ends
//! ```
//! The answer's head is sent at once and the hello is read inside the stream, so an agent that waits for the head before it
//! speaks does not wait for ever.

pub mod control;
pub mod hello;
pub mod remote_write;
pub mod telemetry;

use std::pin::Pin;
use std::time::Duration;

use domain::ident::NodeName;
use futures::Stream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use wire::proto::uplink_server::{Uplink, UplinkServer};
use wire::proto::{ControlDown, ControlUp, Hello, HelloAck, TelemetryDown, TelemetryUp};
use wire::proto::{control_down, control_up, telemetry_down, telemetry_up};
use wire::version::MESSAGE_BYTES_MAX;

use crate::Shared;
use crate::config::Secret;

pub use hello::AgentSession;

/// Messages waiting to be written to one agent. A full queue makes the sender wait: acknowledgements merge, and commands to
/// one node are few.
const OUTBOUND_MAX: usize = 64;
/// How long an agent may take for its first message.
const HELLO_WITHIN: Duration = Duration::from_secs(10);

/// Messages to one agent.
pub type Outbound<T> = mpsc::Sender<Result<T, Status>>;
/// A stream to an agent, as tonic wants it.
type Downstream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The service, ready to be mounted.
pub(crate) fn service(app: Shared) -> UplinkServer<Service> {
    use tonic::codec::CompressionEncoding::Zstd;
    // Answers are a few bytes: compressing them would cost more than all else that is done for a batch.
    UplinkServer::new(Service { app })
        .accept_compressed(Zstd)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The service itself.
pub(crate) struct Service {
    app: Shared,
}

#[tonic::async_trait]
impl Uplink for Service {
    type TelemetryStream = Downstream<TelemetryDown>;
    type ControlStream = Downstream<ControlDown>;

    async fn telemetry(
        &self,
        request: Request<Streaming<TelemetryUp>>,
    ) -> Result<Response<Self::TelemetryStream>, Status> {
        let bearer = hello::bearer(request.metadata())?;
        Ok(open(
            self.app.clone(),
            bearer,
            request.into_inner(),
            telemetry::serve,
        ))
    }

    async fn control(
        &self,
        request: Request<Streaming<ControlUp>>,
    ) -> Result<Response<Self::ControlStream>, Status> {
        let bearer = hello::bearer(request.metadata())?;
        Ok(open(
            self.app.clone(),
            bearer,
            request.into_inner(),
            control::serve,
        ))
    }
}

/// Starts the task behind a stream: the hello, then `serve`.
fn open<Up, Down, Serve, Served>(
    app: Shared,
    bearer: Secret,
    mut inbound: Streaming<Up>,
    serve: Serve,
) -> Response<Downstream<Down>>
where
    Up: Upward,
    Down: Downward,
    Serve: FnOnce(Shared, AgentSession, Streaming<Up>, Outbound<Down>) -> Served + Send + 'static,
    Served: Future<Output = Result<(), Status>> + Send,
{
    let (outbound, receiver) = mpsc::channel(OUTBOUND_MAX);
    let stopping = app.stopping.clone();
    app.tasks.clone().spawn(async move {
        let served = async {
            let hello = first(&mut inbound).await?;
            let (session, ack) = hello::greet(&app, &bearer, hello).await?;
            let node = Connection::open(&app, session.node.clone());
            let _agent_is_gone = outbound.send(Ok(Down::hello(ack))).await;
            let served = serve(app.clone(), session, inbound, outbound.clone()).await;
            drop(node);
            served
        };
        let ended = tokio::select! {
            () = stopping.cancelled() => Err(Status::unavailable("the collector is stopping; connect again")),
            ended = served => ended,
        };
        if let Err(status) = ended {
            // Nobody waits for a status that does not fit: the stream ends either way.
            let _full_or_gone = outbound.try_send(Err(status));
        }
    });
    Response::new(Box::pin(ReceiverStream::new(receiver)))
}

async fn first<Up: Upward>(inbound: &mut Streaming<Up>) -> Result<Hello, Status> {
    let message = tokio::time::timeout(HELLO_WITHIN, inbound.message())
        .await
        .map_err(|_| Status::deadline_exceeded("no hello within 10 seconds"))??;
    message
        .and_then(Up::into_hello)
        .ok_or_else(|| Status::invalid_argument("the first message must be a hello"))
}

/// A node's open stream, counted while it lives.
struct Connection {
    app: Shared,
    node: NodeName,
}

impl Connection {
    fn open(app: &Shared, node: NodeName) -> Self {
        app.metrics.agent_streams.inc();
        Self {
            app: app.clone(),
            node,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.app.metrics.agent_streams.dec();
        tracing::info!(node = %self.node, "an agent's stream ended");
    }
}

/// Messages from agents that may hold a hello.
trait Upward: Send + 'static {
    fn into_hello(self) -> Option<Hello>;
}

/// Messages to agents that may hold the answer to one.
trait Downward: Send + 'static {
    fn hello(ack: HelloAck) -> Self;
}

impl Upward for TelemetryUp {
    fn into_hello(self) -> Option<Hello> {
        match self.message {
            Some(telemetry_up::Message::Hello(hello)) => Some(hello),
            _ => None,
        }
    }
}

impl Upward for ControlUp {
    fn into_hello(self) -> Option<Hello> {
        match self.message {
            Some(control_up::Message::Hello(hello)) => Some(hello),
            _ => None,
        }
    }
}

impl Downward for TelemetryDown {
    fn hello(ack: HelloAck) -> Self {
        Self {
            message: Some(telemetry_down::Message::Hello(ack)),
        }
    }
}

impl Downward for ControlDown {
    fn hello(ack: HelloAck) -> Self {
        Self {
            message: Some(control_down::Message::Hello(ack)),
        }
    }
}
