//! The agent's side of the telemetry stream: a WebSocket on which each binary message is one protobuf message.
//!
//! ```text
//! GET /lockstep.wire.v1/telemetry, Authorization: Bearer TOKEN ─▶ 101
//! Sending:   TelemetryUp ─▶ binary message            Receiving: TelemetryDown ◀─ binary message; End ─▶ a status
//! ```
//! A node sends 2 KB per second. With a gRPC stream, the transport cost the collector more than storing the samples. So samples use a
//! connection of their own, with only a length between the socket and the message.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use prost::Message as _;
use prost::bytes::Bytes;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::ClientRequestBuilder;
use tokio_tungstenite::tungstenite::http::{Response, StatusCode, Uri};
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Message};
use tonic::{Code, Status};

use crate::busy;
use crate::proto::{TelemetryDown, TelemetryUp, telemetry_down, telemetry_up};
use crate::version::MESSAGE_BYTES_MAX;

/// The URL path of the stream on the collector.
pub const PATH: &str = "/lockstep.wire.v1/telemetry";
/// The WebSocket close code (going away, RFC 6455) of an agent that stops as planned. A broken stream has no close code.
pub const CLOSE_STOPPING: u16 = 1_001;
/// Time limit for TCP, TLS and the upgrade together.
const OPEN_WITHIN: Duration = Duration::from_secs(5);
/// Size of either end's read buffer: two seconds of a node's samples. A collector can hold a thousand of these buffers.
pub const READ_BUFFER_BYTES: usize = 4 << 10;
/// Longest frame that is sent. A longer message is split. The receiver of a frame keeps a buffer of its length until the connection ends:
/// batches of one minute from a thousand nodes that backfilled left a collector with 190 MB of buffers.
const FRAME_BYTES_MAX: usize = 16 << 10;

/// A collector's address, and how to verify the collector.
#[derive(Clone)]
pub struct Endpoint {
    uri: Uri,
    address: (String, u16),
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// An invalid address or certificate.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The address does not start with `http://` or `https://`.
    #[error("it is not an address like http://collector:8470")]
    Url,
    /// The file contains no certificate, or an invalid one.
    #[error("the certificate authority cannot be used")]
    Authority(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Why a stream could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// TCP or TLS failed.
    #[error("no connection")]
    Connect(#[from] io::Error),
    /// The collector did not answer in time.
    #[error("no connection within {} s", OPEN_WITHIN.as_secs())]
    Late,
    /// The server answered, but rejected the stream.
    #[error(transparent)]
    Refused(#[from] Status),
}

/// The byte stream below a WebSocket: TCP or TLS.
trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

type Socket = WebSocketStream<Box<dyn Transport>>;

/// The agent's half of a stream.
pub struct Sending {
    socket: SplitSink<Socket, Message>,
    /// Frames that are queued and not yet passed to the socket, in order.
    frames: VecDeque<Message>,
}

/// The collector's half of a stream.
pub struct Receiving {
    socket: SplitStream<Socket>,
    heard: Instant,
}

impl Endpoint {
    /// Creates an endpoint for a collector at `http://…`, or at `https://…` with a certificate issued by `authority_pem`.
    ///
    /// # Errors
    /// See [`EndpointError`].
    pub fn new(url: &str, authority_pem: Option<&[u8]>) -> Result<Self, EndpointError> {
        let uri: Uri = url.parse().map_err(|_| EndpointError::Url)?;
        let (host, authority) = uri.host().zip(uri.authority()).ok_or(EndpointError::Url)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let (scheme, port, tls) = match uri.scheme_str() {
            Some("http") => ("ws", 80, None),
            Some("https") => {
                let name = ServerName::try_from(host.clone()).map_err(|_| EndpointError::Url)?;
                let connector =
                    connector(authority_pem.unwrap_or_default()).map_err(EndpointError::Authority)?;
                ("wss", 443, Some((connector, name)))
            }
            _ => return Err(EndpointError::Url),
        };
        let port = authority.port_u16().unwrap_or(port);
        let uri = format!("{scheme}://{authority}{PATH}").parse();
        Ok(Self {
            uri: uri.map_err(|_| EndpointError::Url)?,
            address: (host, port),
            tls,
        })
    }

    /// Connects and sends a token. The caller sends the hello and handles the collector's answer.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open(&self, token: &str) -> Result<(Sending, Receiving), OpenError> {
        tokio::time::timeout(OPEN_WITHIN, self.connect(token))
            .await
            .map_err(|_| OpenError::Late)?
    }

    async fn connect(&self, token: &str) -> Result<(Sending, Receiving), OpenError> {
        let (host, port) = &self.address;
        let stream = TcpStream::connect((host.as_str(), *port)).await?;
        // A batch is smaller than a packet. It must not wait for the next one.
        stream.set_nodelay(true)?;
        let stream: Box<dyn Transport> = match &self.tls {
            None => Box::new(stream),
            Some((connector, name)) => Box::new(connector.connect(name.clone(), stream).await?),
        };
        let request = ClientRequestBuilder::new(self.uri.clone())
            .with_header("Authorization", format!("Bearer {token}"));
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER_BYTES)
            .write_buffer_size(0)
            .max_message_size(Some(MESSAGE_BYTES_MAX))
            .max_frame_size(Some(MESSAGE_BYTES_MAX));
        let opened = tokio_tungstenite::client_async_with_config(request, stream, Some(config)).await;
        let (socket, _) = opened.map_err(refusal)?;
        let (sending, receiving) = socket.split();
        let heard = Instant::now();
        Ok((
            Sending {
                socket: sending,
                frames: VecDeque::new(),
            },
            Receiving {
                socket: receiving,
                heard,
            },
        ))
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Endpoint").field(&self.uri).finish()
    }
}

impl Sending {
    /// Waits until the stream can take a message. Cancel safe: nothing is lost if the wait is cancelled.
    ///
    /// # Errors
    /// If the stream is closed.
    pub async fn ready(&mut self) -> Result<(), Status> {
        loop {
            poll_fn(|context| self.socket.poll_ready_unpin(context))
                .await
                .map_err(broken)?;
            let Some(frame) = self.frames.pop_front() else {
                return Ok(());
            };
            self.socket.start_send_unpin(frame).map_err(broken)?;
        }
    }

    /// Queues a message; call [`Sending::ready`] first. [`Sending::flush`] sends it.
    ///
    /// # Errors
    /// If the stream is closed.
    pub fn put(&mut self, message: telemetry_up::Message) -> Result<(), Status> {
        let message = TelemetryUp {
            message: Some(message),
        };
        self.frames.extend(frames(message.encode_to_vec().into()));
        match self.frames.pop_front() {
            Some(first) => self.socket.start_send_unpin(first).map_err(broken),
            None => Ok(()),
        }
    }

    /// Waits until all queued messages are sent. Cancel safe: nothing is lost if the wait is cancelled.
    ///
    /// # Errors
    /// If the stream is closed.
    pub async fn flush(&mut self) -> Result<(), Status> {
        if !self.frames.is_empty() {
            self.ready().await?;
        }
        SinkExt::flush(&mut self.socket).await.map_err(broken)
    }

    /// Waits, queues and flushes. If a send is cancelled, the message may or may not have been sent.
    ///
    /// # Errors
    /// If the stream is closed.
    pub async fn send(&mut self, message: telemetry_up::Message) -> Result<(), Status> {
        self.ready().await?;
        self.put(message)?;
        self.flush().await
    }

    /// Ends the stream with [`CLOSE_STOPPING`], which reports that the agent stops.
    ///
    /// # Errors
    /// If the stream is closed.
    pub async fn stop(&mut self) -> Result<(), Status> {
        self.flush().await?;
        let frame = CloseFrame {
            code: CLOSE_STOPPING.into(),
            reason: "the agent stops".into(),
        };
        self.socket
            .send(Message::Close(Some(frame)))
            .await
            .map_err(broken)
    }

    /// Sends a ping. The answer shows that the collector is alive.
    ///
    /// # Errors
    /// If the stream is closed.
    pub async fn ping(&mut self) -> Result<(), Status> {
        let ping = Message::Ping(Vec::new().into());
        self.socket.send(ping).await.map_err(broken)
    }
}

/// Splits a binary message into frames of bounded length.
fn frames(mut message: Bytes) -> impl Iterator<Item = Message> {
    let mut first = true;
    std::iter::from_fn(move || {
        if message.is_empty() && !first {
            return None;
        }
        let payload = message.split_to(message.len().min(FRAME_BYTES_MAX));
        let kind = if first { Data::Binary } else { Data::Continue };
        first = false;
        Some(Message::Frame(Frame::message(
            payload,
            OpCode::Data(kind),
            message.is_empty(),
        )))
    })
}

impl Receiving {
    /// Returns the next message, or `None` if the collector closed the stream without an `End` message. Cancel safe.
    ///
    /// # Errors
    /// The status from the collector's `End` message, or the error that broke the connection.
    pub async fn next(&mut self) -> Result<Option<telemetry_down::Message>, Status> {
        loop {
            let Some(message) = self.socket.next().await else {
                return Ok(None);
            };
            self.heard = Instant::now();
            match message {
                Ok(Message::Binary(bytes)) => {
                    let message = TelemetryDown::decode(bytes)
                        .map_err(|error| Status::internal(format!("a malformed message: {error}")))?;
                    match message.message {
                        Some(telemetry_down::Message::End(end)) => {
                            let code = Code::from(i32::try_from(end.code).unwrap_or_default());
                            return Err(Status::new(code, end.message));
                        }
                        Some(message) => return Ok(Some(message)),
                        // A message type of a newer collector that this agent does not know.
                        None => {}
                    }
                }
                Ok(Message::Close(_)) => return Ok(None),
                Ok(_) => {}
                Err(error) => return Err(broken(error)),
            }
        }
    }

    /// When anything was received last, including pings and pongs.
    #[must_use]
    pub fn heard(&self) -> Instant {
        self.heard
    }
}

fn connector(authority_pem: &[u8]) -> Result<TlsConnector, Box<dyn std::error::Error + Send + Sync>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority_pem) {
        roots.add(certificate?)?;
    }
    if roots.is_empty() {
        return Err("it contains no certificate".into());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Converts the collector's answer to a failed upgrade.
fn refusal(error: tungstenite::Error) -> OpenError {
    match error {
        tungstenite::Error::Io(error) => OpenError::Connect(error),
        tungstenite::Error::Http(response) => OpenError::Refused(refused(&response)),
        error => OpenError::Refused(broken(error)),
    }
}

/// Converts an HTTP error response to a status. `Retry-After` is kept: see [`crate::busy`].
fn refused(response: &Response<Option<Vec<u8>>>) -> Status {
    let (code, hint) = match response.status() {
        StatusCode::UNAUTHORIZED => (
            Code::Unauthenticated,
            "the agent's token is unknown, expired or revoked; get a new one with `lockstep token join`",
        ),
        StatusCode::FORBIDDEN => (
            Code::PermissionDenied,
            "this token does not allow an agent to join; get one with `lockstep token join`",
        ),
        StatusCode::NOT_FOUND => (Code::Unimplemented, "is there a collector at this address?"),
        _ => (
            Code::Unavailable,
            "the collector accepts no samples at the moment",
        ),
    };
    let mut status = Status::new(code, format!("{}: {hint}", response.status()));
    let retry_after = response
        .headers()
        .get(busy::RETRY_AFTER)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.parse().ok());
    if let Some(retry_after) = retry_after {
        status.metadata_mut().insert(busy::RETRY_AFTER, retry_after);
    }
    status
}

fn broken(error: tungstenite::Error) -> Status {
    Status::unavailable(format!("the connection broke: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_frames_of_bounded_length() {
        for (length, expected) in [
            (0, vec![0]),
            (5, vec![5]),
            (FRAME_BYTES_MAX, vec![FRAME_BYTES_MAX]),
            (2 * FRAME_BYTES_MAX + 1, vec![FRAME_BYTES_MAX, FRAME_BYTES_MAX, 1]),
        ] {
            let sent: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let frames: Vec<Frame> = frames(sent.clone().into())
                .map(|message| match message {
                    Message::Frame(frame) => frame,
                    other => panic!("{other:?} is no frame"),
                })
                .collect();
            let lengths: Vec<usize> = frames.iter().map(|frame| frame.payload().len()).collect();
            assert_eq!(lengths, expected);
            let last = frames.len() - 1;
            for (at, frame) in frames.iter().enumerate() {
                let kind = if at == 0 { Data::Binary } else { Data::Continue };
                assert_eq!(frame.header().opcode, OpCode::Data(kind));
                assert_eq!(frame.header().is_final, at == last);
            }
            let received: Vec<u8> = frames.iter().flat_map(|frame| frame.payload().to_vec()).collect();
            assert_eq!(received, sent);
        }
    }

    #[test]
    fn an_answer_without_upgrade_becomes_a_status_that_keeps_retry_after() {
        let status = |code: u16| {
            let response = Response::builder().status(code).header("retry-after", "2");
            refused(&response.body(None).expect("a response"))
        };
        for (code, expected) in [
            (401, Code::Unauthenticated),
            (403, Code::PermissionDenied),
            (404, Code::Unimplemented),
            (503, Code::Unavailable),
        ] {
            assert_eq!(status(code).code(), expected, "{code}");
        }
        assert_eq!(busy::retry_after(&status(503)), Some(Duration::from_secs(2)));
    }

    #[test]
    fn an_address_gives_host_port_and_path() {
        let endpoint = |url: &str| Endpoint::new(url, None);
        let plain = endpoint("http://collector:8470/").expect("an address");
        assert_eq!(plain.address, ("collector".to_owned(), 8470));
        assert_eq!(plain.uri, "ws://collector:8470/lockstep.wire.v1/telemetry");
        let bare = endpoint("http://[::1]").expect("an address");
        assert_eq!(bare.address, ("::1".to_owned(), 80));
        assert!(matches!(endpoint("collector:8470"), Err(EndpointError::Url)));
        assert!(matches!(endpoint("ftp://collector"), Err(EndpointError::Url)));
        assert!(matches!(
            endpoint("https://collector"),
            Err(EndpointError::Authority(_))
        ));
    }
}
