//! Prometheus remote write 1: the same bytes to every server.
//!
//! ```text
//! WriteRequest  1: TimeSeries*      TimeSeries  1: Label* (encoded once a series)   2: Sample*
//! Sample        1: double value     2: int64 timestamp_ms
//! ```
//! Each connection has its own nodes and sends their ticks in order, one request at a time, as a sender's shard does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use reqwest::RequestBuilder;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::Fleet;
use crate::http::Server;
use crate::latency::{Latencies, Summary};
use crate::process;
use crate::signal::Signal;

/// How long one request is repeated before the whole run fails.
const PATIENCE: Duration = Duration::from_secs(120);
/// The pause before a refused request is sent again, doubled up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Ticks of a series in one request, if they are sent one by one; bounds what `all` means.
const COLUMNS_MAX: u64 = 64;
/// Of a server's words this much is kept.
const WORDS_CHARS: usize = 300;

/// What is sent, and how.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Ticks to send.
    #[arg(long, default_value_t = 60)]
    pub ticks: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    pub first_tick: u64,
    /// Time of tick 0, milliseconds since the epoch; by default now, or without a rate such that the
    /// last tick is now.
    #[arg(long)]
    pub start_ms: Option<i64>,
    /// Samples in one request: a number, or `all` for as many as a connection has (64 ticks of its series at most).
    #[arg(long, default_value = "2000", value_parser = samples)]
    pub samples_per_request: usize,
    /// Samples of a series that travel together; 1 is what a scraper's queue sends.
    #[arg(long, default_value_t = 1)]
    pub column: u64,
    /// Connections, each with its own nodes.
    #[arg(long, default_value_t = 1)]
    pub connections: u32,
    /// Ticks a second, or `max`.
    #[arg(long, default_value = "max", value_parser = rate)]
    pub rate: f64,
    /// A process on this machine whose CPU time is read before and after.
    #[arg(long)]
    pub server_pid: Option<u32>,
}

impl Plan {
    /// With a rate time passes while sending, so tick 0 is now; without one all ticks lie behind.
    fn start_from(&self, now_ms: i64) -> i64 {
        let span_ms = (self.first_tick + self.ticks + 1) as i64 * crate::fleet::TICK_MS;
        if self.rate.is_finite() {
            now_ms
        } else {
            now_ms - span_ms
        }
    }
}

/// What happened.
#[derive(Debug, Default, Serialize)]
pub struct Outcome {
    /// Time of tick 0.
    pub start_ms: i64,
    /// Samples that were accepted.
    pub samples: u64,
    /// Requests that were answered for good.
    pub requests: u64,
    /// Requests that had to be sent again (429, 5xx, broken connections).
    pub retries: u64,
    /// Requests that were refused for good; their samples are not counted.
    pub refused: u64,
    /// What the server said to the first of them.
    pub first_refusal: Option<String>,
    /// Bytes before and after compression.
    pub bytes_raw: u64,
    /// See `bytes_raw`.
    pub bytes_sent: u64,
    /// How long it took.
    pub seconds: f64,
    /// CPU seconds of the generator.
    pub cpu_s: f64,
    /// CPU seconds of the server before the first request and after the last.
    pub server_cpu_s: Option<(f64, f64)>,
    /// From sending a request to its answer, repeats included.
    pub latency: Summary,
}

/// Sends all of it.
///
/// # Errors
/// When a request fails for longer than [`PATIENCE`].
pub async fn run(server: &Server, fleet: Fleet, plan: &Plan, now_ms: i64) -> Result<Outcome> {
    let plan = Arc::new(Plan {
        start_ms: Some(plan.start_ms.unwrap_or(plan.start_from(now_ms))),
        ..plan.clone()
    });
    let shards = shards(fleet, &plan);
    let server_before = plan.server_pid.and_then(process::cpu_s);
    let (begin, cpu_before) = (Instant::now(), process::own_cpu_s());
    let mut senders = JoinSet::new();
    for shard in shards {
        senders.spawn(Sender::new(server.clone(), plan.clone(), begin).send(shard));
    }
    let (mut all, mut latencies) = (Outcome::default(), Latencies::default());
    while let Some(sent) = senders.join_next().await {
        let sent = sent.context("a connection's task broke")??;
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

/// The series of one connection.
struct Shard {
    series: Vec<Sent>,
}

/// A series as it is sent again and again.
struct Sent {
    /// Its `Label` messages, with their tags.
    labels: Box<[u8]>,
    signal: Signal,
    start_ms: i64,
}

fn shards(fleet: Fleet, plan: &Plan) -> Vec<Shard> {
    let connections = plan.connections.clamp(1, fleet.nodes);
    let start_ms = plan.start_ms.unwrap_or_default();
    let of = |node: u32| {
        let first = node as usize * fleet.series_a_node();
        (first..first + fleet.series_a_node()).map(move |series| Sent {
            labels: encode_labels(&fleet.labels(series)),
            signal: fleet.signal(series),
            start_ms: fleet.time_ms(start_ms, node, 0),
        })
    };
    let nodes = |shard: u32| (0..fleet.nodes).filter(move |node| node % connections == shard);
    (0..connections)
        .map(|shard| Shard {
            series: nodes(shard).flat_map(of).collect(),
        })
        .collect()
}

/// What a request holds: some series, some ticks, and of each series so many ticks together.
#[derive(Debug, PartialEq, Eq)]
struct Turns {
    series: usize,
    ticks: u64,
    column: u64,
}

impl Turns {
    /// Without a rate a request is filled with the next ticks of the same series, as a queue that lags fills them.
    fn new(plan: &Plan, series: usize) -> Self {
        let column = plan.column.max(1);
        let columns = plan.samples_per_request / column as usize;
        let fitting = if plan.rate.is_finite() {
            1
        } else {
            (columns / series.max(1)).max(1) as u64
        };
        let ticks = column.saturating_mul(fitting.min(COLUMNS_MAX));
        Self {
            series: columns.max(1),
            ticks,
            column,
        }
    }
}

/// One connection.
struct Sender {
    server: Server,
    headers: HeaderMap,
    plan: Arc<Plan>,
    begin: Instant,
    snappy: snap::raw::Encoder,
    raw: Vec<u8>,
    outcome: Outcome,
    latencies: Latencies,
}

impl Sender {
    fn new(server: Server, plan: Arc<Plan>, begin: Instant) -> Self {
        Self {
            server,
            headers: headers(),
            plan,
            begin,
            snappy: snap::raw::Encoder::new(),
            raw: Vec::new(),
            outcome: Outcome::default(),
            latencies: Latencies::default(),
        }
    }

    async fn send(mut self, shard: Shard) -> Result<Self> {
        let turns = Turns::new(&self.plan, shard.series.len());
        let last = self.plan.first_tick + self.plan.ticks;
        for first in (self.plan.first_tick..last).step_by(turns.ticks as usize) {
            self.wait_for(first - self.plan.first_tick).await;
            let ticks = first..(first + turns.ticks).min(last);
            for series in shard.series.chunks(turns.series) {
                self.raw.clear();
                for column in ticks.clone().step_by(turns.column as usize) {
                    let column = column..(column + turns.column).min(ticks.end);
                    for series in series {
                        put_series(&mut self.raw, series, column.clone());
                    }
                }
                self.deliver(series.len() as u64 * (ticks.end - ticks.start))
                    .await?;
            }
        }
        Ok(self)
    }

    async fn wait_for(&self, done: u64) {
        if self.plan.rate.is_finite() {
            let due = self.begin + Duration::from_secs_f64(done as f64 / self.plan.rate);
            tokio::time::sleep_until(due.into()).await;
        }
    }

    /// Sends what is in `raw` until it is answered.
    async fn deliver(&mut self, samples: u64) -> Result<()> {
        let body = self
            .snappy
            .compress_vec(&self.raw)
            .context("cannot compress a request")?;
        self.outcome.bytes_raw += self.raw.len() as u64;
        self.outcome.bytes_sent += body.len() as u64;
        // A request in memory shares its bytes with its repeats.
        let request = self
            .server
            .post("/api/v1/write")?
            .headers(self.headers.clone())
            .body(body);
        let begin = Instant::now();
        let mut pause = PAUSE_MIN;
        loop {
            let request = request
                .try_clone()
                .context("a body in memory can be sent again")?;
            match post(request).await {
                Answer::Taken => {
                    self.outcome.samples += samples;
                    break;
                }
                Answer::Never(words) => {
                    self.outcome.refused += 1;
                    self.outcome.first_refusal.get_or_insert(words);
                    break;
                }
                Answer::Later(why) if begin.elapsed() > PATIENCE => {
                    bail!("a request was not taken within {} s: {why}", PATIENCE.as_secs())
                }
                Answer::Later(_) => {
                    self.outcome.retries += 1;
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
        self.latencies.add(begin.elapsed());
        self.outcome.requests += 1;
        Ok(())
    }
}

async fn post(request: RequestBuilder) -> Answer {
    let answer = match request.send().await {
        Ok(answer) => answer,
        Err(error) => return Answer::Later(error.to_string()),
    };
    let status = answer.status();
    let words = answer.text().await.unwrap_or_default();
    let said = || {
        format!(
            "{status}: {}",
            words.chars().take(WORDS_CHARS).collect::<String>()
        )
    };
    match status.as_u16() {
        200..300 => Answer::Taken,
        429 | 500.. => Answer::Later(said()),
        _ => Answer::Never(said()),
    }
}

fn headers() -> HeaderMap {
    let pairs = [
        ("content-type", "application/x-protobuf"),
        ("content-encoding", "snappy"),
        ("x-prometheus-remote-write-version", "0.1.0"),
    ];
    let pairs = pairs.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    HeaderMap::from_iter(pairs)
}

enum Answer {
    Taken,
    Later(String),
    Never(String),
}

// === The bytes ===

fn put_series(out: &mut Vec<u8>, series: &Sent, ticks: std::ops::Range<u64>) {
    /// Tag, length; tag and eight bytes; tag and six bytes (a time between 1971 and 2109).
    const SAMPLE_BYTES: u64 = 2 + 9 + 7;
    let length = series.labels.len() as u64 + SAMPLE_BYTES * (ticks.end - ticks.start);
    out.push(0x0a);
    put_varint(out, length);
    out.extend_from_slice(&series.labels);
    for tick in ticks {
        out.extend_from_slice(&[0x12, (SAMPLE_BYTES - 2) as u8, 0x09]);
        out.extend_from_slice(&series.signal.at(tick).to_le_bytes());
        out.push(0x10);
        put_varint(
            out,
            (series.start_ms + tick as i64 * crate::fleet::TICK_MS) as u64,
        );
    }
}

fn encode_labels(labels: &[(&str, String)]) -> Box<[u8]> {
    let mut out = Vec::new();
    for (name, value) in labels {
        let mut label = Vec::new();
        for (tag, text) in [(0x0a, *name), (0x12, value)] {
            label.push(tag);
            put_varint(&mut label, text.len() as u64);
            label.extend_from_slice(text.as_bytes());
        }
        out.push(0x0a);
        put_varint(&mut out, label.len() as u64);
        out.extend(label);
    }
    out.into()
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

// === What a person types ===

fn samples(text: &str) -> Result<usize, String> {
    match text {
        "all" => Ok(usize::MAX),
        number => number
            .parse()
            .ok()
            .filter(|n| *n > 0)
            .ok_or_else(|| "write a number, or all".to_owned()),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text {
        "max" => Ok(f64::INFINITY),
        number => number
            .parse()
            .ok()
            .filter(|n| *n > 0.0)
            .ok_or_else(|| "write ticks a second, or max".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLEET: Fleet = Fleet {
        nodes: 2,
        gpus: 1,
        metrics: 3,
        seed: 1,
    };

    /// A reader that knows only what the proto file says: (field, bytes or number) in their order.
    fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes);
            let field = match tag & 7 {
                0 => Field::Number(varint(&mut bytes)),
                1 => {
                    let (value, rest) = bytes.split_first_chunk::<8>().expect("eight bytes");
                    bytes = rest;
                    Field::Number(u64::from_le_bytes(*value))
                }
                _ => {
                    let length = varint(&mut bytes) as usize;
                    let (value, rest) = bytes.split_at(length);
                    bytes = rest;
                    Field::Bytes(value)
                }
            };
            found.push((tag >> 3, field));
        }
        found
    }

    #[derive(Debug, PartialEq)]
    enum Field<'a> {
        Number(u64),
        Bytes(&'a [u8]),
    }

    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (first, rest) = bytes.split_first().expect("a varint ends");
            *bytes = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                break;
            }
        }
        value
    }

    #[test]
    fn a_series_reads_back_as_the_proto_file_says() {
        let labels = FLEET.labels(4);
        let series = Sent {
            labels: encode_labels(&labels),
            signal: FLEET.signal(4),
            start_ms: 1_790_000_000_017,
        };
        let mut bytes = Vec::new();
        put_series(&mut bytes, &series, 5..7);
        let request = fields(&bytes);
        let [(1, Field::Bytes(inner))] = request.as_slice() else {
            panic!("one series, not {request:?}")
        };
        let inner = fields(inner);
        for ((name, value), (tag, field)) in labels.iter().zip(&inner) {
            let Field::Bytes(label) = field else {
                panic!("a label")
            };
            let expected = vec![
                (1, Field::Bytes(name.as_bytes())),
                (2, Field::Bytes(value.as_bytes())),
            ];
            assert_eq!((*tag, fields(label)), (1, expected));
        }
        for (tick, (tag, field)) in (5..7).zip(&inner[labels.len()..]) {
            let Field::Bytes(sample) = field else {
                panic!("a sample")
            };
            let time = 1_790_000_000_017 + tick * 1_000;
            let expected = vec![
                (1, Field::Number(series.signal.at(tick).to_bits())),
                (2, Field::Number(time)),
            ];
            assert_eq!((*tag, fields(sample)), (2, expected));
        }
        assert_eq!(inner.len(), labels.len() + 2);
    }

    fn plan(samples_per_request: usize, column: u64, connections: u32, rate: f64) -> Plan {
        Plan {
            ticks: 1,
            first_tick: 0,
            start_ms: Some(0),
            samples_per_request,
            column,
            connections,
            rate,
            server_pid: None,
        }
    }

    #[test]
    fn a_request_is_filled_with_ticks_only_when_they_do_not_wait() {
        let turns = |samples, column, rate| {
            let turns = Turns::new(&plan(samples, column, 1, rate), 1_000);
            (turns.series, turns.ticks)
        };
        let max = f64::INFINITY;
        assert_eq!(turns(500, 1, max), (500, 1));
        assert_eq!(turns(10_000, 1, max), (10_000, 10));
        assert_eq!(turns(10_000, 1, 1.0), (10_000, 1));
        assert_eq!(turns(10_000, 60, max), (166, 60));
        assert_eq!(turns(usize::MAX, 1, max).1, COLUMNS_MAX);
    }

    #[test]
    fn connections_share_the_nodes_and_lose_none() {
        for (connections, expected) in [(1, vec![6]), (2, vec![3, 3]), (9, vec![3, 3])] {
            let plan = plan(1, 1, connections, f64::INFINITY);
            let sizes: Vec<_> = shards(FLEET, &plan)
                .iter()
                .map(|shard| shard.series.len())
                .collect();
            assert_eq!(sizes, expected);
        }
    }
}
