//! Sends one request to one rank: `POST /handler/NAME` to PyTorch's worker server, over its UNIX socket.
//!
//! The rank's process may be faulty, and any process of the same user could have created the socket. So the answer is limited in time and
//! size, and nothing in it is trusted or unpickled.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use rustix::fs::{Mode, OFlags};
use std::os::fd::AsRawFd;
use tokio::net::UnixStream;
use tokio_util::task::AbortOnDropHandle;

/// Maximum size of an answer: the Flight Recorder of 10,000 collectives.
const BODY_BYTES_MAX: usize = 8 << 20;
/// Maximum size of an answer's HTTP header.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// `sun_path` has 108 bytes, including its terminating zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Why there is no answer. The text follows the rank's name.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    /// There is no socket, or no process listens on it.
    #[error(
        "cannot be inspected: it has not imported torch yet, is ending, has a PyTorch before 2.4, or has no worker server \
         (LOCKSTEP_WORKER_SERVER=off, or python -I)"
    )]
    NoServer,
    /// The time limit was reached.
    #[error("did not answer within {0} s: its code may hold the GIL")]
    Silent(u64),
    /// This version of torch has no such handler.
    #[error("its PyTorch does not support this request")]
    NoHandler,
    /// The server returned an HTTP error.
    #[error("answered with HTTP status {0}")]
    Refused(StatusCode),
    /// The answer is longer than the limit.
    #[error("answered with more than {BODY_BYTES_MAX} bytes")]
    TooLong,
    /// The answer is not valid HTTP, or it is incomplete.
    #[error("answered with invalid HTTP: {0}")]
    Garbled(#[source] hyper::Error),
    /// A socket operation failed.
    #[error("cannot be inspected: {0}")]
    Io(#[source] io::Error),
}

/// Calls a handler and reads its complete answer.
pub(super) async fn ask(socket: &Path, handler: &str, within: Duration) -> Result<Vec<u8>, AskError> {
    tokio::time::timeout(within, converse(socket, handler))
        .await
        .unwrap_or(Err(AskError::Silent(within.as_secs())))
}

async fn converse(socket: &Path, handler: &str) -> Result<Vec<u8>, AskError> {
    let stream = connect(socket).await.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => AskError::NoServer,
        _ => AskError::Io(error),
    })?;
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(HEAD_BYTES_MAX)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(AskError::Garbled)?;
    let _carried = AbortOnDropHandle::new(tokio::spawn(connection));
    let request = Request::post(format!("/handler/{handler}"))
        .header(header::HOST, "rank")
        .header(header::CONNECTION, "close")
        .header(header::CONTENT_LENGTH, "0")
        .body(Empty::<Bytes>::new())
        .expect("a fixed request");
    let answer = sender.send_request(request).await.map_err(AskError::Garbled)?;
    let status = answer.status();
    let mut frames = answer.into_body();
    let mut body = Vec::new();
    while let Some(frame) = frames.frame().await {
        if let Ok(data) = frame.map_err(AskError::Garbled)?.into_data() {
            if body.len() + data.len() > BODY_BYTES_MAX {
                return Err(AskError::TooLong);
            }
            body.extend_from_slice(&data);
        }
    }
    match status {
        StatusCode::OK => Ok(body),
        StatusCode::NOT_FOUND => Err(AskError::NoHandler),
        status => Err(AskError::Refused(status)),
    }
}

/// Connects to a socket. If its path is too long for the kernel, it connects through the opened folder.
async fn connect(socket: &Path) -> io::Result<UnixStream> {
    if socket.as_os_str().len() <= SOCKET_PATH_BYTES_MAX {
        return UnixStream::connect(socket).await;
    }
    let folder = socket.parent().unwrap_or(Path::new("."));
    let held = rustix::fs::open(
        folder,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let mut short = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
    short.push(socket.file_name().unwrap_or_default());
    UnixStream::connect(short).await
}
