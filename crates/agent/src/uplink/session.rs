//! The telemetry stream: sends what the spool holds, live before backfill, and tells the spool what has arrived.
//!
//! ```text
//! connect ─▶ Hello … HelloAck ─▶ what was live waits ─▶ it becomes backfill, a new live segment starts
//!   ▲                              │
//!   │   loop: live record, if any and fewer than LIVE_WINDOW unacknowledged
//!   │         else backfill, up to a minute as one, if any and fewer than BACKFILL_WINDOW unacknowledged
//!   │         Ack, Refusal ─▶ spool        node event ─▶ sent, at most once
//!   │         a changed inventory ─▶ Hello again; to a collector that takes none, by a new connection at once
//!   │         the agent stops ─▶ Close, which says so
//!   └── wait with jitter ◀── any error, ACK_PATIENCE without progress
//! ```
//! An inventory changes a minute after the start of every agent, when all has been asked once that a GPU may not answer: no
//! reason to end a connection that carries samples.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tonic::Status;
use wire::proto::telemetry_down::Message as Down;
use wire::proto::telemetry_up::Message as Up;
use wire::proto::{Ack, Batch, NodeEvent};
use wire::telemetry::{Receiving, Sending};

use super::clock::{Exchange, now_us};
use super::events::Events;
use super::join;
use super::link::{Link, LinkError, Retry, causes};
use super::segment::Record;
use super::spool::Spool;

/// Live batches sent and not yet acknowledged: half a minute. Beyond, live is not live any more.
const LIVE_WINDOW: u64 = 32;
/// Backfill batches sent and not yet acknowledged: enough to keep the collector's committer busy between two of its rows,
/// few enough that live data behind them waits for no more than these.
const BACKFILL_WINDOW: u64 = 64;
/// How long the collector may take to answer the hello.
const WELCOME_PATIENCE: Duration = Duration::from_secs(10);
/// How long the collector may acknowledge nothing while batches wait.
const ACK_PATIENCE: Duration = Duration::from_secs(60);
/// How long the collector's reason is waited for on a connection that takes nothing any more.
const LAST_WORDS_WITHIN: Duration = Duration::from_secs(1);
/// How long the collector may take to be told that this agent stops.
const STOP_WITHIN: Duration = Duration::from_millis(500);
/// How often a silent connection is asked for a sign of life; after twice as long without one the collector is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Keeps the telemetry stream open until `shutdown`.
pub(crate) async fn run(link: Arc<Link>, spool: Spool, events: Events, shutdown: CancellationToken) {
    let mut retry = Retry::default();
    loop {
        let session = Session::new(&link, &spool, &events);
        let ended = session.run(&mut retry, &shutdown).await;
        if shutdown.is_cancelled() {
            return;
        }
        let Err(error) = ended else { continue };
        if let LinkError::Status(status) = &error {
            link.turned_away(status);
        }
        let cause = causes(&error);
        tracing::warn!(collector = link.url(), cause, "{error}; samples wait on disk");
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = retry.wait(Some(&error)) => {}
        }
    }
}

/// One connection's worth.
struct Session<'a> {
    link: &'a Link,
    spool: &'a Spool,
    events: &'a Events,
    cursors: HashMap<String, Cursor>,
    /// When batches left that are not acknowledged yet, as many as the windows allow.
    left: HashMap<(String, u64), i64>,
    progress: Instant,
}

/// How far a segment was sent and acknowledged on this connection.
#[derive(Debug, Clone, Default)]
struct Cursor {
    offset: u64,
    first: u64,
    sent: u64,
    acked: u64,
    /// Batches that were sent as one: the last one's number, and the first one's.
    joined: BTreeMap<u64, u64>,
}

impl Cursor {
    fn in_flight(&self) -> u64 {
        self.sent
            .saturating_sub(self.acked.max(self.first.saturating_sub(1)))
    }
}

impl<'a> Session<'a> {
    fn new(link: &'a Link, spool: &'a Spool, events: &'a Events) -> Self {
        Self {
            link,
            spool,
            events,
            cursors: HashMap::new(),
            left: HashMap::new(),
            progress: Instant::now(),
        }
    }

    /// Ends well only when it should begin again at once.
    async fn run(mut self, retry: &mut Retry, shutdown: &CancellationToken) -> Result<(), LinkError> {
        let mut inventory = self.link.inventory();
        inventory.mark_unchanged();
        let (mut sending, mut receiving, takes_more_hellos) = tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            opened = self.open() => opened?,
        };
        retry.connected();
        // A few late batches hold nothing up; more of them become backfill.
        self.spool.rotate_if_waiting_more_than(LIVE_WINDOW as usize);
        self.progress = Instant::now();
        let mut keep_alive = tokio::time::interval(KEEP_ALIVE);
        let (mut ready, mut leaving, mut changed) = (None, false, false);
        loop {
            if ready.is_none() && std::mem::take(&mut changed) {
                ready = Some(Up::Hello(self.link.hello()));
            }
            if ready.is_none() {
                ready = self.next();
            }
            tokio::select! {
                // The collector then knows that this is no failure.
                () = shutdown.cancelled() => {
                    let _gone_already = tokio::time::timeout(STOP_WITHIN, sending.stop()).await;
                    return Ok(());
                }
                message = receiving.next() => self.heard(message?.ok_or(LinkError::Closed)?),
                moved = make_way(&mut sending, ready.is_some()), if ready.is_some() || leaving => {
                    leaving = ready.is_some();
                    if let Some(Up::Batch(batch)) = ready.as_ref() {
                        self.left.insert((batch.segment.clone(), batch.seq), now_us());
                    }
                    let put = moved.and_then(|()| ready.take().map_or(Ok(()), |message| sending.put(message)));
                    if let Err(broken) = put {
                        return Err(last_words(&mut receiving, broken).await.into());
                    }
                }
                () = self.spool.grown(), if ready.is_none() => {}
                event = self.events.next(), if ready.is_none() => ready = Some(encode_event(&event)),
                Ok(()) = inventory.changed() => {
                    if !takes_more_hellos {
                        return Ok(());
                    }
                    changed = true;
                }
                _ = keep_alive.tick() => {
                    self.check_progress()?;
                    check_alive(&mut sending, &receiving).await?;
                }
            }
        }
    }

    /// Also whether the collector takes another hello on the same stream.
    async fn open(&self) -> Result<(Sending, Receiving, bool), LinkError> {
        let (mut sending, mut receiving) = self.link.connect_telemetry().await?;
        let greeted = async {
            sending.send(Up::Hello(self.link.hello())).await?;
            receiving.next().await?.ok_or(LinkError::Closed)
        };
        let first = tokio::time::timeout(WELCOME_PATIENCE, greeted).await;
        let Down::Hello(ack) = first.map_err(|_| LinkError::NotWelcomed)?? else {
            return Err(LinkError::NotWelcomed);
        };
        self.link.welcomed(&ack)?;
        tracing::info!(
            collector = self.link.url(),
            version = ack.collector_version,
            "connected"
        );
        Ok((sending, receiving, ack.takes_more_hellos))
    }

    fn heard(&mut self, message: Down) {
        self.progress = Instant::now();
        match message {
            Down::Ack(ack) => {
                self.measure(&ack);
                self.settled(&ack.segment, ack.seq);
                self.spool.acknowledge(&ack.segment, ack.seq);
            }
            Down::Refusal(refusal) => {
                tracing::warn!(
                    seq = refusal.seq,
                    reason = refusal.reason,
                    "the collector refuses a batch; it is dropped"
                );
                for seq in self.first_of(&refusal.segment, refusal.seq)..=refusal.seq {
                    self.spool.refuse(&refusal.segment, seq);
                }
                // A refusal says nothing of earlier batches, but their order is kept, so it is as good as an answer.
                self.settled(&refusal.segment, refusal.seq);
            }
            Down::Hello(_) | Down::End(_) => {}
        }
    }

    /// An acknowledgement tells the time.
    fn measure(&mut self, ack: &Ack) {
        let left_us = self.left.remove(&(ack.segment.clone(), ack.seq));
        self.left
            .retain(|(segment, seq), _| *segment != ack.segment || *seq > ack.seq);
        if let (Some(left_us), true) = (left_us, ack.received_us > 0) {
            self.link.clock().note(Exchange {
                left_us,
                received_us: ack.received_us,
                answered_us: ack.sent_us,
                returned_us: now_us(),
            });
        }
    }

    /// The first batch of those that were sent under a number.
    fn first_of(&self, segment: &str, seq: u64) -> u64 {
        let joined = self
            .cursors
            .get(segment)
            .and_then(|cursor| cursor.joined.get(&seq));
        joined.copied().unwrap_or(seq)
    }

    fn settled(&mut self, segment: &str, seq: u64) {
        if let Some(cursor) = self.cursors.get_mut(segment) {
            cursor.acked = cursor.acked.max(seq);
            cursor.joined.retain(|last, _| *last > seq);
        }
    }

    fn check_progress(&self) -> Result<(), LinkError> {
        let waiting = self.cursors.values().any(|cursor| cursor.in_flight() > 0);
        if waiting && self.progress.elapsed() > ACK_PATIENCE {
            return Err(LinkError::Stalled(ACK_PATIENCE));
        }
        Ok(())
    }

    /// What to send next, if anything may be sent.
    fn next(&mut self) -> Option<Up> {
        let (live, last) = self.spool.live();
        let cursor = self.cursors.get(&live).cloned().unwrap_or_default();
        if cursor.in_flight() < LIVE_WINDOW {
            if let Some(record) = self.next_of(&live, 1) {
                return Some(record);
            }
        } else if last.saturating_sub(cursor.sent) > LIVE_WINDOW {
            self.spool.rotate_if_waiting_more_than(LIVE_WINDOW as usize);
        }
        let backfill = self.cursors.iter().filter(|(name, _)| **name != live);
        let in_flight: u64 = backfill.map(|(_, cursor)| cursor.in_flight()).sum();
        if in_flight >= BACKFILL_WINDOW {
            return None;
        }
        let backlog = self.spool.backlog();
        self.cursors
            .retain(|name, _| *name == live || backlog.contains(name));
        backlog
            .iter()
            .find_map(|segment| self.next_of(segment, join::BATCHES_MAX))
    }

    /// The next of a segment: names, or up to so many batches as one.
    fn next_of(&mut self, segment: &str, batches_max: usize) -> Option<Up> {
        let cursor = self.cursors.entry(segment.to_owned()).or_default();
        let (record, offset) = self.spool.next(segment, cursor.offset)?;
        cursor.offset = offset;
        let first = match record {
            Record::Definitions(definitions) => return Some(Up::Definitions(definitions)),
            Record::Batch(batch) => batch,
        };
        if cursor.first == 0 {
            cursor.first = first.seq;
        }
        let (first_seq, batches) = (first.seq, cursor.gather(self.spool, first, batches_max));
        let last = batches.last()?;
        cursor.sent = last.seq;
        if last.seq == first_seq {
            return batches.into_iter().next().map(Up::Batch);
        }
        cursor.joined.insert(last.seq, first_seq);
        match join::join(&batches) {
            Ok(batch) => Some(Up::Batch(batch)),
            Err(error) => {
                tracing::error!(%segment, %error, "batches of the spool cannot be read; they are dropped");
                for seq in first_seq..=cursor.sent {
                    self.spool.refuse(segment, seq);
                }
                self.settled(segment, last.seq);
                None
            }
        }
    }
}

impl Cursor {
    /// A batch and those right behind it.
    fn gather(&mut self, spool: &Spool, first: Batch, batches_max: usize) -> Vec<Batch> {
        let segment = first.segment.clone();
        let mut values = values(&first);
        let mut batches = vec![first];
        while batches.len() < batches_max
            && let Some((Record::Batch(batch), offset)) = spool.next(&segment, self.offset)
        {
            values += self::values(&batch);
            // Of numbers without a gap the last one stands for all.
            let follows = batches.last().is_some_and(|last| batch.seq == last.seq + 1);
            if values > join::VALUES_MAX || !follows {
                break;
            }
            self.offset = offset;
            batches.push(batch);
        }
        batches
    }
}

/// Waits for room for a message, or until those before have left.
async fn make_way(sending: &mut Sending, for_a_message: bool) -> Result<(), Status> {
    if for_a_message {
        sending.ready().await
    } else {
        sending.flush().await
    }
}

/// Why the collector ended the stream, when it said so before sending failed.
async fn last_words(receiving: &mut Receiving, broken: Status) -> Status {
    let said = async {
        loop {
            match receiving.next().await {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(status) => return Some(status),
            }
        }
    };
    let said = tokio::time::timeout(LAST_WORDS_WITHIN, said).await;
    said.ok().flatten().unwrap_or(broken)
}

/// Asks for a sign of life when nothing came since the last look; gives up when none came since the one before.
async fn check_alive(sending: &mut Sending, receiving: &Receiving) -> Result<(), LinkError> {
    let silence = receiving.heard().elapsed();
    if silence >= KEEP_ALIVE * 2 {
        return Err(LinkError::Silent(silence));
    }
    if silence >= KEEP_ALIVE / 2 {
        // A connection that takes nothing is as silent as one that says nothing.
        let pinged = tokio::time::timeout(KEEP_ALIVE, sending.ping()).await;
        pinged.map_err(|_| LinkError::Silent(silence + KEEP_ALIVE))??;
    }
    Ok(())
}

fn values(batch: &Batch) -> usize {
    batch.frames.iter().map(|frame| frame.values.len() / 8).sum()
}

fn encode_event(event: &domain::event::Event) -> Up {
    Up::Event(NodeEvent {
        event_json: serde_json::to_string(event).expect("an event is plain data"),
    })
}
