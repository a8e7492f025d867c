//! Serves new connections: counts them, limits unauthenticated ones, and sets the limits of HTTP.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::connect_info::IntoMakeServiceWithConnectInfo;
use axum_server::accept::{Accept, NoDelayAcceptor};
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use axum_server::{Handle, Server};
use futures::FutureExt;
use futures::future::BoxFuture;
use http::Request;
use tokio::net::TcpStream;
use tokio::time::timeout_at;
use tower::Service;

use crate::connections::{Connections, Slot};
use crate::http::bound;
use crate::stream::{GuardedStream, evicted, timeout_error};

/// Serves `router` until `handle` shuts it down: counts the connections, limits those that have not authenticated, and sets the
/// limits of HTTP itself. Each request has its [`Connection`](crate::Connection) and the address of the client in its
/// extensions.
///
/// # Errors
/// Fails if the socket cannot accept connections.
pub async fn serve(
    socket: TcpListener,
    tls: Option<RustlsConfig>,
    router: Router,
    connections: Connections,
    handle: Handle<SocketAddr>,
) -> io::Result<()> {
    let mut server = axum_server::from_tcp(socket)?.handle(handle);
    bound(server.http_builder(), connections.head_timeout());
    let admission = Admission {
        services: router.into_make_service_with_connect_info(),
        connections,
    };
    // With TCP_NODELAY. Otherwise the last part of a long response would wait until the client acknowledges the part before it,
    // which the client's system delays by 40 ms.
    let acceptor = NoDelayAcceptor::new();
    match tls {
        None => guarded(server, acceptor).serve(admission).await,
        Some(tls) => {
            let acceptor = RustlsAcceptor::new(tls).acceptor(acceptor);
            guarded(server, acceptor).serve(admission).await
        }
    }
}

fn guarded<Old, A>(server: Server<SocketAddr, Old>, inner: A) -> Server<SocketAddr, Gate<A>> {
    server.acceptor(Gate { inner })
}

/// Counts each connection when the server accepts it, and closes the oldest unauthenticated one if there are too many.
///
/// The server calls this before it starts the task of the connection, so connections are counted in the order of their arrival.
/// Tasks start in any order: among many silent connections the newest one could otherwise count as the oldest and be closed.
struct Admission {
    services: IntoMakeServiceWithConnectInfo<Router, SocketAddr>,
    connections: Connections,
}

impl Service<SocketAddr> for Admission {
    type Response =
        Admitted<<IntoMakeServiceWithConnectInfo<Router, SocketAddr> as Service<SocketAddr>>::Response>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Service::<SocketAddr>::poll_ready(&mut self.services, context).map_err(|never| match never {})
    }

    fn call(&mut self, peer: SocketAddr) -> Self::Future {
        let slot = self.connections.open(peer.ip());
        let service = self.services.call(peer);
        async move {
            let slot = slot.ok_or(io::ErrorKind::ConnectionRefused)?;
            let Ok(inner) = service.await;
            Ok(Admitted {
                inner,
                slot: Arc::new(slot),
            })
        }
        .boxed()
    }
}

/// The service of an admitted connection. It adds the [`Connection`](crate::Connection) to each request.
#[derive(Clone)]
struct Admitted<S> {
    inner: S,
    slot: Arc<Slot>,
}

impl<S: Service<Request<B>>, B> Service<Request<B>> for Admitted<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let connection = self.slot.connection();
        connection.request_began();
        request.extensions_mut().insert(connection.clone());
        self.inner.call(request)
    }
}

/// Guards the stream that `inner` makes of a connection, with or without TLS.
#[derive(Clone)]
struct Gate<A> {
    inner: A,
}

impl<A, S> Accept<TcpStream, Admitted<S>> for Gate<A>
where
    A: Accept<TcpStream, Admitted<S>>,
    A::Future: Send + 'static,
    A::Stream: Send,
    A::Service: Send,
{
    type Stream = GuardedStream<A::Stream>;
    type Service = A::Service;
    type Future = BoxFuture<'static, io::Result<(Self::Stream, Self::Service)>>;

    fn accept(&self, stream: TcpStream, service: Admitted<S>) -> Self::Future {
        let slot = Arc::clone(&service.slot);
        let accepted = self.inner.accept(stream, service);
        async move {
            let connection = slot.connection();
            let (stream, service) = tokio::select! {
                () = connection.evicted().cancelled() => return Err(evicted()),
                accepted = timeout_at(connection.deadline(), accepted) => accepted.map_err(|_| timeout_error())??,
            };
            Ok((GuardedStream::new(stream, slot), service))
        }
        .boxed()
    }
}
