//! The byte stream of a connection: limited until it has authenticated, and closed when it is evicted or too slow.
//!
//! Bytes that an unauthenticated client sends beyond its limit are not read and stay in the operating system's buffers: an
//! HTTP/2 client sends its body before the handler of the request has seen the token.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::connections::{Connection, Slot};

/// The stream that hyper reads and writes, inside of TLS.
pub(crate) struct GuardedStream<S> {
    inner: S,
    slot: Arc<Slot>,
    /// Set until the connection has authenticated.
    watch: Option<Watch>,
}

/// The events that end a connection that has not authenticated.
struct Watch {
    evicted: Pin<Box<WaitForCancellationFutureOwned>>,
    deadline: Pin<Box<Sleep>>,
}

impl<S> GuardedStream<S> {
    pub(crate) fn new(inner: S, slot: Arc<Slot>) -> Self {
        let connection = slot.connection();
        let watch = Watch {
            evicted: Box::pin(connection.evicted().clone().cancelled_owned()),
            deadline: Box::pin(sleep_until(connection.deadline())),
        };
        Self {
            inner,
            slot,
            watch: Some(watch),
        }
    }

    /// Fails if the connection must end.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let Some(watch) = &mut self.watch else {
            return Ok(());
        };
        let connection = self.slot.connection();
        if connection.is_authenticated() {
            self.watch = None;
            return Ok(());
        }
        watch.check(connection, context)
    }
}

impl Watch {
    fn check(&mut self, connection: &Connection, context: &mut Context<'_>) -> io::Result<()> {
        if self.evicted.as_mut().poll(context).is_ready() {
            return Err(evicted());
        }
        while self.deadline.as_mut().poll(context).is_ready() {
            let deadline = connection.deadline();
            if deadline <= Instant::now() {
                return Err(timeout_error());
            }
            self.deadline.as_mut().reset(deadline);
        }
        Ok(())
    }
}

pub(crate) fn evicted() -> io::Error {
    io::Error::new(
        io::ErrorKind::ConnectionAborted,
        "closed in favour of a newer connection because it had not authenticated",
    )
}

pub(crate) fn timeout_error() -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        "closed because the client was too slow and had not authenticated",
    )
}

fn read_limit_error() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the client sent more than the limit")
}

impl<S: AsyncRead + Unpin> AsyncRead for GuardedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        if self.slot.connection().readable() == Some(0) {
            // Register first. Otherwise a limit that is raised in between would wake no task.
            self.slot.connection().wake_when_readable(context.waker());
        }
        let connection = self.slot.connection();
        let readable = match connection.readable() {
            None => return Pin::new(&mut self.inner).poll_read(context, buffer),
            Some(0) if connection.is_authenticated() => return Poll::Ready(Err(read_limit_error())),
            Some(0) => return Poll::Pending,
            Some(readable) => readable,
        };
        let room = buffer.remaining().min(readable);
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(room));
        ready!(Pin::new(&mut self.inner).poll_read(context, &mut part))?;
        let read = part.filled().len();
        buffer.advance(read);
        self.slot.connection().count_read(read);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for GuardedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.inner).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
