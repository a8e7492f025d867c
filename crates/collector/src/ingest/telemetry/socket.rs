//! The WebSocket of a telemetry stream: the upgrade, the hello, messages in both directions, and the end of the stream.
//!
//! Only the length of a message is between the WebSocket and protobuf, and one task serves both directions: with a thousand nodes per
//! second every wake-up matters.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::any;
use axum::{Extension, Router};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use listener::Connection;
use prost::Message as _;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};
use tonic::{Code, Status};
use wire::busy;
use wire::proto::{End, Hello, TelemetryDown, TelemetryUp, telemetry_down, telemetry_up};
use wire::telemetry::{CLOSE_STOPPING, PATH, READ_BUFFER_BYTES};
use wire::version::{HELLO_BYTES_MAX, MESSAGE_BYTES_MAX};

use crate::http::client_address::ClientAddress;
use crate::http::error::ApiError;
use crate::ingest::handles::Ingest;
use crate::ingest::hello::Admitted;
use crate::ingest::hello::{self, HELLO_WITHIN};
use crate::ingest::open_stream::OpenStream;

/// Maximum number of bytes read of a stream until its hello is decoded: one hello and its WebSocket frames.
const FIRST_BYTES_MAX: u64 = HELLO_BYTES_MAX as u64 + (4 << 10);
/// If an agent sends nothing for this long, not even a ping, it is gone. A live agent sends something every 10 s.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// If an agent does not read our small messages for this long, it is gone.
const TAKEN_WITHIN: Duration = Duration::from_secs(30);
/// How long the closing messages may take, until the agent has closed the connection.
const END_WITHIN: Duration = Duration::from_secs(1);

pub(in crate::ingest) fn routes() -> Router<Arc<Ingest>> {
    Router::new().route(PATH, any(open))
}

/// The receiving side of a stream.
pub(super) struct Up {
    socket: SplitStream<WebSocket>,
    silence: Interval,
    heard: bool,
    /// The last poll did not read the socket, so it is unknown whether the agent has sent something since.
    deaf: bool,
    /// The agent closed the stream because it is stopping.
    stops: bool,
}

/// The sending side of a stream.
pub(super) struct Down(SplitSink<WebSocket, Message>);

/// Authenticates before the upgrade: without a valid token, only the request's headers are read.
async fn open(
    State(ingest): State<Arc<Ingest>>,
    Extension(ClientAddress(address)): Extension<ClientAddress>,
    Extension(connection): Extension<Connection>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Result<Response, ApiError> {
    let admitted = hello::admit(&ingest, &headers, address.into()).map_err(|status| refusal(&status))?;
    connection.authenticate();
    connection.limit_reading(FIRST_BYTES_MAX);
    let upgrade = upgrade
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(0)
        .max_message_size(MESSAGE_BYTES_MAX)
        .max_frame_size(MESSAGE_BYTES_MAX);
    Ok(upgrade.on_upgrade(move |socket| {
        let tasks = ingest.tasks.clone();
        tasks.track(converse(ingest, admitted, connection, socket))
    }))
}

/// Returns the HTTP response for a stream that is not upgraded.
fn refusal(status: &Status) -> ApiError {
    let message = status.message().to_owned();
    match (status.code(), busy::retry_after(status)) {
        (_, Some(wait)) => ApiError::busy(message, wait.as_secs()),
        (Code::PermissionDenied, _) => ApiError::forbidden(message),
        _ => ApiError::unauthorized(message),
    }
}

async fn converse(ingest: Arc<Ingest>, admitted: Admitted, connection: Connection, socket: WebSocket) {
    let (sink, stream) = socket.split();
    let (mut up, mut down) = (Up::new(stream), Down(sink));
    let ended = tokio::select! {
        () = ingest.tasks.stopping().cancelled() => Err(Status::unavailable("the collector is stopping; connect again")),
        ended = welcome(&ingest, admitted, &connection, &mut up, &mut down) => ended,
    };
    // Reads what the agent still sends: otherwise the agent's operating system would discard our last message. The wait is short if the
    // agent does not answer: the stream ends in any case.
    let parting = async {
        down.end(ended).await?;
        while up.next().await?.is_some() {}
        Ok::<_, Status>(())
    };
    let _gone = timeout(END_WITHIN, parting).await;
}

async fn welcome(
    ingest: &Ingest,
    admitted: Admitted,
    connection: &Connection,
    up: &mut Up,
    down: &mut Down,
) -> Result<(), Status> {
    let first = timeout(HELLO_WITHIN, up.next())
        .await
        .map_err(|_| hello::late())?
        .map_err(|status| {
            if connection.is_exhausted() {
                hello::too_long()
            } else {
                status
            }
        })?;
    let (session, ack) = hello::greet(ingest, admitted, expect_hello(first)?).await?;
    connection.read_without_limit();
    let _counted = OpenStream::count(ingest, session.node.clone());
    down.send(telemetry_down::Message::Hello(ack)).await?;
    super::serve(ingest, &session, up, down).await
}

fn expect_hello(message: Option<telemetry_up::Message>) -> Result<Hello, Status> {
    match message {
        Some(telemetry_up::Message::Hello(hello)) => Ok(hello),
        _ => Err(hello::missing()),
    }
}

impl Up {
    fn new(socket: SplitStream<WebSocket>) -> Self {
        let mut silence = interval(SILENCE_MAX);
        silence.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            socket,
            silence,
            heard: true,
            deaf: false,
            stops: false,
        }
    }

    /// Returns true if the agent closed the stream because it is stopping.
    pub(super) fn stops(&self) -> bool {
        self.stops
    }

    /// Returns the next message, or `None` if the agent closed the stream.
    pub(super) async fn next(&mut self) -> Result<Option<telemetry_up::Message>, Status> {
        let next = self.next_in_turn(None, |_| Poll::Ready(())).await?;
        Ok(next.map(|(message, ())| message))
    }

    /// Returns the next message and the turn in which it was read. Without a turn nothing is read, and data waits in the operating system's
    /// buffers. A turn ends when there is nothing to read.
    pub(super) async fn next_in_turn<T>(
        &mut self,
        mut turn: Option<T>,
        mut next_turn: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Result<Option<(telemetry_up::Message, T)>, Status> {
        let Self {
            socket,
            silence,
            heard,
            deaf,
            stops,
        } = self;
        loop {
            let message = poll_fn(|context| {
                let taken = turn.take().map_or_else(|| next_turn(context), Poll::Ready);
                *deaf = taken.is_pending();
                let turn = ready!(taken);
                let message = socket.poll_next_unpin(context);
                message.map(|message| (message, turn))
            });
            tokio::select! {
                biased;
                // First: time in which the socket was not read does not count as silence.
                _ = silence.tick() => {
                    if !std::mem::take(heard) && !*deaf {
                        return Err(Status::deadline_exceeded(format!(
                            "no message was received for {} s",
                            SILENCE_MAX.as_secs()
                        )));
                    }
                }
                (message, read_in) = message => {
                    *heard = true;
                    match message {
                        None => return Ok(None),
                        Some(Ok(Message::Close(frame))) => {
                            *stops = frame.is_some_and(|frame| frame.code == CLOSE_STOPPING);
                            return Ok(None);
                        }
                        Some(Ok(Message::Binary(bytes))) => {
                            let message = TelemetryUp::decode(bytes)
                                .map_err(|error| Status::invalid_argument(format!("a malformed message: {error}")))?;
                            // Otherwise a message type of a newer agent, which this collector does not support.
                            if let Some(message) = message.message {
                                return Ok(Some((message, read_in)));
                            }
                        }
                        Some(Ok(_)) => {}
                        Some(Err(error)) => return Err(Status::unavailable(error.to_string())),
                    }
                    turn = Some(read_in);
                }
            }
        }
    }
}

impl Down {
    /// Sends a message.
    pub(super) async fn send(&mut self, message: telemetry_down::Message) -> Result<(), Status> {
        let message = TelemetryDown {
            message: Some(message),
        };
        let sent = self.0.send(Message::Binary(message.encode_to_vec().into()));
        match timeout(TAKEN_WITHIN, sent).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(Status::cancelled("the agent is gone")),
        }
    }

    async fn end(mut self, ended: Result<(), Status>) -> Result<(), Status> {
        if let Err(status) = ended {
            let end = End {
                code: status.code() as u32,
                message: status.message().to_owned(),
            };
            self.send(telemetry_down::Message::End(end)).await?;
        }
        self.0
            .send(Message::Close(None))
            .await
            .map_err(|error| Status::unavailable(error.to_string()))
    }
}
