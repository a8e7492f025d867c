//! One connection of a sender: its requests, one at a time, each repeated until it is answered for good.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use reqwest::RequestBuilder;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::sync::Barrier;

use super::request::{Sent, put_series};
use super::{Outcome, Plan};
use crate::http::Server;
use crate::latency::Latencies;

/// How long one request is repeated before the whole run fails.
const PATIENCE: Duration = Duration::from_secs(120);
/// The pause before a refused request is sent again, doubled up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Ticks of a series in one request, if they are sent one by one; bounds what `all` means.
const COLUMNS_MAX: u64 = 64;
/// Of a server's words this much is kept.
const WORDS_CHARS: usize = 300;

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
pub(super) struct Sender {
    server: Server,
    headers: HeaderMap,
    plan: Arc<Plan>,
    begin: Instant,
    /// Where all connections meet after each stage.
    barrier: Arc<Barrier>,
    stages: u64,
    snappy: snap::raw::Encoder,
    raw: Vec<u8>,
    pub(super) outcome: Outcome,
    pub(super) latencies: Latencies,
}

impl Sender {
    pub(super) fn new(server: Server, plan: Arc<Plan>, begin: Instant, barrier: Arc<Barrier>) -> Self {
        Self {
            server,
            headers: headers(),
            plan,
            begin,
            barrier,
            stages: 0,
            snappy: snap::raw::Encoder::new(),
            raw: Vec::new(),
            outcome: Outcome::default(),
            latencies: Latencies::default(),
        }
    }

    pub(super) async fn send(mut self, shard: Vec<Sent>) -> Result<Self> {
        let turns = Turns::new(&self.plan, shard.len());
        // Counted are ticks that have samples; with a spacing those are not all.
        let count = self.plan.ticks.div_ceil(self.plan.spacing);
        let spacing = self.plan.spacing;
        let first_tick = self.plan.first_tick;
        for first in (0..count).step_by(turns.ticks as usize) {
            self.wait_for(first * spacing).await;
            self.keep_abreast(first * spacing).await;
            let nths = first..(first + turns.ticks).min(count);
            for series in shard.chunks(turns.series) {
                self.raw.clear();
                for column in nths.clone().step_by(turns.column as usize) {
                    let column = column as usize..(column + turns.column).min(nths.end) as usize;
                    for series in series {
                        let ticks = column.clone().map(|nth| first_tick + nth as u64 * spacing);
                        put_series(&mut self.raw, series, ticks);
                    }
                }
                self.deliver(series.len() as u64 * (nths.end - nths.start))
                    .await?;
            }
        }
        self.keep_abreast(self.plan.ticks).await;
        Ok(self)
    }

    async fn wait_for(&self, done: u64) {
        if self.plan.rate.is_finite() {
            let due = self.begin + Duration::from_secs_f64(done as f64 / self.plan.rate);
            tokio::time::sleep_until(due.into()).await;
        }
    }

    /// Waits at every stage for all other connections: each passes as many, however its requests divide the ticks.
    async fn keep_abreast(&mut self, done: u64) {
        let Some(stage) = self.plan.abreast else { return };
        while self.stages < done / stage {
            self.stages += 1;
            self.barrier.wait().await;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_filled_with_ticks_only_when_they_do_not_wait() {
        let turns = |samples, column, rate| {
            let turns = Turns::new(
                &Plan {
                    samples_per_request: samples,
                    column,
                    rate,
                    ..Plan::default()
                },
                1_000,
            );
            (turns.series, turns.ticks)
        };
        let max = f64::INFINITY;
        assert_eq!(turns(500, 1, max), (500, 1));
        assert_eq!(turns(10_000, 1, max), (10_000, 10));
        assert_eq!(turns(10_000, 1, 1.0), (10_000, 1));
        assert_eq!(turns(10_000, 60, max), (166, 60));
        assert_eq!(turns(usize::MAX, 1, max).1, COLUMNS_MAX);
    }
}
