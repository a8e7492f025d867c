//! The server that an agent connects to: accepts its two streams, and passes on each message as bytes.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::http::HeaderMap;
use axum::response::Response as Answer;
use axum::routing::any;
use futures::future::BoxFuture;
use futures::{Stream, StreamExt as _};
use prost::Message as _;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::CompressionEncoding;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};
use wire::proto::uplink_server::{Uplink, UplinkServer};
use wire::proto::{ControlDown, ControlUp};
use wire::recording;
use wire::version::MESSAGE_BYTES_MAX;

/// The most messages in transit in one direction of one stream. Beyond it the sender waits.
const WAITING_MAX: usize = 64;

/// One stream of an agent.
pub(super) struct Conversation {
    pub(super) stream: recording::Stream,
    /// The token without `Bearer`.
    pub(super) token: String,
    /// Messages from the agent; closed when the agent closes the stream.
    pub(super) up: mpsc::Receiver<Vec<u8>>,
    /// Messages to the agent; the stream is closed when this is dropped.
    pub(super) down: mpsc::Sender<Vec<u8>>,
}

/// The function that handles a stream.
pub(super) type Serve = dyn Fn(Conversation) -> BoxFuture<'static, ()> + Send + Sync;

/// A listener on a free port. The listener and its streams end when this is dropped.
pub(super) struct AgentServer {
    pub(super) address: SocketAddr,
    runtime: Option<Runtime>,
}

#[derive(Clone)]
struct Service(Arc<Serve>);

impl AgentServer {
    pub(super) fn open(
        serve: impl Fn(Conversation) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        let runtime = Runtime::new().unwrap();
        let listener = runtime
            .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
            .unwrap();
        let address = listener.local_addr().unwrap();
        let service = Service(Arc::new(serve));
        let uplink = UplinkServer::new(service.clone())
            .accept_compressed(CompressionEncoding::Zstd)
            .max_decoding_message_size(MESSAGE_BYTES_MAX);
        let telemetry = Router::new().route(wire::telemetry::PATH, any(telemetry));
        let both = Routes::new(uplink)
            .into_axum_router()
            .reset_fallback()
            .merge(telemetry.with_state(service));
        runtime.spawn(async move { axum::serve(listener, both).await.unwrap() });
        Self {
            address,
            runtime: Some(runtime),
        }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for AgentServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn bearer(header: Option<&str>) -> String {
    let token = header.and_then(|header| header.strip_prefix("Bearer "));
    token.expect("an agent names its token").to_owned()
}

async fn telemetry(State(service): State<Service>, headers: HeaderMap, upgrade: WebSocketUpgrade) -> Answer {
    let token = bearer(headers["authorization"].to_str().ok());
    upgrade
        .max_message_size(MESSAGE_BYTES_MAX)
        .on_upgrade(|socket| exchange(service, token, socket))
}

async fn exchange(service: Service, token: String, socket: WebSocket) {
    use futures::SinkExt as _;
    let (mut sink, mut stream) = socket.split();
    let (to_server, up) = mpsc::channel(WAITING_MAX);
    let (down, mut to_agent) = mpsc::channel::<Vec<u8>>(WAITING_MAX);
    let served = (service.0)(Conversation {
        stream: recording::Stream::Telemetry,
        token,
        up,
        down,
    });
    let upwards = async move {
        while let Some(Ok(message)) = stream.next().await {
            if let Message::Binary(bytes) = message
                && to_server.send(bytes.to_vec()).await.is_err()
            {
                return;
            }
        }
    };
    let downwards = async move {
        while let Some(bytes) = to_agent.recv().await {
            if sink.send(Message::Binary(bytes.into())).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = served => {}
        ((), ()) = async { tokio::join!(upwards, downwards) } => {}
    }
}

#[tonic::async_trait]
impl Uplink for Service {
    type ControlStream = Pin<Box<dyn Stream<Item = Result<ControlDown, Status>> + Send>>;

    async fn control(
        &self,
        request: Request<Streaming<ControlUp>>,
    ) -> Result<Response<Self::ControlStream>, Status> {
        let token = bearer(
            request
                .metadata()
                .get("authorization")
                .and_then(|value| value.to_str().ok()),
        );
        let mut inbound = request.into_inner();
        let (to_server, up) = mpsc::channel(WAITING_MAX);
        let (down, to_agent) = mpsc::channel(WAITING_MAX);
        tokio::spawn((self.0)(Conversation {
            stream: recording::Stream::Control,
            token,
            up,
            down,
        }));
        tokio::spawn(async move {
            while let Ok(Some(message)) = inbound.message().await {
                if to_server.send(message.encode_to_vec()).await.is_err() {
                    return;
                }
            }
        });
        let decoded = ReceiverStream::new(to_agent).map(|bytes: Vec<u8>| {
            ControlDown::decode(bytes.as_slice()).map_err(|error| Status::internal(error.to_string()))
        });
        Ok(Response::new(Box::pin(decoded)))
    }
}
