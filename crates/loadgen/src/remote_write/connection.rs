//! One connection of a sender. It sends one request at a time, and repeats each until there is a final response.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use reqwest::RequestBuilder;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::sync::Barrier;

use super::request::{PreparedSeries, put_series};
use super::{Outcome, Plan};
use crate::http::Server;
use crate::latency::Latencies;

/// How long one request is repeated before the whole program fails.
const RETRY_TIMEOUT: Duration = Duration::from_secs(120);
/// The pause before a request is sent again. It doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The maximum number of ticks of a series in one request if they are sent one by one. It bounds `all`.
const COLUMNS_MAX: u64 = 64;
/// How much of a server's error text is kept, in characters.
const ERROR_CHARS_MAX: usize = 300;

/// The content of a request: some series, some ticks, and how many consecutive ticks of each series.
#[derive(Debug, PartialEq, Eq)]
struct RequestLayout {
    series: usize,
    ticks: u64,
    column: u64,
}

impl RequestLayout {
    /// Without a rate, a request is filled with later ticks of the same series, like a queue that is behind.
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
    /// The barrier at which all connections wait after each stage.
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

    pub(super) async fn send(mut self, shard: Vec<PreparedSeries>) -> Result<Self> {
        let layout = RequestLayout::new(&self.plan, shard.len());
        // Counts only ticks with samples; with a spacing these are not all ticks.
        let count = self.plan.ticks.div_ceil(self.plan.spacing);
        let spacing = self.plan.spacing;
        let first_tick = self.plan.first_tick;
        for first in (0..count).step_by(layout.ticks as usize) {
            self.wait_for(first * spacing).await;
            self.wait_for_others(first * spacing).await;
            let nths = first..(first + layout.ticks).min(count);
            for series in shard.chunks(layout.series) {
                self.raw.clear();
                for column in nths.clone().step_by(layout.column as usize) {
                    let column = column as usize..(column + layout.column).min(nths.end) as usize;
                    for series in series {
                        let ticks = column.clone().map(|nth| first_tick + nth as u64 * spacing);
                        put_series(&mut self.raw, series, ticks);
                    }
                }
                self.deliver(series.len() as u64 * (nths.end - nths.start))
                    .await?;
            }
        }
        self.wait_for_others(self.plan.ticks).await;
        Ok(self)
    }

    async fn wait_for(&self, done: u64) {
        if self.plan.rate.is_finite() {
            let due = self.begin + Duration::from_secs_f64(done as f64 / self.plan.rate);
            tokio::time::sleep_until(due.into()).await;
        }
    }

    /// Waits for all other connections at every stage. Each connection passes all stages, however its requests divide the
    /// ticks.
    async fn wait_for_others(&mut self, done: u64) {
        let Some(stage) = self.plan.abreast else { return };
        while self.stages < done / stage {
            self.stages += 1;
            self.barrier.wait().await;
        }
    }

    /// Sends `raw` until there is a final response.
    async fn deliver(&mut self, samples: u64) -> Result<()> {
        let body = self
            .snappy
            .compress_vec(&self.raw)
            .context("cannot compress a request")?;
        self.outcome.bytes_raw += self.raw.len() as u64;
        self.outcome.bytes_sent += body.len() as u64;
        // A request in memory shares its bytes with its repetitions.
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
                Answer::Later(why) if begin.elapsed() > RETRY_TIMEOUT => {
                    bail!(
                        "a request was not accepted within {} s: {why}",
                        RETRY_TIMEOUT.as_secs()
                    )
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
            words.chars().take(ERROR_CHARS_MAX).collect::<String>()
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
        let layout = |samples, column, rate| {
            let layout = RequestLayout::new(
                &Plan {
                    samples_per_request: samples,
                    column,
                    rate,
                    ..Plan::default()
                },
                1_000,
            );
            (layout.series, layout.ticks)
        };
        let max = f64::INFINITY;
        assert_eq!(layout(500, 1, max), (500, 1));
        assert_eq!(layout(10_000, 1, max), (10_000, 10));
        assert_eq!(layout(10_000, 1, 1.0), (10_000, 1));
        assert_eq!(layout(10_000, 60, max), (166, 60));
        assert_eq!(layout(usize::MAX, 1, max).1, COLUMNS_MAX);
    }
}
