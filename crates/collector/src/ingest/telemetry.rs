//! Samples from agents: names are sent once per connection, batches in order, and a batch is acknowledged only when it is durable.
//!
//! ```text
//! Definitions ─▶ dictionary: (segment, index) → SeriesId
//! Batch ─▶ checksum, rows → series ─▶ queue ─▶ writer: all waiting batches of a segment = one append ─▶ Ack(highest seq)
//!              └ malformed ─▶ queue ─▶ Refusal, in order        at most one append in flight: order is kept by construction
//! ```
//! While one append waits for the disk, the next batches gather behind it. So a backfill does not need one commit per batch, and no
//! sequence number can overtake another.

mod dictionary;
pub(crate) mod node_series;
mod row_mappings;
mod socket;
mod writer;

use std::sync::Arc;

use domain::event::Event;
use domain::ident::{NodeName, RunId};
use domain::series::Labels;
use domain::time::TimestampMs;
use store::series::{APPEND_SAMPLES_MAX, AppendError, Block};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_util::sync::PollSemaphore;
use tonic::Status;
use wire::proto::{Batch, Definitions, NodeEvent, Refusal, telemetry_up};

use self::dictionary::Dictionaries;
use self::row_mappings::{RowMapping, RowMappings};
use self::socket::{Down, Up};
use self::writer::{PendingBatch, WriterRequest};
use super::handles::{Ingest, SAMPLES_TOGETHER_MAX};
use super::hello::{self, AgentSession};
use crate::analysis::FedFrame;
use crate::clock::{self, now_us};
use crate::live::Heartbeat;

pub(super) use self::socket::routes;

/// Bound of the batches that wait for the writer. When the queue is full, the agent's stream is not read, and the agent's spool holds the
/// rest.
const BATCHES_MAX: usize = 64;
/// Maximum size of an event, in bytes.
const EVENT_BYTES_MAX: usize = 8 << 10;
/// Maximum number of events per minute from one agent. A node with a fault repeats its events.
const EVENTS_A_MINUTE: u32 = 600;

/// Serves one agent's samples until either side ends the stream.
async fn serve(ingest: &Ingest, session: &AgentSession, up: &mut Up, down: &mut Down) -> Result<(), Status> {
    let AgentSession {
        node,
        heartbeat,
        clock_behind_ms,
        ..
    } = session;
    let (queue, waiting) = mpsc::channel(BATCHES_MAX);
    let writing = writer::write(ingest, node, waiting, down);
    let mut reader = Reader {
        ingest,
        node,
        heartbeat,
        clock_behind_ms: *clock_behind_ms,
        names: Dictionaries::default(),
        mappings: RowMappings::default(),
        queue,
        events: EventRate::default(),
    };
    // The end of the reader closes the queue. The writer then finishes what is in the queue.
    let reading = async move { reader.read(up).await };
    tokio::try_join!(reading, writing).map(drop)
}

struct Reader<'a> {
    ingest: &'a Ingest,
    node: &'a NodeName,
    heartbeat: &'a Heartbeat,
    clock_behind_ms: i64,
    names: Dictionaries,
    mappings: RowMappings,
    queue: mpsc::Sender<WriterRequest>,
    events: EventRate,
}

fn no_room() -> Status {
    Status::unavailable("the collector cannot store samples right now")
}

/// A batch in the form that the store takes, and its frames that feed the analysers.
struct DecodedBatch {
    blocks: Vec<Block>,
    fed: Vec<FedFrame>,
    /// The time of the latest sample.
    until_ms: TimestampMs,
}

/// Why a batch is not stored.
enum BatchError {
    /// The batch is invalid and is never stored.
    Invalid(String),
    /// The store cannot take the batch now.
    Store(AppendError),
}

impl Reader<'_> {
    async fn read(&mut self, up: &mut Up) -> Result<(), Status> {
        let mut turns = PollSemaphore::new(Arc::clone(&self.ingest.bounds.turns));
        let mut kept = None;
        while let Some((message, turn)) = up
            .next_in_turn(kept.take(), |context| turns.poll_acquire(context))
            .await?
        {
            self.heartbeat.record(clock::now_ms());
            match message {
                telemetry_up::Message::Definitions(definitions) => {
                    self.define(&definitions);
                    kept = Some(turn);
                }
                telemetry_up::Message::Batch(batch) => self.take(batch, turn).await?,
                // These messages wait for the database. Other streams are read meanwhile.
                telemetry_up::Message::Event(event) => {
                    drop(turn);
                    self.event(&event).await;
                }
                telemetry_up::Message::Hello(hello) => {
                    drop(turn);
                    self.clock_behind_ms = hello::clock_behind_ms(&hello, clock::now_ms());
                    hello::again(self.ingest, self.node, hello).await?;
                }
            }
        }
        if up.stops() {
            self.ingest.live.stopping(self.node, clock::now_ms());
        }
        Ok(())
    }

    fn define(&mut self, definitions: &Definitions) {
        self.mappings.forget(&definitions.segment);
        let (ingest, node, now_ms) = (self.ingest, self.node, clock::now_ms());
        let admit = |labels: &Labels| ingest.bounds.node_series.admit(node, labels, now_ms);
        let resolve = |labels: &Labels| ingest.series.resolve(labels);
        let refused = self.names.define(definitions, node, admit, resolve);
        for (reason, count) in refused {
            self.ingest
                .metrics
                .refused
                .with_label_values(&[reason.word()])
                .inc_by(count);
            tracing::warn!(node = %self.node, %reason, count, "series of an agent were refused");
        }
    }

    async fn take(&mut self, batch: Batch, turn: Option<OwnedSemaphorePermit>) -> Result<(), Status> {
        let received_us = now_us();
        let room = self.room(&batch).await?;
        drop(turn); // another stream may read a batch that will wait for room
        let request = match self.decode(&batch) {
            Ok(DecodedBatch {
                blocks,
                fed,
                until_ms,
            }) => WriterRequest::Store(PendingBatch {
                segment: batch.segment.as_str().into(),
                seq: batch.seq,
                received_us,
                cells: blocks.iter().map(|block| block.values.len()).sum(),
                blocks: vec![blocks],
                fed,
                until_ms,
                room: Some(room),
            }),
            Err(BatchError::Invalid(reason)) => WriterRequest::Refuse(self.refuse(&batch, reason)),
            Err(BatchError::Store(error)) => return Err(writer::refused(self.node, &error)),
        };
        drop(batch); // its contents are in `request` now, which may have to wait for the queue
        self.queue.send(request).await.map_err(|_| no_room())
    }

    /// Reserves room for the batch's samples, shared with all other agents, until they are stored. The stream is not read until room is
    /// free.
    async fn room(&self, batch: &Batch) -> Result<OwnedSemaphorePermit, Status> {
        let bytes: usize = batch.frames.iter().map(|frame| frame.values.len()).sum();
        let samples = (bytes / size_of::<f64>()).min(SAMPLES_TOGETHER_MAX) as u32;
        let room = Arc::clone(&self.ingest.bounds.room).acquire_many_owned(samples);
        room.await.map_err(|_| no_room())
    }

    /// Decodes a batch into the form that the store takes. Rows of refused series are left out, and their samples are counted.
    fn decode(&mut self, batch: &Batch) -> Result<DecodedBatch, BatchError> {
        let frames = wire::frame::decode(batch).map_err(|error| BatchError::Invalid(error.to_string()))?;
        let cells: usize = frames.iter().map(|frame| frame.values.len()).sum();
        if cells > APPEND_SAMPLES_MAX {
            return Err(BatchError::Invalid(format!(
                "a batch of {cells} samples is larger than the {APPEND_SAMPLES_MAX} allowed; split it"
            )));
        }
        self.names.note_use(&batch.segment);
        let (mut blocks, mut left_out, mut last) = (Vec::with_capacity(frames.len()), 0, None);
        let (mut fed, mut until_ms) = (Vec::new(), TimestampMs::MIN);
        // The samples of a node whose clock is behind are as current as those of the others.
        let node_now_ms = clock::now_ms().saturating_sub(self.clock_behind_ms);
        for frame in frames {
            let mapping = self.mapping(&batch.segment, &frame.series)?;
            last = mapping.refused.as_ref().map(|(_, reason)| *reason).or(last);
            fed.extend(FedFrame::of(&mapping.fed, &frame, node_now_ms));
            until_ms = frame.times_ms.last().map_or(until_ms, |last| until_ms.max(*last));
            let (block, without) = mapping.block(frame);
            blocks.extend(block);
            left_out += without;
        }
        if let Some(reason) = last.filter(|_| blocks.is_empty()) {
            return Err(BatchError::Invalid(format!(
                "all its series were refused: {reason}"
            )));
        }
        if left_out > 0 {
            let refused = &self.ingest.metrics.refused;
            refused
                .with_label_values(&["sample_of_refused_series"])
                .inc_by(left_out);
        }
        Ok(DecodedBatch {
            blocks,
            fed,
            until_ms,
        })
    }

    fn mapping(&mut self, segment: &str, indices: &[u32]) -> Result<&RowMapping, BatchError> {
        let (names, store) = (&self.names, &self.ingest.series);
        self.mappings.of(segment, indices, || {
            let rows = names.rows(segment, indices).map_err(BatchError::Invalid)?;
            let shape = (!rows.series.is_empty()).then(|| store.shape(rows.series));
            Ok(RowMapping {
                segment: segment.to_owned(),
                indices: indices.to_vec(),
                shape: shape.transpose().map_err(BatchError::Store)?,
                refused: rows.refused,
                fed: rows.fed.into(),
            })
        })
    }

    fn refuse(&self, batch: &Batch, reason: String) -> Refusal {
        tracing::warn!(node = %self.node, seq = batch.seq, reason, "a batch of an agent was refused");
        self.ingest.metrics.refused.with_label_values(&["batch"]).inc();
        Refusal {
            segment: batch.segment.clone(),
            seq: batch.seq,
            reason,
        }
    }

    /// Stores an event. Events are delivered at most once, so an unreadable event is counted and dropped.
    async fn event(&mut self, event: &NodeEvent) {
        let parsed = (event.event_json.len() <= EVENT_BYTES_MAX)
            .then(|| serde_json::from_str::<Event>(&event.event_json));
        match parsed {
            Some(Ok(event)) if self.events.allow(clock::now_ms()) => {
                // An agent may report events of its own node only.
                let run = self.own_run(event.run.as_deref()).await;
                self.ingest
                    .events
                    .append(Event {
                        node: Some(self.node.to_string()),
                        run,
                        ..event
                    })
                    .await;
            }
            _ => self.ingest.metrics.refused.with_label_values(&["event"]).inc(),
        }
    }

    /// Returns the run of an event, unless the run belongs to other nodes. An unknown run is kept: it may be a job that only this node
    /// sees.
    async fn own_run(&self, run: Option<&str>) -> Option<String> {
        let run = RunId::new(run?).ok()?;
        match self.ingest.runs.is_of_others(self.node, &run).await {
            Ok(false) => Some(run.to_string()),
            Ok(true) => {
                let refused = &self.ingest.metrics.refused;
                refused.with_label_values(&["event_of_other_run"]).inc();
                None
            }
            Err(error) => {
                tracing::error!(%error, %run, "an event is stored without its run");
                None
            }
        }
    }
}

/// Counts events per minute.
#[derive(Default)]
struct EventRate {
    since_ms: TimestampMs,
    count: u32,
}

impl EventRate {
    fn allow(&mut self, now_ms: TimestampMs) -> bool {
        if now_ms - self.since_ms >= 60_000 {
            *self = Self {
                since_ms: now_ms,
                count: 0,
            };
        }
        self.count += 1;
        self.count <= EVENTS_A_MINUTE
    }
}
