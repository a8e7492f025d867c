//! How fast bytes go between two nodes: plain TCP between their agents, over the interface that the collectives' sockets will use.
//!
//! ```text
//! comes ──▶ listens   round, way, nonce                 connects to the port leased for the run; two connections, one for each way
//! comes ◀── listens   nonce, HMAC-SHA256(secret, "listens" · round · way · both nonces)
//! comes ──▶ listens                  HMAC-SHA256(secret, "comes"   · round · way · both nonces)
//!           zeros, until the receiver has measured for long enough and closes
//! ```
//! Not a small torchrun program: that would import PyTorch on every node for each pair, for minutes in all, and fail in as many ways as
//! the training itself. This says whether the *network* is at fault, before the user's code is. What it cannot see is RDMA: a fault that
//! only shows there is seen by its port's rate and state.
//!
//! The receiver measures, so neither side has to believe the other, and closes when its time is over, so that a slow link is as
//! quick to measure as a fast one. Nobody without the run's secret gets a byte in or out; strangers are dropped, and the port is
//! open to a measurement only while one is asked for.

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

/// Read and written at once: large enough for a fast link, small beside the agent.
const BLOCK_BYTES: usize = 256 << 10;
/// At the most in one direction: what one connection carries in a few seconds, and no more than a metered link forgives.
const BYTES_MAX: u64 = 16 << 30;
/// A node that is reached at all is reached in this time, one lost packet included.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Between two tries at a port that nobody listens at yet.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// A stranger that says nothing may keep the door so long.
const GREETING_WITHIN: Duration = Duration::from_secs(2);
/// A sender stops by itself this long after the receiver should have closed.
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
    #[error("{0} did not come to be measured in time")]
    Absent(String),
    #[error("{0} does not know this run's secret")]
    Stranger(String),
    #[error("the run gave no secret to measure with")]
    NoSecret,
    #[error("the port {port} cannot be opened: {source}")]
    Port { port: u16, source: io::Error },
    #[error("the connection with {peer} broke: {source}")]
    Broken { peer: String, source: io::Error },
}

/// Which way the bytes of a connection go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    ToListener = 0,
    FromListener = 1,
}

/// A secret for one attempt.
pub(crate) fn new_door() -> String {
    hex::encode(rand::random::<[u8; 16]>())
}

/// Measures one pair from this node's side. Comes back within the time it was given, whatever the other does.
pub(crate) async fn measure(asked: &Measure, lease: &mut Option<Lease>) -> Measured {
    let within = Duration::from_millis(asked.within_ms);
    let pair = Pair {
        asked,
        one_way: Duration::from_millis(asked.one_way_ms),
    };
    let measuring = async {
        if asked.secret.is_empty() {
            return Err(Problem::NoSecret);
        }
        if asked.listens {
            pair.serve(lease).await
        } else {
            pair.visit().await
        }
    };
    let result = timeout(within, measuring)
        .await
        .unwrap_or_else(|_| Err(Problem::Absent(asked.peer.clone())));
    let (mib_s, problem) = match result {
        Ok(mib_s) => (Some(mib_s), String::new()),
        Err(problem @ Problem::Unreachable { .. }) => (Some(0.0), problem.to_string()),
        Err(problem) => (None, problem.to_string()),
    };
    Measured {
        round: asked.round,
        mib_s,
        problem,
    }
}

/// One pair's measurement.
struct Pair<'a> {
    asked: &'a Measure,
    one_way: Duration,
}

impl Pair<'_> {
    async fn serve(&self, lease: &mut Option<Lease>) -> Result<f64, Problem> {
        let port = self.asked.port;
        let opened = open(lease, port).map_err(|source| Problem::Port { port, source })?;
        let mib_s = self.receive(self.admit(&opened, Way::ToListener).await).await?;
        // What it receives is for the other one to say.
        self.send(self.admit(&opened, Way::FromListener).await).await;
        Ok(mib_s)
    }

    async fn visit(&self) -> Result<f64, Problem> {
        self.send(self.connect(Way::ToListener).await?).await;
        self.receive(self.connect(Way::FromListener).await?).await
    }

    /// The next connection of the peer, for this round and way.
    async fn admit(&self, listener: &TcpListener, way: Way) -> TcpStream {
        loop {
            let Ok((mut stream, _)) = listener.accept().await else {
                sleep(TRY_AGAIN).await;
                continue;
            };
            let greeted = timeout(GREETING_WITHIN, self.greet_as_listener(&mut stream, way)).await;
            if matches!(greeted, Ok(Ok(true))) {
                return stream;
            }
        }
    }

    async fn greet_as_listener(&self, stream: &mut TcpStream, way: Way) -> io::Result<bool> {
        let mut hello = [0; HELLO_BYTES];
        stream.read_exact(&mut hello).await?;
        let nonce = rand::random::<[u8; NONCE_BYTES]>();
        if hello[..5] != self.head(way) {
            return Ok(false);
        }
        stream.write_all(&nonce).await?;
        let said = self.keyed(b"listens", &hello, &nonce).finalize().into_bytes();
        stream.write_all(&said).await?;
        let mut proof = [0; PROOF_BYTES];
        stream.read_exact(&mut proof).await?;
        Ok(self.keyed(b"comes", &hello, &nonce).verify_slice(&proof).is_ok())
    }

    async fn connect(&self, way: Way) -> Result<TcpStream, Problem> {
        let peer = || self.asked.peer.clone();
        let mut stream = self.reach().await.map_err(|source| Problem::Unreachable {
            peer: peer(),
            address: format!("{}:{}", self.asked.address, self.asked.port),
            source,
        })?;
        match self.greet_as_visitor(&mut stream, way).await {
            Ok(true) => Ok(stream),
            Ok(false) => Err(Problem::Stranger(peer())),
            Err(source) => Err(Problem::Broken { peer: peer(), source }),
        }
    }

    /// The port is leased, so there is somebody, but for an agent that is just being replaced.
    async fn reach(&self) -> io::Result<TcpStream> {
        let ip: IpAddr = self.asked.address.parse().map_err(io::Error::other)?;
        let address = SocketAddr::new(ip, self.asked.port);
        let half = Duration::from_millis(self.asked.within_ms / 2);
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

    async fn greet_as_visitor(&self, stream: &mut TcpStream, way: Way) -> io::Result<bool> {
        let mut hello = [0; HELLO_BYTES];
        hello[..5].copy_from_slice(&self.head(way));
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

    fn head(&self, way: Way) -> [u8; 5] {
        let [a, b, c, d] = self.asked.round.to_be_bytes();
        [a, b, c, d, way as u8]
    }

    fn keyed(&self, who: &[u8], hello: &[u8], nonce: &[u8]) -> Hmac<Sha256> {
        let secret = self.asked.secret.expose().as_bytes();
        let keyed = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
        keyed.chain_update(who).chain_update(hello).chain_update(nonce)
    }

    /// Counts what comes from the first byte on, then closes.
    async fn receive(&self, mut stream: TcpStream) -> Result<f64, Problem> {
        let broken = |source| Problem::Broken {
            peer: self.asked.peer.clone(),
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
                // What came, came: nothing for a whole half second is a figure, too.
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

    /// Until the receiver closes, which is its way to say that it has seen enough.
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

/// The leased port; an agent that was replaced takes the same one again.
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

    fn asked(listens: bool, port: u16) -> Measure {
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
    async fn both_ways_are_measured_and_nothing_goes_on_behind() {
        let (mut lease, port) = lease();
        let began = Instant::now();
        let (here, there) = (asked(true, port), asked(false, port));
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
    async fn who_comes_early_waits_and_an_agent_that_lost_its_lease_takes_it_again() {
        let (lease, port) = lease();
        drop(lease);
        let there = asked(false, port);
        let coming = tokio::spawn(async move { measure(&there, &mut None).await });
        sleep(Duration::from_millis(300)).await;
        let listened = measure(&asked(true, port), &mut None).await;
        assert!(listened.mib_s > Some(0.0), "{listened:?}");
        assert!(coming.await.unwrap().mib_s > Some(0.0));
    }

    #[tokio::test]
    async fn a_stranger_gets_nothing_and_does_not_keep_the_peer_out() {
        let (mut lease, port) = lease();
        let stranger = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let wrong = Measure {
            secret: SecretValue::new("guessed"),
            ..asked(false, port)
        };
        let (here, there) = (asked(true, port), asked(false, port));
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
    async fn nobody_there_is_nothing_and_nobody_coming_has_an_end() {
        let (lease, port) = lease();
        drop(lease);
        let hasty = Measure {
            within_ms: 1_000,
            ..asked(false, port)
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
            ..asked(true, port)
        };
        let waited = measure(&hasty, &mut None).await;
        assert_eq!(
            (waited.mib_s, waited.problem.as_str()),
            (None, "n1 did not come to be measured in time")
        );
        let without = Measure {
            secret: SecretValue::default(),
            ..asked(true, port)
        };
        assert_eq!(measure(&without, &mut None).await.mib_s, None);
    }
}
