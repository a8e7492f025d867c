//! NCCL RAS: every job with NCCL 2.24 or newer reports its health at a port of each node, with or without a plugin.
//!
//! ```text
//! agent                        NCCL, in a rank (localhost:28028)
//! client protocol 2     ──▶
//!                       ◀──    SERVER PROTOCOL 2
//! timeout 5             ──▶
//!                       ◀──    OK
//! set format json       ──▶
//!                       ◀──    OK            (before 2.28.7: ERROR, and only a text for users is available)
//! status                ──▶
//!                       ◀──    {…}           collected from the whole job; then NCCL closes the connection
//! ```
//! An answer costs the whole job one round of messages, so only the run's first node requests it, and at most once per minute. This is not
//! confirmed on hardware.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use domain::series::Labels;
use domain::time::TimestampMs;
use serde::Deserialize;

use crate::sample::Samples;
use crate::sample::series::series;

/// NCCL's default address.
pub(crate) const ADDRESS_DEFAULT: &str = "127.0.0.1:28028";
/// How often the status is requested.
pub(crate) const QUERY_INTERVAL: Duration = Duration::from_secs(60);
/// How long NCCL may collect answers, in seconds. A rank that has not answered by then counts as missing, which is the information wanted.
const GATHER_SECONDS: u64 = 5;
/// How long the whole exchange may take: NCCL collects twice.
const STATUS_TIMEOUT: Duration = Duration::from_secs(15);
/// The maximum length of a line before the status.
const LINE_BYTES_MAX: u64 = 1_024;
/// The maximum length of the status. A job of 1,024 GPUs with ten communicators per rank needs half of it. A longer status is not read.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Why there is no status.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RasError {
    /// NCCL RAS does not answer.
    #[error(
        "NCCL RAS at {address} does not answer; is a job with NCCL 2.24 or newer running, and NCCL_RAS_ENABLE not 0?"
    )]
    Silent {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Another program answers.
    #[error("the service at {address} is not NCCL RAS; it answered {said:?}")]
    Stranger {
        /// The address.
        address: SocketAddr,
        /// The answer.
        said: String,
    },
    /// NCCL is older than 2.28.7 and does not support JSON.
    #[error("this version of NCCL RAS does not support JSON ({said:?}); NCCL 2.28.7 and newer do")]
    NoJson {
        /// The answer.
        said: String,
    },
    /// The status is too long or incomplete.
    #[error("cannot parse the answer of NCCL RAS ({bytes} bytes; the limit is 16 MiB)")]
    Answer {
        /// The number of bytes received.
        bytes: usize,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
}

/// The health of a job, from the ranks that answered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    pub(crate) nccl_version: String,
    pub(crate) communicators: Vec<Communicator>,
}

/// One communicator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Communicator {
    pub(crate) hash: String,
    pub(crate) size: u32,
    pub(crate) ranks: Vec<RankStatus>,
    pub(crate) missing_ranks: Vec<MissingRank>,
}

/// A rank that answered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct RankStatus {
    pub(crate) rank: u32,
    pub(crate) host: String,
    pub(crate) pid: i64,
    pub(crate) status: Health,
    pub(crate) collective_counts: std::collections::BTreeMap<String, u64>,
}

/// The health of a rank.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Health {
    /// 0 when initialised, 7 while in progress.
    pub(crate) init_state: i32,
    pub(crate) async_error: i32,
    pub(crate) abort_flag: bool,
}

/// A rank that did not answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct MissingRank {
    pub(crate) rank: u32,
    pub(crate) host: String,
    pub(crate) pid: i64,
}

/// `ncclInProgress`: not finished, but no error.
const IN_PROGRESS: i32 = 7;

/// Requests the status once. Blocks for slightly more than [`STATUS_TIMEOUT`] at most, so do not call it on a thread of the runtime.
///
/// # Errors
/// Returns an error if there is no readable answer.
pub(crate) fn query(address: SocketAddr) -> Result<Status, RasError> {
    let silent = |source| RasError::Silent { address, source };
    let deadline = Instant::now() + STATUS_TIMEOUT;
    let mut connection = RasConnection::open(address, deadline).map_err(silent)?;
    let said = connection.exchange("client protocol 2").map_err(silent)?;
    if !said.to_ascii_uppercase().starts_with("SERVER PROTOCOL ") {
        return Err(RasError::Stranger { address, said });
    }
    connection
        .exchange(&format!("timeout {GATHER_SECONDS}"))
        .map_err(silent)?;
    let said = connection.exchange("set format json").map_err(silent)?;
    if !said.eq_ignore_ascii_case("OK") {
        return Err(RasError::NoJson { said });
    }
    let answer = connection.last("status").map_err(silent)?;
    serde_json::from_slice(&answer).map_err(|source| RasError::Answer {
        bytes: answer.len(),
        source,
    })
}

/// A connection with a deadline.
struct RasConnection {
    stream: BufReader<TcpStream>,
    deadline: Instant,
}

impl RasConnection {
    fn open(address: SocketAddr, deadline: Instant) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream: BufReader::new(stream),
            deadline,
        })
    }

    /// Sends a line and reads one.
    fn exchange(&mut self, line: &str) -> io::Result<String> {
        self.send(line)?;
        let mut said = Vec::new();
        while !said.ends_with(b"\n") {
            self.set_timeouts()?;
            let room = LINE_BYTES_MAX.saturating_sub(said.len() as u64);
            if (&mut self.stream).take(room).read_until(b'\n', &mut said)? == 0 {
                break;
            }
        }
        Ok(String::from_utf8_lossy(&said).trim_end().to_owned())
    }

    /// Sends a line and reads until the other side closes the connection, up to the limit.
    fn last(&mut self, line: &str) -> io::Result<Vec<u8>> {
        self.send(line)?;
        let mut answer = Vec::new();
        let mut part = [0; 16_384];
        while (answer.len() as u64) < ANSWER_BYTES_MAX {
            self.set_timeouts()?;
            match self.stream.read(&mut part) {
                Ok(0) => break,
                Ok(length) => answer.extend_from_slice(&part[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(answer)
    }

    fn send(&mut self, line: &str) -> io::Result<()> {
        self.set_timeouts()?;
        self.stream.get_mut().write_all(format!("{line}\n").as_bytes())
    }

    /// Sets the time limits of the next read and write to the time left until the deadline.
    fn set_timeouts(&mut self) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let stream = self.stream.get_ref();
        stream.set_read_timeout(Some(left))?;
        stream.set_write_timeout(Some(left))
    }
}

impl Status {
    /// Writes the health of the job as series of a run.
    pub(crate) fn write(&self, run: &str, at_ms: TimestampMs, samples: &Samples) {
        let sum = |count: fn(&Communicator) -> usize| self.communicators.iter().map(count).sum::<usize>();
        let figures = [
            ("nccl_ras_communicators", self.communicators.len()),
            ("nccl_ras_ranks", sum(|comm| comm.ranks.len())),
            ("nccl_ras_missing_ranks", sum(|comm| comm.missing_ranks.len())),
            ("nccl_ras_failed_ranks", sum(Communicator::failed)),
        ];
        #[expect(clippy::cast_precision_loss, reason = "jobs have fewer than 2^53 ranks")]
        for (metric, figure) in figures {
            samples.push(&series(metric, &[("run", run)]), at_ms, figure as f64);
        }
        let spread = self.communicators.iter().map(Communicator::spread).max();
        #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
        samples.push(
            &series("nccl_ras_sequence_spread", &[("run", run)]),
            at_ms,
            spread.unwrap_or(0) as f64,
        );
    }

    /// Returns messages about missing and failed ranks for the log, at most eight.
    pub(crate) fn complaints(&self) -> Vec<String> {
        const MOST: usize = 8;
        let of_comm = |comm: &Communicator| {
            let missing = comm.missing_ranks.iter().map(|rank| {
                format!(
                    "rank {} of communicator {} (process {} on {}) does not answer",
                    rank.rank, comm.hash, rank.pid, rank.host
                )
            });
            let failed = comm.ranks.iter().filter(|rank| rank.status.is_failed());
            let failed = failed.map(|rank| {
                format!(
                    "rank {} of communicator {} (process {} on {}) has failed (NCCL error {})",
                    rank.rank,
                    comm.hash,
                    rank.pid,
                    rank.host,
                    rank.status.error()
                )
            });
            missing.chain(failed).collect::<Vec<_>>()
        };
        self.communicators.iter().flat_map(of_comm).take(MOST).collect()
    }
}

impl Communicator {
    fn failed(&self) -> usize {
        self.ranks.iter().filter(|rank| rank.status.is_failed()).count()
    }

    /// Returns the largest difference between two ranks in the number of collectives of one function.
    fn spread(&self) -> u64 {
        let functions = self.ranks.iter().flat_map(|rank| rank.collective_counts.keys());
        let of_function = |function: &String| {
            let counts = self
                .ranks
                .iter()
                .map(|rank| rank.collective_counts.get(function).copied().unwrap_or(0));
            let (least, most) = (counts.clone().min(), counts.max());
            most.zip(least).map_or(0, |(most, least)| most - least)
        };
        let named: std::collections::BTreeSet<&String> = functions.collect();
        named.into_iter().map(of_function).max().unwrap_or(0)
    }
}

impl Health {
    fn is_failed(&self) -> bool {
        self.abort_flag || self.error() != 0
    }

    fn error(&self) -> i32 {
        let real = |code: &i32| *code != 0 && *code != IN_PROGRESS;
        [self.async_error, self.init_state]
            .into_iter()
            .find(|code| real(code))
            .unwrap_or(0)
    }
}

/// Returns true for the series of NCCL RAS. They end with the run.
pub(crate) fn is_ras(series: &Labels) -> bool {
    series
        .metric_name()
        .is_some_and(|name| name.starts_with("nccl_ras_"))
}

#[cfg(test)]
mod tests;
