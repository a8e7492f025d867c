//! The telemetry stream: sends the batches of the spool, live batches before backfill, and passes acknowledgements to the spool.
//!
//! ```text
//! connect ─▶ Hello … HelloAck ─▶ if many live batches wait, they become backfill and a new live segment starts
//!   ▲                              │
//!   │   loop: a live record, if there is one and fewer than LIVE_WINDOW are unacknowledged
//!   │         else backfill, up to one minute joined, if there is some and fewer than BACKFILL_WINDOW are unacknowledged
//!   │         Ack, Refusal ─▶ spool        node event ─▶ sent, at most once
//!   │         the inventory changed ─▶ Hello again; if the collector does not accept that, a new connection at once
//!   │         the agent stops ─▶ Close, so that the collector knows the reason
//!   └── wait with jitter ◀── any error, ACK_TIMEOUT without progress
//! ```
//! The inventory changes one minute after the start of every agent, when the reader has tried once everything that a GPU may not support.
//! This is no reason to end a connection that carries samples.

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
use super::join_batches;
use super::link::{Link, LinkError, Retry, causes};
use super::segment::Record;
use super::spool::Spool;

/// The maximum number of live batches sent but not acknowledged: half a minute. Older batches are no longer live.
const LIVE_WINDOW: u64 = 32;
/// The maximum number of backfill batches sent but not acknowledged. It is large enough to keep the collector's committer busy between two
/// commits, and small enough that live data behind these batches does not wait for more.
const BACKFILL_WINDOW: u64 = 64;
/// How long the collector may take to answer the hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// How long batches may wait without any acknowledgement.
const ACK_TIMEOUT: Duration = Duration::from_secs(60);
/// After sending failed, how long the agent waits for the collector's reason.
const CLOSE_REASON_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the message that this agent stops may take.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);
/// How often the connection is checked, and probed if it is silent. After twice this time without a message the collector counts as lost.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Keeps the telemetry stream open until `shutdown` is cancelled.
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
            link.handle_refusal(status);
        }
        let cause = causes(&error);
        tracing::warn!(collector = link.url(), cause, "{error}; samples wait on disk");
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = retry.wait(Some(&error)) => {}
        }
    }
}

/// The state of one connection.
struct Session<'a> {
    link: &'a Link,
    spool: &'a Spool,
    events: &'a Events,
    cursors: HashMap<String, Cursor>,
    /// When each batch that is not acknowledged was sent, in microseconds since 1970. The windows bound its size.
    left: HashMap<(String, u64), i64>,
    progress: Instant,
}

/// The position in a segment up to which this connection has sent batches and received acknowledgements.
#[derive(Debug, Clone, Default)]
struct Cursor {
    offset: u64,
    first: u64,
    sent: u64,
    acked: u64,
    /// Joined batches: the number of the last batch, and the number of the first one.
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

    /// Runs one connection. Returns `Ok` only if the agent stops, or if it should connect again at once.
    async fn run(mut self, retry: &mut Retry, shutdown: &CancellationToken) -> Result<(), LinkError> {
        let mut inventory = self.link.inventory();
        inventory.mark_unchanged();
        let (mut sending, mut receiving, takes_more_hellos) = tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            opened = self.open() => opened?,
        };
        retry.connected();
        // A few late batches do not matter; more than a window become backfill.
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
                // This message tells the collector that the end of the connection is no failure.
                () = shutdown.cancelled() => {
                    let _gone_already = tokio::time::timeout(STOP_TIMEOUT, sending.stop()).await;
                    return Ok(());
                }
                message = receiving.next() => self.receive(message?.ok_or(LinkError::Closed)?),
                moved = wait_for_room(&mut sending, ready.is_some()), if ready.is_some() || leaving => {
                    leaving = ready.is_some();
                    if let Some(Up::Batch(batch)) = ready.as_ref() {
                        self.left.insert((batch.segment.clone(), batch.seq), now_us());
                    }
                    let put = moved.and_then(|()| ready.take().map_or(Ok(()), |message| sending.put(message)));
                    if let Err(broken) = put {
                        return Err(close_reason(&mut receiving, broken).await.into());
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

    /// Connects and exchanges hellos. The third value is true if the collector accepts another hello on the same stream.
    async fn open(&self) -> Result<(Sending, Receiving, bool), LinkError> {
        let (mut sending, mut receiving) = self.link.connect_telemetry().await?;
        let hellos = async {
            sending.send(Up::Hello(self.link.hello())).await?;
            receiving.next().await?.ok_or(LinkError::Closed)
        };
        let first = tokio::time::timeout(HELLO_TIMEOUT, hellos).await;
        let Down::Hello(ack) = first.map_err(|_| LinkError::NoHello)?? else {
            return Err(LinkError::NoHello);
        };
        self.link.accept_hello(&ack)?;
        tracing::info!(
            collector = self.link.url(),
            version = ack.collector_version,
            "connected"
        );
        Ok((sending, receiving, ack.takes_more_hellos))
    }

    fn receive(&mut self, message: Down) {
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
                    "the collector refused a batch; the batch is dropped"
                );
                for seq in self.first_of(&refusal.segment, refusal.seq)..=refusal.seq {
                    self.spool.refuse(&refusal.segment, seq);
                }
                // A refusal does not acknowledge earlier batches, but batches are answered in order, so it settles them as well.
                self.settled(&refusal.segment, refusal.seq);
            }
            Down::Hello(_) | Down::End(_) => {}
        }
    }

    /// Measures the clock offset with an acknowledgement.
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

    /// Returns the number of the first batch that was sent in the joined batch `seq`.
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
        if waiting && self.progress.elapsed() > ACK_TIMEOUT {
            return Err(LinkError::Stalled(ACK_TIMEOUT));
        }
        Ok(())
    }

    /// Returns the next message to send, if the windows allow one.
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
            .find_map(|segment| self.next_of(segment, join_batches::BATCHES_MAX))
    }

    /// Returns the next record of a segment: definitions, or up to `batches_max` batches joined.
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
        match join_batches::join(&batches) {
            Ok(batch) => Some(Up::Batch(batch)),
            Err(error) => {
                tracing::error!(%segment, %error, "cannot decode batches of the spool; they are dropped");
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
    /// Returns a batch and the batches that follow it directly.
    fn gather(&mut self, spool: &Spool, first: Batch, batches_max: usize) -> Vec<Batch> {
        let segment = first.segment.clone();
        let mut values = values(&first);
        let mut batches = vec![first];
        while batches.len() < batches_max
            && let Some((Record::Batch(batch), offset)) = spool.next(&segment, self.offset)
        {
            values += self::values(&batch);
            // The last number stands for all only if the numbers have no gap.
            let follows = batches.last().is_some_and(|last| batch.seq == last.seq + 1);
            if values > join_batches::VALUES_MAX || !follows {
                break;
            }
            self.offset = offset;
            batches.push(batch);
        }
        batches
    }
}

/// Waits for room for a message, or (without one) until the earlier messages are sent.
async fn wait_for_room(sending: &mut Sending, for_a_message: bool) -> Result<(), Status> {
    if for_a_message {
        sending.ready().await
    } else {
        sending.flush().await
    }
}

/// Returns the status with which the collector ended the stream, or `broken` if it did not send one.
async fn close_reason(receiving: &mut Receiving, broken: Status) -> Status {
    let status = async {
        loop {
            match receiving.next().await {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(status) => return Some(status),
            }
        }
    };
    let status = tokio::time::timeout(CLOSE_REASON_TIMEOUT, status).await;
    status.ok().flatten().unwrap_or(broken)
}

/// Sends a ping if nothing was received for half of [`KEEP_ALIVE`]. Returns an error if nothing was received for twice that time.
async fn check_alive(sending: &mut Sending, receiving: &Receiving) -> Result<(), LinkError> {
    let silence = receiving.heard().elapsed();
    if silence >= KEEP_ALIVE * 2 {
        return Err(LinkError::Silent(silence));
    }
    if silence >= KEEP_ALIVE / 2 {
        // A connection that accepts no data counts as silent.
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
