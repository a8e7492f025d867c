//! The telemetry stream: sends what the spool holds, live before backfill, and tells the spool what has arrived.
//!
//! ```text
//! connect ─▶ Hello … HelloAck ─▶ what was live waits ─▶ it becomes backfill, a new live segment starts
//!   ▲                              │
//!   │   loop: live record, if any and fewer than LIVE_WINDOW unacknowledged
//!   │         else backfill record, if any and fewer than BACKFILL_WINDOW unacknowledged
//!   │         Ack, Refusal ─▶ spool        node event ─▶ sent, at most once
//!   └── wait with jitter ◀── any error, ACK_PATIENCE without progress, a changed inventory (at once)
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Streaming;
use wire::proto::telemetry_down::Message as Down;
use wire::proto::telemetry_up::Message as Up;
use wire::proto::{NodeEvent, TelemetryDown, TelemetryUp};

use super::events::Events;
use super::link::{Link, LinkError, Retry, Stream, causes};
use super::segment::Record;
use super::spool::Spool;

/// Live batches sent and not yet acknowledged: half a minute. Beyond, live is not live any more.
const LIVE_WINDOW: u64 = 32;
/// Backfill batches sent and not yet acknowledged: enough to keep the collector's committer busy between two of its rows,
/// few enough that live data behind them waits for no more than these.
const BACKFILL_WINDOW: u64 = 64;
/// Messages between this task and the connection; small, because what is in there cannot be overtaken.
const OUTGOING: usize = 4;
/// How long the collector may take to answer the hello.
const WELCOME_PATIENCE: Duration = Duration::from_secs(10);
/// How long the collector may acknowledge nothing while batches wait.
const ACK_PATIENCE: Duration = Duration::from_secs(60);

/// Keeps the telemetry stream open until `shutdown`.
pub(crate) async fn run(link: Arc<Link>, spool: Spool, events: Events, shutdown: CancellationToken) {
    let mut retry = Retry::default();
    loop {
        let session = Session::new(&link, &spool, &events);
        let ended = tokio::select! {
            () = shutdown.cancelled() => return,
            ended = session.run(&mut retry) => ended,
        };
        match ended {
            Ok(()) => continue,
            Err(error) => {
                if let LinkError::Status(status) = &error {
                    link.turned_away(status);
                }
                let cause = causes(&error);
                tracing::warn!(collector = link.url(), cause, "{error}; samples wait on disk");
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = retry.wait() => {}
        }
    }
}

/// One connection's worth.
struct Session<'a> {
    link: &'a Link,
    spool: &'a Spool,
    events: &'a Events,
    cursors: HashMap<String, Cursor>,
    progress: Instant,
}

/// How far a segment was sent and acknowledged on this connection.
#[derive(Debug, Clone, Copy, Default)]
struct Cursor {
    offset: u64,
    first: u64,
    sent: u64,
    acked: u64,
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
            progress: Instant::now(),
        }
    }

    /// Ends well only when it should begin again at once.
    async fn run(mut self, retry: &mut Retry) -> Result<(), LinkError> {
        let mut inventory = self.link.inventory();
        inventory.mark_unchanged();
        let (outgoing, mut incoming) = self.open().await?;
        retry.reset();
        // A few late batches hold nothing up; more of them become backfill.
        self.spool.rotate_if_waiting_more_than(LIVE_WINDOW as usize);
        self.progress = Instant::now();
        let mut patience = tokio::time::interval(ACK_PATIENCE / 4);
        let mut ready: Option<Up> = None;
        loop {
            if ready.is_none() {
                ready = self.next();
            }
            tokio::select! {
                message = incoming.message() => self.heard(message?.ok_or(LinkError::Closed)?),
                permit = outgoing.reserve(), if ready.is_some() => {
                    let message = ready.take();
                    permit.map_err(|_| LinkError::Closed)?.send(TelemetryUp { message });
                }
                () = self.spool.grown(), if ready.is_none() => {}
                event = self.events.next(), if ready.is_none() => ready = Some(encode_event(&event)),
                changed = inventory.changed() => if changed.is_ok() { return Ok(()) },
                _ = patience.tick() => self.check_progress()?,
            }
        }
    }

    async fn open(&self) -> Result<(mpsc::Sender<TelemetryUp>, Streaming<TelemetryDown>), LinkError> {
        let mut client = self.link.connect(Stream::Telemetry).await?;
        let (outgoing, receiver) = mpsc::channel(OUTGOING);
        let hello = TelemetryUp {
            message: Some(Up::Hello(self.link.hello())),
        };
        outgoing.try_send(hello).map_err(|_| LinkError::Closed)?;
        let opened = async {
            let mut incoming = client
                .telemetry(ReceiverStream::new(receiver))
                .await?
                .into_inner();
            let first = incoming.message().await?.ok_or(LinkError::Closed)?;
            Ok::<_, LinkError>((incoming, first))
        };
        let opened = tokio::time::timeout(WELCOME_PATIENCE, opened).await;
        let (incoming, first) = opened.map_err(|_| LinkError::NotWelcomed)??;
        let Some(Down::Hello(ack)) = first.message else {
            return Err(LinkError::NotWelcomed);
        };
        self.link.welcomed(&ack)?;
        tracing::info!(
            collector = self.link.url(),
            version = ack.collector_version,
            "connected"
        );
        Ok((outgoing, incoming))
    }

    fn heard(&mut self, message: TelemetryDown) {
        self.progress = Instant::now();
        match message.message {
            Some(Down::Ack(ack)) => {
                self.settled(&ack.segment, ack.seq);
                self.spool.acknowledge(&ack.segment, ack.seq);
            }
            Some(Down::Refusal(refusal)) => {
                tracing::warn!(
                    seq = refusal.seq,
                    reason = refusal.reason,
                    "the collector refuses a batch; it is dropped"
                );
                self.spool.refuse(&refusal.segment, refusal.seq);
                // A refusal says nothing of earlier batches, but their order is kept, so it is as good as an answer.
                self.settled(&refusal.segment, refusal.seq);
            }
            Some(Down::Hello(_)) | None => {}
        }
    }

    fn settled(&mut self, segment: &str, seq: u64) {
        if let Some(cursor) = self.cursors.get_mut(segment) {
            cursor.acked = cursor.acked.max(seq);
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
        let cursor = self.cursors.get(&live).copied().unwrap_or_default();
        if cursor.in_flight() < LIVE_WINDOW {
            if let Some(record) = self.next_of(&live) {
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
        backlog.iter().find_map(|segment| self.next_of(segment))
    }

    fn next_of(&mut self, segment: &str) -> Option<Up> {
        let cursor = self.cursors.entry(segment.to_owned()).or_default();
        let (record, offset) = self.spool.next(segment, cursor.offset)?;
        cursor.offset = offset;
        Some(match record {
            Record::Definitions(definitions) => Up::Definitions(definitions),
            Record::Batch(batch) => {
                if cursor.first == 0 {
                    cursor.first = batch.seq;
                }
                cursor.sent = batch.seq;
                Up::Batch(batch)
            }
        })
    }
}

fn encode_event(event: &domain::event::Event) -> Up {
    Up::Event(NodeEvent {
        event_json: serde_json::to_string(event).expect("an event is plain data"),
    })
}
