//! The agent's side of the control stream without TLS, for programs that simulate agents.
//!
//! ```text
//! gRPC Uplink/Control, Authorization: Bearer TOKEN
//!   ControlStream::send:   Hello, Holding, then ControlUp ─▶            ControlStream::next: ◀─ HelloAck, then ControlDown
//! ```

use futures::{StreamExt, stream};
use tokio::sync::mpsc;
use tonic::codec::CompressionEncoding;
use tonic::metadata::errors::InvalidMetadataValue;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Request, Status, Streaming, transport};

use crate::proto::uplink_client::UplinkClient;
use crate::proto::{ControlDown, ControlUp, Hello, Holding, control_down, control_up};
use crate::version::MESSAGE_BYTES_MAX;

/// The maximum number of messages that wait to be written. The same as that of an agent. When the queue is full, the sender waits.
const OUTBOUND_MAX: usize = 64;

/// Why a control stream could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL is malformed, or nothing accepts connections there.
    #[error("no connection")]
    Connect(#[from] transport::Error),
    /// The token contains characters that a header cannot contain.
    #[error("the token cannot be sent in a header")]
    Token(#[source] InvalidMetadataValue),
    /// The collector rejected the stream; see also [`crate::busy`].
    #[error(transparent)]
    Refused(#[from] Status),
    /// The first message of the collector is not a hello, or there is none.
    #[error("the control stream does not begin with a hello")]
    NoHello,
}

/// An open control stream.
#[derive(Debug)]
pub struct ControlStream {
    outgoing: mpsc::Sender<ControlUp>,
    incoming: Streaming<ControlDown>,
}

impl From<control_up::Message> for ControlUp {
    fn from(message: control_up::Message) -> Self {
        Self {
            message: Some(message),
        }
    }
}

/// Connects to a collector at `http://…`, sends the hello and what the node holds, and waits for the collector's hello.
///
/// # Errors
/// See [`OpenError`].
pub async fn open(
    url: &str,
    token: &str,
    hello: Hello,
    holding: Holding,
) -> Result<ControlStream, OpenError> {
    let client = UplinkClient::connect(url.to_owned()).await?;
    let mut client = client
        .send_compressed(CompressionEncoding::Zstd)
        .max_decoding_message_size(MESSAGE_BYTES_MAX);
    let bearer: MetadataValue<Ascii> = format!("Bearer {token}").parse().map_err(OpenError::Token)?;
    let (outgoing, mut waiting) = mpsc::channel(OUTBOUND_MAX);
    let first = [
        control_up::Message::Hello(hello),
        control_up::Message::Holding(holding),
    ];
    let rest = stream::poll_fn(move |context| waiting.poll_recv(context));
    let mut request = Request::new(stream::iter(first.map(ControlUp::from)).chain(rest));
    request.metadata_mut().insert("authorization", bearer);
    let mut incoming = client.control(request).await?.into_inner();
    match incoming.message().await?.and_then(|down| down.message) {
        Some(control_down::Message::Hello(_)) => Ok(ControlStream { outgoing, incoming }),
        _ => Err(OpenError::NoHello),
    }
}

impl ControlStream {
    /// Sends a message after those that wait.
    ///
    /// # Errors
    /// If the stream is closed.
    pub async fn send(&self, message: control_up::Message) -> Result<(), Status> {
        let sent = self.outgoing.send(message.into()).await;
        sent.map_err(|_| Status::unavailable("the control stream is closed"))
    }

    /// Returns the next message, or `None` if the collector closed the stream. Cancel safe.
    ///
    /// # Errors
    /// The status with which the collector ended the stream, or the error that broke the connection.
    pub async fn next(&mut self) -> Result<Option<control_down::Message>, Status> {
        while let Some(down) = self.incoming.message().await? {
            // A message type of a newer collector, which this build does not know, is `None`.
            if down.message.is_some() {
                return Ok(down.message);
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_on_which_no_collector_listens_is_no_connection() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await;
        let port = listener
            .and_then(|free| free.local_addr())
            .expect("a port")
            .port();
        let url = format!("http://127.0.0.1:{port}");
        let opened = open(&url, "token", Hello::default(), Holding::default()).await;
        assert!(matches!(opened, Err(OpenError::Connect(_))), "{opened:?}");
    }
}
