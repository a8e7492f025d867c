//! The bandwidth between two nodes: plain TCP between their agents, on the interface that the sockets of the collectives will use.
//!
//! ```text
//! comes ──▶ listens   round, way, nonce                 connects to the run's leased port; one connection per direction
//! comes ◀── listens   nonce, HMAC-SHA256(secret, "listens" · round · way · both nonces)
//! comes ──▶ listens                  HMAC-SHA256(secret, "comes"   · round · way · both nonces)
//!           zeros, until the receiver has measured for long enough and closes
//! ```
//! This is not a small torchrun program: it would import PyTorch on every node for each pair, take minutes, and could fail in as many ways
//! as the training itself. This check shows whether the *network* is faulty, before the user's code runs. It cannot measure RDMA: a fault
//! that only affects RDMA is visible in the rate and state of its port.
//!
//! The receiver measures, so neither side must trust the other. It closes when its time is over, so a slow link takes no more time than a
//! fast one. Without the run's secret, no payload is sent or received. Other clients are disconnected, and the port accepts measurements
//! only while one is requested.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use domain::run::state::{Measure, Measured};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::lease::Lease;

/// Size of one read or write: large enough for a fast link, small compared with the agent's memory.
const BLOCK_BYTES: usize = 256 << 10;
/// Maximum bytes in one direction: what one connection transfers in a few seconds, and not too expensive on a metered link.
const BYTES_MAX: u64 = 16 << 30;
/// A node that is reachable accepts within this time, even after one lost packet.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Delay between two attempts to connect to a port on which no process listens yet.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// How long a client without a valid greeting may occupy the listener.
const GREETING_WITHIN: Duration = Duration::from_secs(2);
/// A sender stops by itself if the receiver has not closed within this time after its deadline.
const SENDER_SLACK: Duration = Duration::from_secs(5);
const NONCE_BYTES: usize = 16;
const PROOF_BYTES: usize = 32;
/// Round, way, nonce.
const HELLO_BYTES: usize = 4 + 1 + NONCE_BYTES;
const MIB: f64 = 1_048_576.0;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("{peer} cannot be reached at {address}: {source}")]
    Unreachable {
        peer: String,
        address: String,
        source: io::Error,
    },
    #[error("the measurement with {0} did not finish in time")]
    Absent(String),
    #[error("{0} does not have this run's secret")]
    Stranger(String),
    #[error("the run has no secret for the measurement")]
    NoSecret,
    #[error("the port {port} cannot be opened: {source}")]
    Port { port: u16, source: io::Error },
    #[error("the connection with {peer} broke: {source}")]
    Broken { peer: String, source: io::Error },
}

/// The direction of a connection's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToListener = 0,
    FromListener = 1,
}

/// Returns a random secret for one attempt.
pub(crate) fn new_secret() -> String {
    hex::encode(rand::random::<[u8; 16]>())
}

/// Measures one pair from this node's side. Returns within the given time, whatever the other node does.
pub(crate) async fn measure(request: &Measure, lease: &mut Option<Lease>) -> Measured {
    let within = Duration::from_millis(request.within_ms);
    let pair = Pair {
        request,
        one_way: Duration::from_millis(request.one_way_ms),
    };
    let measuring = async {
        if request.secret.is_empty() {
            return Err(Problem::NoSecret);
        }
        if request.listens {
            pair.serve(lease).await
        } else {
            pair.visit().await
        }
    };
    let result = timeout(within, measuring)
        .await
        .unwrap_or_else(|_| Err(Problem::Absent(request.peer.clone())));
    let (mib_s, problem) = match result {
        Ok(mib_s) => (Some(mib_s), String::new()),
        Err(problem @ Problem::Unreachable { .. }) => (Some(0.0), problem.to_string()),
        Err(problem) => (None, problem.to_string()),
    };
    Measured {
        round: request.round,
        mib_s,
        problem,
    }
}

/// The measurement of one pair.
struct Pair<'a> {
    request: &'a Measure,
    one_way: Duration,
}

impl Pair<'_> {
    async fn serve(&self, lease: &mut Option<Lease>) -> Result<f64, Problem> {
        let port = self.request.port;
        let opened = open(lease, port).map_err(|source| Problem::Port { port, source })?;
        let mib_s = self
            .receive(self.admit(&opened, Direction::ToListener).await)
            .await?;
        // The other node reports what it receives.
        self.send(self.admit(&opened, Direction::FromListener).await)
            .await;
        Ok(mib_s)
    }

    async fn visit(&self) -> Result<f64, Problem> {
        self.send(self.connect(Direction::ToListener).await?).await;
        self.receive(self.connect(Direction::FromListener).await?).await
    }

    /// Accepts the peer's next connection for this round and direction.
    async fn admit(&self, listener: &TcpListener, direction: Direction) -> TcpStream {
        loop {
            let Ok((mut stream, _)) = listener.accept().await else {
                sleep(TRY_AGAIN).await;
                continue;
            };
            let greeted = timeout(GREETING_WITHIN, self.greet_as_listener(&mut stream, direction)).await;
            if matches!(greeted, Ok(Ok(true))) {
                return stream;
            }
        }
    }

    async fn greet_as_listener(&self, stream: &mut TcpStream, direction: Direction) -> io::Result<bool> {
        let mut hello = [0; HELLO_BYTES];
        stream.read_exact(&mut hello).await?;
        let nonce = rand::random::<[u8; NONCE_BYTES]>();
        if hello[..5] != self.head(direction) {
            return Ok(false);
        }
        stream.write_all(&nonce).await?;
        let said = self.keyed(b"listens", &hello, &nonce).finalize().into_bytes();
        stream.write_all(&said).await?;
        let mut proof = [0; PROOF_BYTES];
        stream.read_exact(&mut proof).await?;
        Ok(self.keyed(b"comes", &hello, &nonce).verify_slice(&proof).is_ok())
    }

    async fn connect(&self, direction: Direction) -> Result<TcpStream, Problem> {
        let peer = || self.request.peer.clone();
        let mut stream = self.reach().await.map_err(|source| Problem::Unreachable {
            peer: peer(),
            address: format!("{}:{}", self.request.address, self.request.port),
            source,
        })?;
        match self.greet_as_visitor(&mut stream, direction).await {
            Ok(true) => Ok(stream),
            Ok(false) => Err(Problem::Stranger(peer())),
            Err(source) => Err(Problem::Broken { peer: peer(), source }),
        }
    }

    /// Connects to the peer. The port is leased, so an agent listens on it, unless that agent is just being replaced.
    async fn reach(&self) -> io::Result<TcpStream> {
        let ip: IpAddr = self.request.address.parse().map_err(io::Error::other)?;
        let address = SocketAddr::new(ip, self.request.port);
        let half = Duration::from_millis(self.request.within_ms / 2);
        let until = Instant::now() + CONNECT_WITHIN.min(half);
        loop {
            match timeout_at(until, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Err(_) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(Err(error)) if Instant::now() + TRY_AGAIN >= until => return Err(error),
                Ok(Err(_)) => sleep(TRY_AGAIN).await,
            }
        }
    }

    async fn greet_as_visitor(&self, stream: &mut TcpStream, direction: Direction) -> io::Result<bool> {
        let mut hello = [0; HELLO_BYTES];
        hello[..5].copy_from_slice(&self.head(direction));
        hello[5..].copy_from_slice(&rand::random::<[u8; NONCE_BYTES]>());
        stream.write_all(&hello).await?;
        let (mut nonce, mut proof) = ([0; NONCE_BYTES], [0; PROOF_BYTES]);
        stream.read_exact(&mut nonce).await?;
        stream.read_exact(&mut proof).await?;
        if self
            .keyed(b"listens", &hello, &nonce)
            .verify_slice(&proof)
            .is_err()
        {
            return Ok(false);
        }
        let said = self.keyed(b"comes", &hello, &nonce).finalize().into_bytes();
        stream.write_all(&said).await?;
        Ok(true)
    }

    fn head(&self, direction: Direction) -> [u8; 5] {
        let [a, b, c, d] = self.request.round.to_be_bytes();
        [a, b, c, d, direction as u8]
    }

    fn keyed(&self, who: &[u8], hello: &[u8], nonce: &[u8]) -> Hmac<Sha256> {
        let secret = self.request.secret.expose().as_bytes();
        let keyed = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
        keyed.chain_update(who).chain_update(hello).chain_update(nonce)
    }

    /// Measures from the first received byte on, then closes the connection.
    async fn receive(&self, mut stream: TcpStream) -> Result<f64, Problem> {
        let broken = |source| Problem::Broken {
            peer: self.request.peer.clone(),
            source,
        };
        let mut block = vec![0; BLOCK_BYTES];
        let first = stream.read(&mut block).await.map_err(broken)?;
        let (began, mut bytes) = (Instant::now(), 0_u64);
        let mut more = first;
        while more > 0 && bytes < BYTES_MAX {
            match timeout_at(began + self.one_way, stream.read(&mut block)).await {
                Ok(Ok(read)) => more = read,
                Ok(Err(error)) => return Err(broken(error)),
                // The time is over. Receiving nothing more in it is also a result.
                Err(_) => break,
            }
            bytes += more as u64;
        }
        if more == 0 {
            return Err(broken(io::ErrorKind::UnexpectedEof.into()));
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate, not a count")]
        let mib = bytes as f64 / MIB;
        Ok(mib / began.elapsed().as_secs_f64())
    }

    /// Sends until the receiver closes the connection, which shows that it has measured enough.
    async fn send(&self, mut stream: TcpStream) {
        let block = vec![0; BLOCK_BYTES];
        let sending = async {
            let mut bytes = 0;
            while bytes <= BYTES_MAX + BLOCK_BYTES as u64 && stream.write_all(&block).await.is_ok() {
                bytes += BLOCK_BYTES as u64;
            }
        };
        let _limit = timeout(self.one_way + SENDER_SLACK, sending).await;
    }
}

/// Listens on the leased port. A new agent takes the same port again.
fn open(lease: &mut Option<Lease>, port: u16) -> io::Result<TcpListener> {
    let lease = match lease {
        Some(lease) => lease,
        None => lease.insert(Lease::take(port)?),
    };
    let listener = lease.listener()?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use domain::run::secret::SecretValue;

    use super::*;

    fn request(listens: bool, port: u16) -> Measure {
        Measure {
            round: 3,
            peer: if listens { "n1" } else { "n0" }.into(),
            listens,
            address: "127.0.0.1".into(),
            port,
            secret: SecretValue::new("a long secret"),
            one_way_ms: 100,
            within_ms: 4_000,
        }
    }

    fn lease() -> (Option<Lease>, u16) {
        let lease = Lease::take(0).unwrap();
        let port = lease.listener().unwrap().local_addr().unwrap().port();
        (Some(lease), port)
    }

    #[tokio::test]
    async fn both_directions_are_measured_and_nothing_runs_on_afterwards() {
        let (mut lease, port) = lease();
        let began = Instant::now();
        let (here, there) = (request(true, port), request(false, port));
        let mut none = None;
        let (listened, came) = tokio::join!(measure(&here, &mut lease), measure(&there, &mut none));
        for measured in [&listened, &came] {
            assert!(measured.mib_s > Some(10.0), "{measured:?}");
            assert_eq!((measured.round, measured.problem.as_str()), (3, ""));
        }
        assert!(began.elapsed() < Duration::from_secs(3));
        assert!(lease.is_some(), "torchrun's port stays leased");
    }

    #[tokio::test]
    async fn an_early_client_waits_and_an_agent_takes_a_lost_lease_again() {
        let (lease, port) = lease();
        drop(lease);
        let there = request(false, port);
        let coming = tokio::spawn(async move { measure(&there, &mut None).await });
        sleep(Duration::from_millis(300)).await;
        let listened = measure(&request(true, port), &mut None).await;
        assert!(listened.mib_s > Some(0.0), "{listened:?}");
        assert!(coming.await.unwrap().mib_s > Some(0.0));
    }

    #[tokio::test]
    async fn a_client_without_the_secret_gets_nothing_and_does_not_block_the_peer() {
        let (mut lease, port) = lease();
        let stranger = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let wrong = Measure {
            secret: SecretValue::new("guessed"),
            ..request(false, port)
        };
        let (here, there) = (request(true, port), request(false, port));
        let mut intruder = None;
        let (listened, intruded, came) = tokio::join!(
            measure(&here, &mut lease),
            measure(&wrong, &mut intruder),
            async {
                sleep(Duration::from_millis(50)).await;
                measure(&there, &mut None).await
            }
        );
        assert!(
            listened.mib_s > Some(0.0) && came.mib_s > Some(0.0),
            "{listened:?} {came:?}"
        );
        assert_eq!(intruded.mib_s, None, "{intruded:?}");
        drop(stranger);
    }

    #[tokio::test]
    async fn an_absent_peer_is_reported_within_the_time_limit() {
        let (lease, port) = lease();
        drop(lease);
        let hasty = Measure {
            within_ms: 1_000,
            ..request(false, port)
        };
        let came = measure(&hasty, &mut None).await;
        assert_eq!(came.mib_s, Some(0.0), "{came:?}");
        assert!(
            came.problem.starts_with("n0 cannot be reached at 127.0.0.1:"),
            "{}",
            came.problem
        );
        let hasty = Measure {
            within_ms: 200,
            ..request(true, port)
        };
        let waited = measure(&hasty, &mut None).await;
        assert_eq!(
            (waited.mib_s, waited.problem.as_str()),
            (None, "the measurement with n1 did not finish in time")
        );
        let without = Measure {
            secret: SecretValue::default(),
            ..request(true, port)
        };
        assert_eq!(measure(&without, &mut None).await.mib_s, None);
    }
}
