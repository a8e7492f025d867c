//! Tests a server with limits, from the view of clients that are slow or send too much.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum_server::Handle;
use futures::StreamExt;
use listener::{Connection, Connections, Limits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// Shorter than that of a service.
const HEAD_TIMEOUT: Duration = Duration::from_millis(500);
/// How much later a busy machine may close a connection.
const LATER: Duration = Duration::from_secs(5);
const LIMITS: Limits = Limits {
    total: 40,
    unauthenticated: 20,
    unauthenticated_per_address: 10,
    head_timeout: HEAD_TIMEOUT,
};
/// Other connections must not be closed for being slow.
const PATIENT: Limits = Limits {
    head_timeout: Duration::from_secs(60),
    ..LIMITS
};
const GET: &str = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";
const GET_WITH_TOKEN: &str = "GET / HTTP/1.1\r\nhost: x\r\nauthorization: good\r\n\r\n";

/// Accepts any token, reads the body, and counts its bytes.
async fn answer(State(read): State<Arc<AtomicUsize>>, request: Request) -> &'static str {
    if request.headers().contains_key("authorization") {
        request.extensions().get::<Connection>().unwrap().authenticate();
    }
    let mut body = request.into_body().into_data_stream();
    while let Some(Ok(piece)) = body.next().await {
        read.fetch_add(piece.len(), Ordering::Relaxed);
    }
    "hello"
}

fn serve(limits: Limits) -> (SocketAddr, Connections) {
    let (address, connections, _) = serve_and_count(limits);
    (address, connections)
}

/// Like [`serve`], but also counts the bytes of bodies that were read.
fn serve_and_count(limits: Limits) -> (SocketAddr, Connections, Arc<AtomicUsize>) {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let (connections, read) = serve_on(socket, limits);
    (address, connections, read)
}

fn serve_on(socket: std::net::TcpListener, limits: Limits) -> (Connections, Arc<AtomicUsize>) {
    socket.set_nonblocking(true).unwrap();
    let connections = Connections::new(limits, Vec::new());
    let read = Arc::<AtomicUsize>::default();
    let router = Router::new().fallback(answer).with_state(read.clone());
    tokio::spawn(listener::serve(
        socket,
        None,
        router,
        connections.clone(),
        Handle::new(),
    ));
    (connections, read)
}

async fn open(address: SocketAddr, sends: &str) -> TcpStream {
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(sends.as_bytes()).await.unwrap();
    client
}

/// Returns one response, or what there is of it until the server closes the connection.
async fn read_answer(client: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let mut piece = [0; 1_024];
    while !text.ends_with(b"hello") {
        match client.read(&mut piece).await {
            Ok(0) | Err(_) => break,
            Ok(read) => text.extend_from_slice(&piece[..read]),
        }
    }
    String::from_utf8(text).unwrap()
}

/// Returns how long the server keeps a connection, and what it sends in that time.
async fn until_closed(mut client: TcpStream) -> (Duration, String) {
    let begin = Instant::now();
    let mut text = Vec::new();
    let _reset = client.read_to_end(&mut text).await;
    (begin.elapsed(), String::from_utf8_lossy(&text).into_owned())
}

#[tokio::test]
async fn a_head_has_its_deadline_with_any_first_bytes() {
    let (address, connections) = serve(LIMITS);
    let cases = [
        ("", ""),
        ("G", ""),
        ("GET / HTTP/1.1\r\nhost: x\r\n", ""),
        // The start of the preface of an HTTP/2 connection.
        ("PRI * HTTP/2.0\r\n\r\nSM", ""),
        // The second head of a connection.
        (GET, "HTTP/1.1 200 OK"),
        (GET_WITH_TOKEN, "HTTP/1.1 200 OK"),
    ];
    let closed = cases.map(|(sends, answer)| async move {
        let (took, text) = until_closed(open(address, sends).await).await;
        assert!(text.starts_with(answer), "{sends:?}: {text:?}");
        let in_time = took >= HEAD_TIMEOUT.mul_f64(0.8) && took <= HEAD_TIMEOUT + LATER;
        assert!(in_time, "{sends:?}: closed after {took:?}");
    });
    let all = tokio::time::timeout(4 * LATER, futures::future::join_all(closed));
    all.await.expect("connections without a head are closed");
    while connections.count() != (0, 0) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_head_of_more_than_8_kib_is_refused_in_words() {
    let (address, _) = serve(PATIENT);
    for (length, status) in [
        (7_000, "HTTP/1.1 200"),
        (8_192, "HTTP/1.1 431"),
        (100_000, "HTTP/1.1 431"),
    ] {
        let sends = format!(
            "GET / HTTP/1.1\r\nhost: x\r\nx-long: {}\r\n\r\n",
            "x".repeat(length)
        );
        let mut client = open(address, &sends[..sends.len().min(16 << 10)]).await;
        let text = read_answer(&mut client).await;
        assert!(text.starts_with(status), "{length}: {text:?}");
    }
}

#[tokio::test]
async fn silent_connections_give_way_and_known_ones_do_not() {
    let (address, connections) = serve(PATIENT);
    let mut known = open(address, GET_WITH_TOKEN).await;
    assert!(read_answer(&mut known).await.ends_with("hello"));
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(open(address, "").await);
        let mut new = open(address, GET).await;
        assert!(
            read_answer(&mut new).await.ends_with("hello"),
            "a new client is served"
        );
    }
    assert!(connections.count().1 <= LIMITS.unauthenticated_per_address);
    known.write_all(GET.as_bytes()).await.unwrap();
    assert!(
        read_answer(&mut known).await.ends_with("hello"),
        "it still stands"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_newest_of_many_connections_is_served_in_any_order_of_tasks() {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let crowd: Vec<_> = (0..60)
        .map(|_| std::net::TcpStream::connect(address).unwrap())
        .collect();
    let (begin, rest) = GET.split_at(10);
    let mut newest = open(address, begin).await;
    let (connections, _) = serve_on(socket, PATIENT);
    while connections.count().1 < LIMITS.unauthenticated_per_address {
        tokio::task::yield_now().await;
    }
    // Now all of them have been accepted; the runtime does this in one go.
    newest.write_all(rest.as_bytes()).await.unwrap();
    assert!(read_answer(&mut newest).await.ends_with("hello"));
    drop(crowd);
}

#[tokio::test]
async fn of_an_unknown_connection_two_buffers_are_read_and_of_a_known_one_any_amount() {
    const BODY: usize = 100_000;
    let (address, _, read) = serve_and_count(PATIENT);
    let post = |token: &str| format!("POST / HTTP/1.1\r\nhost: x\r\n{token}content-length: {BODY}\r\n\r\n");
    let mut known = open(address, &post("authorization: good\r\n")).await;
    known.write_all(&[b'x'; BODY]).await.unwrap();
    assert!(read_answer(&mut known).await.ends_with("hello"));
    assert_eq!(read.swap(0, Ordering::Relaxed), BODY);

    let mut unknown = open(address, &post("")).await;
    let _not_all_is_taken = unknown.write_all(&[b'x'; BODY]).await;
    let answered = tokio::time::timeout(Duration::from_millis(500), read_answer(&mut unknown)).await;
    assert!(answered.is_err(), "the rest is not read");
    let read = read.load(Ordering::Relaxed);
    // One buffer with the head, and one after it.
    assert!((1..=2 * 8_192).contains(&read), "{read} bytes were read");
}
