//! Simulates many agents over Lockstep's own protocol, in one process and with as little CPU as possible.
//!
//! ```text
//! every agent:  connect ─▶ Hello … HelloAck (join token → own credential) ─▶ Definitions ─▶ wait for all others ─▶ begin
//!               batch n = ticks (n-1)·B .. n·B of all series of the node, seq n, one segment per run
//!   live        sent after its last tick; agents read and send at the same moment of each second, so only their clocks and
//!               disks spread them
//!   backfill    sent as fast as acknowledged, with one minute of ticks in flight, as an agent's spool does
//!   ▲ any error: wait with jitter, reconnect, continue with the first batch that was not acknowledged
//! ```
//! Sent batches are not kept. A batch that must be sent again is computed again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use domain::noise::mix;
use domain::series::Frame;
use serde::Serialize;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use wire::proto::telemetry_down::Message as Down;
use wire::proto::telemetry_up::Message as Up;
use wire::proto::{Batch, Definitions, Series};
use wire::telemetry::{Endpoint, OpenError, Receiving, Sending};

use crate::Fleet;
use crate::fleet::SeriesSignal;
use crate::hello;
use crate::latency::{Latencies, Summary};
use crate::process;

/// The number of agents that join at the same time: as many as a collector admits from one address without a busy response.
/// Agents that reconnect do so independently, each after its own wait.
const JOINING_MAX: usize = 8;
/// The time within which all agents must join.
const JOIN_WITHIN: Duration = Duration::from_secs(180);
/// The time within which a hello must be answered.
const WELCOME_WITHIN: Duration = Duration::from_secs(10);
/// How long the server may acknowledge nothing while batches are in flight. The same as that of an agent.
const ACK_TIMEOUT: Duration = Duration::from_secs(60);
/// How long after the last batch was due the last acknowledgement may arrive.
const DRAIN_WITHIN: Duration = Duration::from_secs(180);
/// The maximum number of unacknowledged ticks in flight: half a minute in live mode, one minute in backfill, as with an agent.
const LIVE_WINDOW_TICKS: u64 = 32;
const BACKFILL_WINDOW_TICKS: u64 = 64;
/// How far clocks and disks spread agents that all send at the same moment of each second.
const SPREAD_MS: u64 = 100;
/// The shortest and the longest wait after a failure. Waits double and have jitter.
const RETRY_MIN: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// When batches are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Each batch when it is due.
    Live,
    /// As fast as they are acknowledged.
    Backfill,
}

/// What to send, and how.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// When batches are sent.
    #[arg(long, value_enum, default_value = "live")]
    pub mode: Mode,
    /// The number of ticks of every node (in live mode: seconds, at rate 1).
    #[arg(long, default_value_t = 120, alias = "duration")]
    pub ticks: u64,
    /// Ticks per batch. Default: 1 in live mode, 60 in backfill.
    #[arg(long)]
    pub batch_ticks: Option<u64>,
    /// Ticks per second in live mode.
    #[arg(long, default_value_t = 1.0)]
    pub rate: f64,
    /// The time of tick 0, in milliseconds since the epoch. Default: now in live mode; in backfill, such that the last tick is
    /// now.
    #[arg(long)]
    pub start_ms: Option<i64>,
    /// The id of a process on this machine whose CPU time is measured.
    #[arg(long)]
    pub server_pid: Option<u32>,
}

/// The result.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// The time of tick 0, in milliseconds since the epoch.
    pub start_ms: i64,
    /// The number of nodes.
    pub nodes: u32,
    /// The number of series of all nodes.
    pub series: usize,
    /// Samples that were acknowledged.
    pub samples: u64,
    /// Batches that were acknowledged.
    pub batches: u64,
    /// Batches that were refused.
    pub refused: u64,
    /// Batches that were not acknowledged at the end.
    pub unacknowledged: u64,
    /// The reason of the first refusal, or the last connection failure.
    pub last_words: Option<String>,
    /// How often connections were opened again.
    pub reconnects: u64,
    /// How often the server told an agent to come back later.
    pub busy: u64,
    /// Seconds until all agents had joined.
    pub join_s: f64,
    /// Seconds from the first batch to the last acknowledgement.
    pub seconds: f64,
    /// CPU seconds of the generator in that time.
    pub cpu_s: f64,
    /// CPU seconds of the server at the start and at the end of that time.
    pub server_cpu_s: Option<(f64, f64)>,
    /// The time from sending a batch to its acknowledgement.
    pub ack: Summary,
    /// The time from the moment a live batch was due (its last tick) to its acknowledgement, including outages.
    pub lateness: Summary,
}

/// Runs the whole fleet.
///
/// # Errors
/// Fails if the agents cannot join, or the fleet has too many metrics.
pub async fn run(url: &str, join: Option<String>, fleet: Fleet, plan: &Plan) -> Result<Outcome> {
    fleet.check()?;
    let endpoint = Endpoint::new(url, None).with_context(|| format!("agents cannot connect to {url:?}"))?;
    let shared = Arc::new(Shared::new(endpoint, join, fleet, plan.clone()));
    let (begin_joining, mut agents) = (Instant::now(), JoinSet::new());
    for node in 0..fleet.nodes {
        agents.spawn(Agent::new(shared.clone(), node).run());
    }
    let mut joined = shared.joined.subscribe();
    let all_joined = joined.wait_for(|joined| *joined == fleet.nodes);
    if tokio::time::timeout(JOIN_WITHIN, all_joined).await.is_err() {
        let words = shared.tally().last_words.clone().unwrap_or_default();
        bail!(
            "{} of {} agents had joined after {} s: {words}",
            *joined.borrow(),
            fleet.nodes,
            JOIN_WITHIN.as_secs()
        );
    }
    let join_s = begin_joining.elapsed().as_secs_f64();
    let server_pid = plan.server_pid;
    let (server_before, cpu_before) = (server_pid.and_then(process::cpu_s), process::own_cpu_s());
    let start = Start {
        at: Instant::now(),
        start_ms: shared.start_ms(),
    };
    shared.start.send_replace(Some(start));
    let limit = shared.last_due() + DRAIN_WITHIN;
    let _overdue = tokio::time::timeout(limit, async { while agents.join_next().await.is_some() {} }).await;
    let (seconds, server_after) = (
        start.at.elapsed().as_secs_f64(),
        server_pid.and_then(process::cpu_s),
    );
    agents.shutdown().await;
    let tally = std::mem::take(&mut *shared.tally());
    Ok(Outcome {
        start_ms: start.start_ms,
        nodes: fleet.nodes,
        series: fleet.series(),
        samples: tally.samples,
        batches: tally.batches,
        refused: tally.refused,
        unacknowledged: u64::from(fleet.nodes) * shared.batches() - tally.batches - tally.refused,
        last_words: tally.last_words,
        reconnects: tally.reconnects,
        busy: tally.busy,
        join_s,
        seconds,
        cpu_s: process::own_cpu_s() - cpu_before,
        server_cpu_s: server_before.zip(server_after),
        ack: tally.ack.summary(),
        lateness: tally.lateness.summary(),
    })
}

/// The state that all agents share.
struct Shared {
    endpoint: Endpoint,
    join: Option<String>,
    fleet: Fleet,
    plan: Plan,
    batch_ticks: u64,
    joining: Semaphore,
    joined: watch::Sender<u32>,
    start: watch::Sender<Option<Start>>,
    tally: Mutex<Tally>,
}

/// The moment when all agents begin.
#[derive(Debug, Clone, Copy)]
struct Start {
    at: Instant,
    start_ms: i64,
}

#[derive(Default)]
struct Tally {
    samples: u64,
    batches: u64,
    refused: u64,
    reconnects: u64,
    busy: u64,
    last_words: Option<String>,
    ack: Latencies,
    lateness: Latencies,
}

impl Shared {
    fn new(endpoint: Endpoint, join: Option<String>, fleet: Fleet, plan: Plan) -> Self {
        let batch_ticks = plan.batch_ticks.unwrap_or(match plan.mode {
            Mode::Live => 1,
            Mode::Backfill => 60,
        });
        Self {
            endpoint,
            join,
            fleet,
            plan,
            batch_ticks: batch_ticks.max(1),
            joining: Semaphore::new(JOINING_MAX),
            joined: watch::Sender::new(0),
            start: watch::Sender::new(None),
            tally: Mutex::default(),
        }
    }

    fn batches(&self) -> u64 {
        self.plan.ticks.div_ceil(self.batch_ticks)
    }

    fn ticks_of(&self, seq: u64) -> std::ops::Range<u64> {
        (seq - 1) * self.batch_ticks..(seq * self.batch_ticks).min(self.plan.ticks)
    }

    fn start_ms(&self) -> i64 {
        let span_ms = (self.plan.ticks as i64 + 1) * crate::fleet::TICK_MS;
        self.plan.start_ms.unwrap_or(match self.plan.mode {
            Mode::Live => crate::fleet::now_ms(),
            Mode::Backfill => crate::fleet::now_ms() - span_ms,
        })
    }

    /// Returns the time from the start until the last batch is due. For a backfill it is unknown; the limit allows for a slow
    /// disk.
    fn last_due(&self) -> Duration {
        match self.plan.mode {
            Mode::Live => Duration::from_secs_f64(self.plan.ticks as f64 / self.plan.rate + 1.0),
            Mode::Backfill => Duration::from_secs(3_600),
        }
    }

    /// Returns the maximum number of batches in flight: at least two, otherwise the server would wait for each.
    fn window(&self) -> u64 {
        let ticks = match self.plan.mode {
            Mode::Live => LIVE_WINDOW_TICKS,
            Mode::Backfill => BACKFILL_WINDOW_TICKS,
        };
        (ticks / self.batch_ticks).max(2)
    }

    fn tally(&self) -> std::sync::MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The agent of one node.
struct Agent {
    shared: Arc<Shared>,
    node: u32,
    name: String,
    segment: String,
    credential: Option<String>,
    signals: Vec<SeriesSignal>,
    counted: bool,
    acked: u64,
}

/// Returns how long a busy server told the agent to wait, if that is why there is no connection.
fn asked_wait(error: &anyhow::Error) -> Option<Duration> {
    match error.downcast_ref::<OpenError>()? {
        OpenError::Refused(status) => wire::busy::retry_after(status),
        OpenError::Connect(_) | OpenError::Late => None,
    }
}

/// A connection that the collector has accepted.
struct Connection {
    sending: Sending,
    receiving: Receiving,
}

impl Agent {
    fn new(shared: Arc<Shared>, node: u32) -> Self {
        let fleet = shared.fleet;
        Self {
            name: fleet.node_name(node),
            segment: hello::instance(node),
            credential: None,
            signals: fleet.signals_of(node),
            counted: false,
            acked: 0,
            shared,
            node,
        }
    }

    async fn run(mut self) {
        let mut pause = RETRY_MIN;
        let mut failures = 0_u64;
        while let Err(error) = self.session(&mut pause).await {
            failures += 1;
            let jitter = (mix(u64::from(self.node) ^ failures << 32) % 1_000) as f64 / 1_000.0;
            if let Some(asked) = asked_wait(&error) {
                self.shared.tally().busy += 1;
                tokio::time::sleep(asked.mul_f64(1.0 + 2.0 * jitter)).await;
                continue;
            }
            {
                let mut tally = self.shared.tally();
                tally.reconnects += 1;
                tally.last_words = Some(format!("{}: {error:#}", self.name));
            }
            tokio::time::sleep(pause.mul_f64(0.5 + jitter)).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    /// Uses one connection until everything is acknowledged.
    async fn session(&mut self, pause: &mut Duration) -> Result<()> {
        let shared = self.shared.clone();
        let mut connection = {
            let _turn = match self.counted {
                true => None,
                false => Some(
                    shared
                        .joining
                        .acquire()
                        .await
                        .context("the semaphore is never closed")?,
                ),
            };
            self.connect().await?
        };
        *pause = RETRY_MIN;
        connection
            .sending
            .send(Up::Definitions(self.definitions()))
            .await?;
        if !std::mem::replace(&mut self.counted, true) {
            shared.joined.send_modify(|joined| *joined += 1);
        }
        let start = shared
            .start
            .subscribe()
            .wait_for(Option::is_some)
            .await
            .map(|start| *start);
        let start = start.ok().flatten().context("the fleet never started")?;
        Flow::new(self, start).run(&mut connection).await
    }

    async fn connect(&mut self) -> Result<Connection> {
        let token = self.credential.as_ref().or(self.shared.join.as_ref());
        let token = token.context("agents need a join token; set LOCKSTEP_JOIN")?;
        let opened = self.shared.endpoint.open(token).await;
        let (mut sending, mut receiving) = opened.context("cannot connect")?;
        let welcomed = async {
            let inventory = self.shared.fleet.inventory(self.node);
            sending
                .send(Up::Hello(hello::hello(&inventory, &self.segment)))
                .await?;
            receiving.next().await
        };
        let first = tokio::time::timeout(WELCOME_WITHIN, welcomed)
            .await
            .context("no answer to the hello")??;
        let Some(Down::Hello(ack)) = first else {
            bail!("unexpected answer to the hello");
        };
        if !ack.credential.is_empty() {
            self.credential = Some(ack.credential);
        }
        Ok(Connection { sending, receiving })
    }

    /// Without the label `node`, which the collector adds.
    fn definitions(&self) -> Definitions {
        let fleet = self.shared.fleet;
        let first = self.node as usize * fleet.series_per_node();
        let named = |series| {
            let labels = fleet
                .labels(series)
                .into_iter()
                .filter(|(name, _)| *name != "node");
            Series {
                labels: labels
                    .flat_map(|(name, value)| [name.to_owned(), value])
                    .collect(),
            }
        };
        Definitions {
            segment: self.segment.clone(),
            first: 0,
            series: (first..first + fleet.series_per_node()).map(named).collect(),
        }
    }

    fn batch(&self, seq: u64, start_ms: i64) -> Batch {
        let (fleet, ticks) = (self.shared.fleet, self.shared.ticks_of(seq));
        let mut values = Vec::with_capacity(self.signals.len() * (ticks.end - ticks.start) as usize);
        for signal in &self.signals {
            values.extend(ticks.clone().map(|tick| signal.at(tick)));
        }
        let frame = Frame {
            series: (0..self.signals.len() as u32).collect(),
            times_ms: ticks
                .map(|tick| fleet.time_ms(start_ms, self.node, tick))
                .collect(),
            values,
        };
        wire::frame::encode(&self.segment, seq, std::slice::from_ref(&frame))
    }
}

/// The batches and acknowledgements on one connection.
struct Flow<'a> {
    agent: &'a mut Agent,
    start: Start,
    sent: u64,
    /// When each batch after `acked` was sent, in order.
    sent_at: std::collections::VecDeque<Instant>,
    progress: Instant,
}

impl<'a> Flow<'a> {
    fn new(agent: &'a mut Agent, start: Start) -> Self {
        let sent = agent.acked;
        Self {
            agent,
            start,
            sent,
            sent_at: std::collections::VecDeque::new(),
            progress: Instant::now(),
        }
    }

    async fn run(mut self, connection: &mut Connection) -> Result<()> {
        let (last, mut leaving) = (self.agent.shared.batches(), false);
        while self.agent.acked < last {
            let may_send = self.sent < last && self.sent - self.agent.acked < self.agent.shared.window();
            let due = may_send.then(|| tokio::time::Instant::from_std(self.due(self.sent + 1)));
            let deadline = tokio::time::Instant::from_std(self.progress + ACK_TIMEOUT);
            tokio::select! {
                message = connection.receiving.next() => {
                    let message = message?.context("the collector closed the stream")?;
                    self.receive(message);
                }
                room = room(due, &mut connection.sending), if may_send || leaving => {
                    room?;
                    if may_send {
                        let batch = self.agent.batch(self.sent + 1, self.start.start_ms);
                        connection.sending.put(Up::Batch(batch))?;
                        self.sent_one();
                    }
                    leaving = may_send;
                }
                () = tokio::time::sleep_until(deadline), if self.sent > self.agent.acked => {
                    bail!("nothing was acknowledged for {} s", ACK_TIMEOUT.as_secs());
                }
            }
        }
        Ok(())
    }

    fn sent_one(&mut self) {
        if self.sent == self.agent.acked {
            self.progress = Instant::now();
        }
        self.sent += 1;
        self.sent_at.push_back(Instant::now());
    }

    /// Returns when a batch is due. A live batch is due after its last tick.
    fn due(&self, seq: u64) -> Instant {
        let shared = &self.agent.shared;
        if shared.plan.mode == Mode::Backfill {
            return self.start.at;
        }
        let late = Duration::from_millis(mix(u64::from(self.agent.node)) % SPREAD_MS);
        self.start.at + Duration::from_secs_f64(shared.ticks_of(seq).end as f64 / shared.plan.rate) + late
    }

    fn receive(&mut self, message: Down) {
        self.progress = Instant::now();
        match message {
            Down::Ack(ack) if ack.segment == self.agent.segment => self.settle(ack.seq, true),
            Down::Refusal(refusal) => {
                self.agent.shared.tally().last_words.get_or_insert(refusal.reason);
                self.settle(refusal.seq, false);
            }
            _ => {}
        }
    }

    /// Records the answer for all batches up to `seq`. Only the last one can be refused, because answers are in order.
    fn settle(&mut self, seq: u64, taken: bool) {
        let (now, shared) = (Instant::now(), self.agent.shared.clone());
        let mut tally = shared.tally();
        while self.agent.acked < seq.min(self.sent) {
            self.agent.acked += 1;
            let ticks = shared.ticks_of(self.agent.acked);
            let sent_at = self.sent_at.pop_front().unwrap_or(now);
            tally.ack.add(now - sent_at);
            if shared.plan.mode == Mode::Live {
                tally
                    .lateness
                    .add(now.saturating_duration_since(self.due(self.agent.acked)));
            }
            if taken || self.agent.acked < seq {
                tally.batches += 1;
                tally.samples += (ticks.end - ticks.start) * self.agent.signals.len() as u64;
            } else {
                tally.refused += 1;
            }
        }
    }
}

/// Waits until the next batch is due and can be sent, after flushing earlier ones. Cancel-safe.
async fn room(due: Option<tokio::time::Instant>, sending: &mut Sending) -> Result<()> {
    sending.flush().await?;
    if let Some(due) = due {
        tokio::time::sleep_until(due).await;
        sending.ready().await?;
    }
    Ok(())
}
