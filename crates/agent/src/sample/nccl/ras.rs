//! NCCL RAS: every job with NCCL 2.24 or newer answers questions about its health at a port of each node, plugin or not.
//!
//! ```text
//! agent                        NCCL, in a rank (localhost:28028)
//! client protocol 2     ──▶
//!                       ◀──    SERVER PROTOCOL 2
//! timeout 5             ──▶
//!                       ◀──    OK
//! set format json       ──▶
//!                       ◀──    OK            (before 2.28.7: ERROR, and there is only text for people)
//! status                ──▶
//!                       ◀──    {…}           gathered from the whole job; then it closes
//! ```
//! An answer costs the whole job a round of messages: so it is asked once a minute at most, and by the run's first node only.
//! Not confirmed on hardware.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use domain::series::Labels;
use domain::time::TimestampMs;
use serde::Deserialize;

use crate::sample::Samples;
use crate::sample::series::series;

/// Where NCCL listens when nobody says otherwise.
pub(crate) const ADDRESS_DEFAULT: &str = "127.0.0.1:28028";
/// How often it is asked.
pub(crate) const ASK_EVERY: Duration = Duration::from_secs(60);
/// How long NCCL may gather. A rank that has not answered by then is missing, which is what one wants to know.
const GATHER_SECONDS: u64 = 5;
/// How long all of it may take: NCCL gathers twice.
const PATIENCE: Duration = Duration::from_secs(15);
/// A line of the conversation.
const LINE_BYTES_MAX: u64 = 1_024;
/// An answer: a job of 1,024 GPUs with ten communicators a rank has half of it. A larger one is not read.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RasError {
    /// Nobody there, or silence.
    #[error(
        "NCCL RAS at {address} does not answer; is a job with NCCL 2.24 or newer running, and NCCL_RAS_ENABLE not 0?"
    )]
    Silent {
        /// Where.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another program.
    #[error("what answers at {address} is not NCCL RAS: {said:?}")]
    Stranger {
        /// Where.
        address: SocketAddr,
        /// What it said.
        said: String,
    },
    /// Before 2.28.7.
    #[error("this NCCL's RAS speaks no JSON ({said:?}); 2.28.7 and newer do")]
    NoJson {
        /// What it said.
        said: String,
    },
    /// Too much, or broken off.
    #[error("the answer of NCCL RAS cannot be read ({bytes} bytes); beyond 16 MiB it is not")]
    Answer {
        /// How much came.
        bytes: usize,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

/// A job's health, as far as ranks answered.
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

/// How a rank is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Health {
    /// 0 when done, 7 while under way.
    pub(crate) init_state: i32,
    pub(crate) async_error: i32,
    pub(crate) abort_flag: bool,
}

/// A rank that did not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct MissingRank {
    pub(crate) rank: u32,
    pub(crate) host: String,
    pub(crate) pid: i64,
}

/// Not finished yet, and no error: `ncclInProgress`.
const IN_PROGRESS: i32 = 7;

/// Asks once. Blocks for up to [`PATIENCE`] and some more: not for the thread of a runtime.
///
/// # Errors
/// When there is no answer that can be read.
pub(crate) fn ask(address: SocketAddr) -> Result<Status, RasError> {
    let silent = |source| RasError::Silent { address, source };
    let deadline = Instant::now() + PATIENCE;
    let mut talk = Talk::begin(address, deadline).map_err(silent)?;
    let said = talk.exchange("client protocol 2").map_err(silent)?;
    if !said.to_ascii_uppercase().starts_with("SERVER PROTOCOL ") {
        return Err(RasError::Stranger { address, said });
    }
    talk.exchange(&format!("timeout {GATHER_SECONDS}"))
        .map_err(silent)?;
    let said = talk.exchange("set format json").map_err(silent)?;
    if !said.eq_ignore_ascii_case("OK") {
        return Err(RasError::NoJson { said });
    }
    let answer = talk.last("status").map_err(silent)?;
    serde_json::from_slice(&answer).map_err(|source| RasError::Answer {
        bytes: answer.len(),
        source,
    })
}

/// A conversation that ends by itself.
struct Talk {
    stream: BufReader<TcpStream>,
    deadline: Instant,
}

impl Talk {
    fn begin(address: SocketAddr, deadline: Instant) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream: BufReader::new(stream),
            deadline,
        })
    }

    /// Says a line and hears one.
    fn exchange(&mut self, line: &str) -> io::Result<String> {
        self.say(line)?;
        let mut said = Vec::new();
        while !said.ends_with(b"\n") {
            self.hurry()?;
            let room = LINE_BYTES_MAX.saturating_sub(said.len() as u64);
            if (&mut self.stream).take(room).read_until(b'\n', &mut said)? == 0 {
                break;
            }
        }
        Ok(String::from_utf8_lossy(&said).trim_end().to_owned())
    }

    /// Says a line and hears all that comes until the other side closes, up to the bound.
    fn last(&mut self, line: &str) -> io::Result<Vec<u8>> {
        self.say(line)?;
        let mut answer = Vec::new();
        let mut part = [0; 16_384];
        while (answer.len() as u64) < ANSWER_BYTES_MAX {
            self.hurry()?;
            match self.stream.read(&mut part) {
                Ok(0) => break,
                Ok(length) => answer.extend_from_slice(&part[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(answer)
    }

    fn say(&mut self, line: &str) -> io::Result<()> {
        self.hurry()?;
        self.stream.get_mut().write_all(format!("{line}\n").as_bytes())
    }

    /// No single wait goes beyond the deadline of the whole.
    fn hurry(&mut self) -> io::Result<()> {
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
    /// Writes the job's figures as series of a run.
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

    /// Sentences on ranks that are missing, failed or furthest behind, for the log; few.
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

    /// Most collectives of one function by which a rank is behind another.
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

/// The names of the run's series, to be ended with it.
pub(crate) fn is_ras(series: &Labels) -> bool {
    series
        .metric_name()
        .is_some_and(|name| name.starts_with("nccl_ras_"))
}

#[cfg(test)]
mod tests;
