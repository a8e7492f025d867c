//! One question to one rank: `POST /handler/NAME` to PyTorch's worker server, over its UNIX socket.
//!
//! The server runs in a process that anything may be wrong with, and the socket may be anybody's of that user: the answer is bounded in time
//! and size, and nothing in it is trusted or unpickled.

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

/// The longest answer that is read: the Flight Recorder of 10,000 collectives.
const BODY_BYTES_MAX: usize = 8 << 20;
/// The longest head of an answer.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// `sun_path` holds 108 bytes with its zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Why there is no answer, in words that follow the rank's name.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    /// No socket, or nobody behind it.
    #[error(
        "cannot be asked: it has not imported torch yet, is ending, has a PyTorch before 2.4, or has no worker server \
         (LOCKSTEP_WORKER_SERVER=off, or python -I)"
    )]
    NoServer,
    /// Time is up.
    #[error("did not answer within {0} s: its code may hold Python's lock (GIL) and not let go")]
    Silent(u64),
    /// This torch cannot.
    #[error("its PyTorch does not tell")]
    NoHandler,
    /// An HTTP error.
    #[error("answered with HTTP status {0}")]
    Refused(StatusCode),
    /// More than is read.
    #[error("answered with more than {BODY_BYTES_MAX} bytes")]
    TooLong,
    /// No HTTP, or an end in the middle.
    #[error("answered with what cannot be read: {0}")]
    Garbled(#[source] hyper::Error),
    /// The socket.
    #[error("cannot be asked: {0}")]
    Io(#[source] io::Error),
}

/// Asks a handler, and reads all it says.
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

/// By way of the open folder where the path is longer than the kernel takes.
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
