//! Sends samples by Prometheus remote write 1: the same bytes to every server.
//!
//! Each connection has its own nodes and sends their ticks in order, one request at a time, like a shard of a real sender.

mod connection;
mod request;

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::Args;
use serde::Serialize;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use self::connection::Sender;
use self::request::PreparedSeries;
use crate::Fleet;
use crate::http::Server;
use crate::latency::{Latencies, Summary};
use crate::process;

/// What to send, and how.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Number of ticks to send.
    #[arg(long, default_value_t = 60)]
    pub ticks: u64,
    /// The first tick.
    #[arg(long, default_value_t = 0)]
    pub first_tick: u64,
    /// Time of tick 0, in milliseconds since the epoch. Default: now; without a rate, such that the last tick is now.
    #[arg(long)]
    pub start_ms: Option<i64>,
    /// Samples per request: a number, or `all` for as many as a connection has (at most 64 ticks of its series).
    #[arg(long, default_value = "2000", value_parser = samples)]
    pub samples_per_request: usize,
    /// Consecutive samples of a series in one request. 1 is what a scraper's queue sends.
    #[arg(long, default_value_t = 1)]
    pub column: u64,
    /// Number of connections. Each sends its own nodes.
    #[arg(long, default_value_t = 1)]
    pub connections: u32,
    /// Ticks per second, or `max`.
    #[arg(long, default_value = "max", value_parser = rate)]
    pub rate: f64,
    /// Sends only one tick in this many.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub spacing: u64,
    /// Connections wait for each other every N ticks, for servers that refuse samples much older than the newest.
    #[arg(long, value_name = "TICKS", value_parser = clap::value_parser!(u64).range(1..))]
    pub abreast: Option<u64>,
    /// The id of a process on this machine whose CPU time is measured.
    #[arg(long)]
    pub server_pid: Option<u32>,
}

impl Default for Plan {
    /// Returns the defaults of the command line.
    fn default() -> Self {
        Self {
            ticks: 60,
            first_tick: 0,
            start_ms: None,
            samples_per_request: 2_000,
            column: 1,
            connections: 1,
            rate: f64::INFINITY,
            spacing: 1,
            abreast: None,
            server_pid: None,
        }
    }
}

impl Plan {
    /// Returns the time of tick 0: now if there is a rate, because time passes while sending; otherwise such that all ticks are
    /// in the past.
    fn start_from(&self, now_ms: i64) -> i64 {
        let span_ms = (self.first_tick + self.ticks + 1) as i64 * crate::fleet::TICK_MS;
        if self.rate.is_finite() {
            now_ms
        } else {
            now_ms - span_ms
        }
    }
}

/// The result.
#[derive(Debug, Default, Serialize)]
pub struct Outcome {
    /// The time of tick 0, in milliseconds since the epoch.
    pub start_ms: i64,
    /// Samples that were accepted.
    pub samples: u64,
    /// Requests that were accepted or refused permanently.
    pub requests: u64,
    /// Requests that were sent again (429, 5xx, broken connections).
    pub retries: u64,
    /// Requests that were refused permanently. Their samples are not counted.
    pub refused: u64,
    /// The response of the server to the first refused request.
    pub first_refusal: Option<String>,
    /// Bytes before compression.
    pub bytes_raw: u64,
    /// Bytes after compression.
    pub bytes_sent: u64,
    /// The duration in seconds.
    pub seconds: f64,
    /// CPU seconds of the generator.
    pub cpu_s: f64,
    /// CPU seconds of the server before the first request and after the last.
    pub server_cpu_s: Option<(f64, f64)>,
    /// The time from sending a request to its final response, including repetitions.
    pub latency: Summary,
}

/// Sends all samples.
///
/// # Errors
/// Fails if the fleet has too many metrics, or a request is not accepted within two minutes.
pub async fn run(server: &Server, fleet: Fleet, plan: &Plan, now_ms: i64) -> Result<Outcome> {
    fleet.check()?;
    let plan = Arc::new(Plan {
        start_ms: Some(plan.start_ms.unwrap_or(plan.start_from(now_ms))),
        ..plan.clone()
    });
    let shards = shards(fleet, &plan);
    let server_before = plan.server_pid.and_then(process::cpu_s);
    let (begin, cpu_before) = (Instant::now(), process::own_cpu_s());
    let (mut senders, barrier) = (JoinSet::new(), Arc::new(Barrier::new(shards.len())));
    for shard in shards {
        senders.spawn(Sender::new(server.clone(), plan.clone(), begin, barrier.clone()).send(shard));
    }
    let (mut all, mut latencies) = (Outcome::default(), Latencies::default());
    while let Some(sent) = senders.join_next().await {
        let sent = sent.context("a connection's task failed")??;
        all.add(sent.outcome);
        latencies.merge(&sent.latencies);
    }
    let server_after = plan.server_pid.and_then(process::cpu_s);
    Ok(Outcome {
        start_ms: plan.start_ms.unwrap_or_default(),
        seconds: begin.elapsed().as_secs_f64(),
        cpu_s: process::own_cpu_s() - cpu_before,
        server_cpu_s: server_before.zip(server_after),
        latency: latencies.summary(),
        ..all
    })
}

impl Outcome {
    fn add(&mut self, other: Self) {
        self.samples += other.samples;
        self.requests += other.requests;
        self.retries += other.retries;
        self.refused += other.refused;
        self.bytes_raw += other.bytes_raw;
        self.bytes_sent += other.bytes_sent;
        self.first_refusal = self.first_refusal.take().or(other.first_refusal);
    }
}

/// Returns the series of each connection.
fn shards(fleet: Fleet, plan: &Plan) -> Vec<Vec<PreparedSeries>> {
    let connections = plan.connections.clamp(1, fleet.nodes);
    let start_ms = plan.start_ms.unwrap_or_default();
    let of = |node: u32| {
        let first = node as usize * fleet.series_per_node();
        (first..first + fleet.series_per_node())
            .map(move |series| PreparedSeries::new(fleet, series, start_ms))
    };
    let nodes = |shard: u32| (0..fleet.nodes).filter(move |node| node % connections == shard);
    (0..connections)
        .map(|shard| nodes(shard).flat_map(of).collect())
        .collect()
}

// === What a person types ===

fn samples(text: &str) -> Result<usize, String> {
    match text {
        "all" => Ok(usize::MAX),
        number => number
            .parse()
            .ok()
            .filter(|n| *n > 0)
            .ok_or_else(|| "expected a number or `all`".to_owned()),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text {
        "max" => Ok(f64::INFINITY),
        number => number
            .parse()
            .ok()
            .filter(|n| *n > 0.0)
            .ok_or_else(|| "expected ticks per second or `max`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use std::collections::HashMap;
    use std::sync::Mutex;
    use std::time::Duration;

    use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::fleet::{Names, TICK_MS};

    const FLEET: Fleet = Fleet {
        nodes: 2,
        gpus: 1,
        metrics: 3,
        seed: 1,
        names: Names::Dcgm,
        runs: 1,
    };

    #[test]
    fn connections_share_the_nodes_and_lose_none() {
        for (connections, expected) in [(1, vec![6]), (2, vec![3, 3]), (9, vec![3, 3])] {
            let plan = Plan {
                connections,
                ..Plan::default()
            };
            let sizes: Vec<_> = shards(FLEET, &plan).iter().map(Vec::len).collect();
            assert_eq!(sizes, expected);
        }
    }

    /// The newest tick of each connection, and the furthest that any was ahead of another.
    #[derive(Default)]
    struct Seen {
        newest: HashMap<u16, i64>,
        ahead: i64,
    }

    /// Accepts requests, from one connection more slowly than from the other.
    async fn serve(stream: TcpStream, seen: Arc<Mutex<Seen>>) {
        let port = stream.peer_addr().unwrap().port();
        let mut stream = BufReader::new(stream);
        loop {
            let (mut line, mut length) = (String::new(), 0);
            while stream.read_line(&mut line).await.unwrap_or(0) > 2 {
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            if length == 0 || stream.read_exact(&mut body).await.is_err() {
                return;
            }
            let raw = snap::raw::Decoder::new().decompress_vec(&body).unwrap();
            // A request ends with the time of its last sample, a varint of six bytes.
            let time = raw[raw.len() - 6..].iter().rev();
            let time_ms = time.fold(0, |time, byte| time << 7 | i64::from(byte & 0x7f));
            let slow = {
                let mut seen = seen.lock().unwrap();
                seen.newest.insert(port, (time_ms - START_MS) / TICK_MS);
                let newest = || seen.newest.values();
                let ahead = newest().max().unwrap() - newest().min().unwrap();
                seen.ahead = seen.ahead.max(ahead);
                seen.newest.keys().max() == Some(&port)
            };
            if slow {
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
            let answer = b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(answer).await.unwrap();
        }
    }

    const START_MS: i64 = 1_790_000_000_000;

    #[tokio::test]
    async fn connections_stay_abreast_whatever_their_shares() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Seen::default()));
        let taker = seen.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, taker.clone()));
            }
        });
        let server = Server::new(&url, None).unwrap();
        let fleet = Fleet { nodes: 3, ..FLEET };
        let plan = Plan {
            ticks: 400,
            start_ms: Some(START_MS),
            samples_per_request: 12,
            connections: 2,
            spacing: 3,
            abreast: Some(20),
            ..Plan::default()
        };
        let sent = run(&server, fleet, &plan, 0);
        let sent = tokio::time::timeout(Duration::from_secs(60), sent).await;
        let sent = sent.expect("connections do not wait for ever").unwrap();
        assert_eq!(sent.samples, 9 * 134);
        // One stage, and what a request contains beyond it: 12 samples of 3 series are 4 ticks, 3 apart.
        let ahead = seen.lock().unwrap().ahead;
        assert!((1..=20 + 4 * 3).contains(&ahead), "{ahead}");
    }
}
