//! How both streams connect to the collector: address, TLS, authentication, and the waits between attempts to connect.
//!
//! ```text
//! is there a credential file?  yes ──▶ Bearer credential ──refused──▶ Bearer join token, if there is one
//!                              no  ──▶ Bearer join token  (telemetry only; control waits for the credential)
//! HelloAck.credential not empty ──▶ DATA/credential, mode 0600
//! ```

use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use domain::ident::NodeName;
use domain::topology::Inventory;
pub use shim::time::now_ms;
use tokio::sync::watch;
use tonic::codec::CompressionEncoding;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};
use wire::proto::uplink_client::UplinkClient;
use wire::proto::{Hello, HelloAck};
use wire::telemetry::{self, OpenError, Receiving, Sending};
use wire::version::{MESSAGE_BYTES_MAX, NotOffered, PROTOCOL_MAX, PROTOCOL_MIN};

use crate::config::{AgentConfig, Secret};
use crate::lock::lock_id;
use crate::uplink::clock::Clock;

/// How long a connection to the collector may take to open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a silent connection is probed, and how long the answer may take. So a dead collector is noticed within 20 s.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// The first wait after a failure. All waits have jitter, so that a thousand agents do not reconnect at the same moment.
const RETRY_MIN: Duration = Duration::from_millis(500);
/// The longest wait between two attempts to connect. See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(15);
/// A connection that lasted this long counts as a success.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// A client of the collector's control service. It adds the agent's token to each request.
pub type Client = UplinkClient<InterceptedService<Channel, Bearer>>;

/// Errors of the connection to the collector.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The URL is not valid.
    #[error("{url:?} is not a collector's URL; write it like http://collector:8470")]
    Url {
        /// The URL as it was given.
        url: String,
        /// What is wrong with the URL.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// The URL is https, but no certificate authority is configured to check the certificate.
    #[error("the collector's URL is https, so its certificate authority is needed; pass --tls-ca FILE (PEM)")]
    NoAuthority,
    /// The file of the certificate authority cannot be read.
    #[error("cannot read the collector's certificate authority {path:?}; check --tls-ca")]
    Authority {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The credential file cannot be read or written.
    #[error(
        "cannot {what} the agent's credential {path:?}; check that the data folder belongs to this agent only"
    )]
    Credential {
        /// `read` or `write`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The agent has neither a credential nor a join token.
    #[error(
        "this agent has neither a credential nor a join token; create a token with `lockstep token join` and pass it with --join"
    )]
    NoToken,
    /// The token cannot be sent in a header.
    #[error("the join token or credential contains invalid characters; copy it again")]
    Token,
    /// The connection failed.
    #[error("cannot connect to the collector at {url}")]
    Connect {
        /// The collector's URL.
        url: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The collector answered with an error status.
    #[error("the collector ended the stream: {}", .0.message())]
    Status(#[from] Status),
    /// The answer to the hello was not a hello.
    #[error("the collector's answer to the hello does not follow protocol {PROTOCOL_MIN} to {PROTOCOL_MAX}")]
    NoHello,
    /// The answer to the hello names a protocol version that this agent does not support.
    #[error(transparent)]
    Version(#[from] NotOffered),
    /// Batches are sent but not acknowledged.
    #[error("the collector has acknowledged nothing for {} s", .0.as_secs())]
    Stalled(Duration),
    /// Nothing was received from the collector.
    #[error("nothing was received from the collector for {} s", .0.as_secs())]
    Silent(Duration),
    /// The collector closed the stream without a status.
    #[error("the collector closed the stream")]
    Closed,
}

/// What both streams share. Each connection is a new one.
#[derive(Debug)]
pub struct Link {
    control: Endpoint,
    telemetry: telemetry::Endpoint,
    url: String,
    node: NodeName,
    instance: String,
    lock: String,
    inventory: watch::Receiver<Arc<Inventory>>,
    join_token: Option<Secret>,
    credential_file: PathBuf,
    credential: watch::Sender<Option<Secret>>,
    clock: Clock,
    /// True if the credential was refused. The next telemetry connection then uses the join token.
    refused: Mutex<bool>,
}

impl Link {
    /// Checks the URL, TLS and the credential, but does not connect. The agent must have locked its data folder. Returns `None` if it has no
    /// collector.
    ///
    /// # Errors
    /// Returns an error if the URL is malformed, the certificate authority is missing, or there is neither a credential nor a join token.
    pub fn new(
        config: &AgentConfig,
        inventory: watch::Receiver<Arc<Inventory>>,
    ) -> Result<Option<Arc<Self>>, LinkError> {
        let Some(url) = config.collector.clone() else {
            return Ok(None);
        };
        let credential_file = config.data_dir.join("credential");
        let credential = read_credential(&credential_file)?;
        if credential.is_none() && config.join_token.is_none() {
            return Err(LinkError::NoToken);
        }
        let (control, telemetry) = endpoints(&url, config.tls_ca.as_deref())?;
        Ok(Some(Arc::new(Self {
            control,
            telemetry,
            url,
            node: config.node.clone(),
            instance: hex::encode(rand::random::<[u8; 8]>()),
            lock: lock_id(&config.data_dir),
            inventory,
            join_token: config.join_token.clone(),
            credential_file,
            credential: watch::Sender::new(credential),
            clock: Clock::default(),
            refused: Mutex::new(false),
        })))
    }

    /// Connects the telemetry stream. The first message on either stream must be [`Link::hello`]. Pass the answer to
    /// [`Link::accept_hello`] and an error status to [`Link::handle_refusal`].
    ///
    /// # Errors
    /// Returns an error if the collector cannot be reached.
    pub async fn connect_telemetry(&self) -> Result<(Sending, Receiving), LinkError> {
        let refused = *self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let credential = self.credential.borrow().clone().filter(|_| !refused);
        let token = credential.or_else(|| self.join_token.clone());
        let token = token.ok_or(LinkError::NoToken)?;
        let opened = self.telemetry.open(token.expose()).await;
        opened.map_err(|error| match error {
            OpenError::Refused(status) => LinkError::Status(status),
            OpenError::Connect(source) => self.unreachable(source),
            OpenError::Late => self.unreachable(error),
        })
    }

    /// Connects the control stream. Waits until there is a credential, because a join token is exchanged only once.
    ///
    /// # Errors
    /// Returns an error if the collector cannot be reached.
    pub async fn connect_control(&self) -> Result<Client, LinkError> {
        let mut credential = self.credential.subscribe();
        let there = credential.wait_for(Option::is_some).await;
        let token = there.ok().and_then(|there| there.clone());
        let bearer: MetadataValue<Ascii> = format!("Bearer {}", token.ok_or(LinkError::NoToken)?.expose())
            .parse()
            .map_err(|_| LinkError::Token)?;
        let connected = self.control.connect().await;
        let channel = connected.map_err(|source| self.unreachable(source))?;
        // Logs compress well.
        Ok(UplinkClient::with_interceptor(channel, Bearer(bearer))
            .send_compressed(CompressionEncoding::Zstd)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX))
    }

    fn unreachable(&self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> LinkError {
        LinkError::Connect {
            url: self.url.clone(),
            source: source.into(),
        }
    }

    /// Returns the hello of this agent with its current inventory.
    ///
    /// # Panics
    /// Never: an inventory is plain data.
    #[must_use]
    pub fn hello(&self) -> Hello {
        let inventory = self.inventory.borrow().clone();
        Hello {
            protocol_min: PROTOCOL_MIN,
            protocol_max: PROTOCOL_MAX,
            node: self.node.to_string(),
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            instance: self.instance.clone(),
            now_ms: now_ms(),
            inventory_json: serde_json::to_string(&*inventory).expect("an inventory is plain data"),
            lock: self.lock.clone(),
        }
    }

    /// Checks the collector's answer to the hello, and stores the credential that it may contain.
    ///
    /// # Errors
    /// Returns an error if the collector uses another protocol, or if the credential cannot be stored.
    pub fn accept_hello(&self, ack: &HelloAck) -> Result<(), LinkError> {
        wire::version::accept(ack)?;
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = false;
        if ack.credential.is_empty() {
            return Ok(());
        }
        let credential = Secret::new(&ack.credential);
        write_credential(&self.credential_file, &credential).map_err(|source| LinkError::Credential {
            what: "write",
            path: self.credential_file.clone(),
            source,
        })?;
        self.credential.send_replace(Some(credential));
        Ok(())
    }

    /// Handles a refusal. If the collector does not accept the credential (it lost its data, or the node was removed), the next connection
    /// uses the join token.
    pub fn handle_refusal(&self, status: &Status) {
        if status.code() == Code::Unauthenticated && self.join_token.is_some() {
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = true;
        }
    }

    /// Returns a receiver that reports changes of the inventory.
    #[must_use]
    pub fn inventory(&self) -> watch::Receiver<Arc<Inventory>> {
        self.inventory.clone()
    }

    /// Returns the offset of the node's clock from the collector's.
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the name of the node.
    #[must_use]
    pub fn node(&self) -> &NodeName {
        &self.node
    }

    /// Returns the collector's URL, for messages.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// Returns the endpoints of the control stream and the telemetry stream.
fn endpoints(url: &str, authority: Option<&Path>) -> Result<(Endpoint, telemetry::Endpoint), LinkError> {
    let malformed = |source: Option<Box<dyn std::error::Error + Send + Sync>>| LinkError::Url {
        url: url.to_owned(),
        source,
    };
    let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|source| malformed(Some(source.into())))?;
    let pem = match endpoint.uri().scheme_str() {
        Some("http") => None,
        Some("https") => Some(read_authority(authority)?),
        _ => return Err(malformed(None)),
    };
    let control = match &pem {
        None => endpoint,
        Some(pem) => endpoint
            .tls_config(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)))
            .map_err(|source| malformed(Some(source.into())))?,
    };
    let control = control
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .keep_alive_while_idle(true);
    let telemetry = telemetry::Endpoint::new(url, pem.as_deref());
    Ok((
        control,
        telemetry.map_err(|source| malformed(Some(source.into())))?,
    ))
}

fn read_authority(path: Option<&Path>) -> Result<Vec<u8>, LinkError> {
    let path = path.ok_or(LinkError::NoAuthority)?;
    std::fs::read(path).map_err(|source| LinkError::Authority {
        path: path.to_owned(),
        source,
    })
}

fn read_credential(path: &Path) -> Result<Option<Secret>, LinkError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(Secret::new(text)).filter(|secret| !secret.expose().is_empty())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(LinkError::Credential {
            what: "read",
            path: path.to_owned(),
            source,
        }),
    }
}

/// Writes a new file and renames it. After a crash the file contains the old credential or the new one, never half of it.
fn write_credential(path: &Path, credential: &Secret) -> io::Result<()> {
    let beside = path.with_extension("new");
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&beside)?;
    file.write_all(credential.expose().as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&beside, path)
}

/// Adds the token to each request.
#[derive(Clone)]
pub struct Bearer(MetadataValue<Ascii>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let mut bearer = self.0.clone();
        bearer.set_sensitive(true);
        request.metadata_mut().insert("authorization", bearer);
        Ok(request)
    }
}

/// The waits between attempts to connect one stream.
#[derive(Debug)]
pub struct Retry {
    waits: ExponentialBackoff,
    /// When the current connection was made.
    connected: Option<Instant>,
}

impl Default for Retry {
    fn default() -> Self {
        let waits = ExponentialBuilder::default()
            .with_min_delay(RETRY_MIN)
            .with_max_delay(RETRY_MAX)
            .with_jitter();
        Self {
            waits: waits.without_max_times().build(),
            connected: None,
        }
    }
}

impl Retry {
    /// Waits before the next attempt to connect: as long as a busy collector requested in `error`, otherwise longer after each failure.
    pub async fn wait(&mut self, error: Option<&LinkError>) {
        let asked = match error {
            Some(LinkError::Status(status)) => wire::busy::retry_after(status),
            _ => None,
        };
        let wait = asked.map_or_else(|| self.next_wait(), |asked| spread(asked, rand::random()));
        tokio::time::sleep(wait).await;
    }

    fn next_wait(&mut self) -> Duration {
        if self
            .connected
            .take()
            .is_some_and(|since| since.elapsed() >= STABLE_AFTER)
        {
            *self = Self::default();
        }
        self.waits.next().unwrap_or(RETRY_MAX)
    }

    /// Records that a connection was made. Waits become short again only after a connection that lasted: a collector that accepts all
    /// agents but cannot store anything, because its disk is full, must not get a new connection twice per second.
    pub fn connected(&mut self) {
        self.connected = Some(Instant::now());
    }
}

/// Returns one to three times the wait that the collector requested. All of a thousand agents behind one address get the same request, and
/// they must not return at the same moment. `random` is between 0 and 1.
fn spread(asked: Duration, random: f64) -> Duration {
    asked.max(RETRY_MIN).mul_f64(1.0 + 2.0 * random)
}

/// Returns all sources of an error in one line. The reason why a connection fails is several levels down.
#[must_use]
pub fn causes(error: &LinkError) -> String {
    let first = std::error::Error::source(error);
    let chain = std::iter::successors(first, |error| error.source()).map(ToString::to_string);
    let mut lines: Vec<String> = chain.collect();
    lines.dedup();
    if lines.iter().any(|line| line.contains("CaUsedAsEndEntity")) {
        lines.push(
            "the collector uses a CA certificate as its server certificate; create one with basicConstraints CA:FALSE".into(),
        );
    }
    lines.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_spread_the_wait_that_a_busy_collector_requests() {
        let second = Duration::from_secs(1);
        assert_eq!(spread(second, 0.0), second);
        assert_eq!(spread(second, 0.5), 2 * second);
        assert_eq!(spread(Duration::ZERO, 0.0), RETRY_MIN);
    }

    #[test]
    fn waits_grow_while_connections_fail_and_reset_after_a_stable_one() {
        let mut retry = Retry::default();
        let broken = |retry: &mut Retry| {
            retry.connected();
            retry.next_wait()
        };
        let waits: Vec<_> = (0..6).map(|_| broken(&mut retry)).collect();
        assert!(waits[5] >= RETRY_MIN * 16, "{waits:?}");
        retry.connected = Instant::now().checked_sub(STABLE_AFTER);
        // The jitter adds less than the shortest wait.
        assert!(retry.next_wait() <= RETRY_MIN * 2);
    }
}
