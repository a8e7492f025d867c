//! What a listener does with each new connection.

use std::io;
use std::task::{Context, Poll};

use axum_server::accept::Accept;
use axum_server::{Address, Server};
use futures::FutureExt;
use futures::future::BoxFuture;
use http::Request;
use tokio::net::TcpStream;
use tokio::time::timeout_at;
use tower::Service;

use crate::connections::{Connection, Connections};
use crate::http::bound;
use crate::stream::{GuardedStream, evicted, late};

/// Counts the connections of a server, limits the unauthenticated ones, and sets the bounds of HTTP itself.
pub fn guard<A: Address, Acceptor>(
    server: Server<A, Acceptor>,
    connections: Connections,
) -> Server<A, Gate<Acceptor>> {
    let head_within = connections.head_within();
    let mut server = server.map(|inner| Gate { inner, connections });
    bound(server.http_builder(), head_within);
    server
}

/// Counts connections before `inner` accepts them (with TLS, or without), and guards what it makes of them.
#[derive(Clone)]
pub struct Gate<A> {
    inner: A,
    connections: Connections,
}

/// A service whose requests carry the [`Connection`] that they came on.
#[derive(Debug, Clone)]
pub struct Announced<S> {
    inner: S,
    connection: Connection,
}

impl<A, S> Accept<TcpStream, S> for Gate<A>
where
    A: Accept<TcpStream, S>,
    A::Future: Send + 'static,
    A::Stream: Send,
    A::Service: Send,
    S: Send,
{
    type Stream = GuardedStream<A::Stream>;
    type Service = Announced<A::Service>;
    type Future = BoxFuture<'static, io::Result<(Self::Stream, Self::Service)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let slot = stream.peer_addr().map(|peer| self.connections.open(peer.ip()));
        let accepted = self.inner.accept(stream, service);
        async move {
            let Some(slot) = slot? else {
                return Err(io::ErrorKind::ConnectionRefused.into());
            };
            let connection = slot.connection().clone();
            let (stream, service) = tokio::select! {
                () = connection.evicted().cancelled() => return Err(evicted()),
                accepted = timeout_at(connection.deadline(), accepted) => accepted.map_err(|_| late())??,
            };
            let service = Announced {
                inner: service,
                connection,
            };
            Ok((GuardedStream::new(stream, slot), service))
        }
        .boxed()
    }
}

impl<S: Service<Request<B>>, B> Service<Request<B>> for Announced<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        self.connection.request_began();
        request.extensions_mut().insert(self.connection.clone());
        self.inner.call(request)
    }
}
