//! Samples from agents: names once a connection, batches in order, acknowledged only when durable.
//!
//! ```text
//! Definitions ─▶ dictionary: (segment, index) → SeriesId
//! Batch ─▶ checksum, rows → series ─▶ queue ─▶ writer: all that wait of one segment = one append ─▶ Ack(highest seq)
//!              └ malformed ─▶ queue ─▶ Refusal, in its turn     at most one append in flight: order is kept by construction
//! ```
//! While one append waits for the disk the next batches gather behind it, so a backfill is not one commit a batch, and no
//! sequence number can overtake another.

mod dictionary;
mod meanings;
pub(crate) mod node_series;
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
use self::meanings::{Meaning, Meanings};
use self::socket::{Down, Up};
use self::writer::{Durable, Work};
use super::handles::{Ingest, SAMPLES_TOGETHER_MAX};
use super::hello::{self, AgentSession};
use crate::analysis::FedFrame;
use crate::clock::{self, now_us};
use crate::live::Pulse;

pub(super) use self::socket::routes;

/// Batches that wait for the writer. When full, the agent's stream is not read, and its spool holds the rest.
const BATCHES_MAX: usize = 64;
/// The longest event.
const EVENT_BYTES_MAX: usize = 8 << 10;
/// Events an agent may send a minute; a node in trouble repeats itself.
const EVENTS_A_MINUTE: u32 = 600;

/// Serves one agent's samples until either side ends.
async fn serve(ingest: &Ingest, session: &AgentSession, up: &mut Up, down: &mut Down) -> Result<(), Status> {
    let AgentSession { node, pulse, .. } = session;
    let (queue, waiting) = mpsc::channel(BATCHES_MAX);
    let writing = writer::write(ingest, node, waiting, down);
    let mut reader = Reader {
        ingest,
        node,
        pulse,
        names: Dictionaries::default(),
        meanings: Meanings::default(),
        queue,
        events: EventRate::default(),
    };
    // The reader's end closes the queue; the writer then finishes what is in it.
    let reading = async move { reader.read(up).await };
    tokio::try_join!(reading, writing).map(drop)
}

struct Reader<'a> {
    ingest: &'a Ingest,
    node: &'a NodeName,
    pulse: &'a Pulse,
    names: Dictionaries,
    meanings: Meanings,
    queue: mpsc::Sender<Work>,
    events: EventRate,
}

fn no_room() -> Status {
    Status::unavailable("the collector cannot store samples right now")
}

/// A batch as the store takes it, and what of it feeds the analysers.
struct Understood {
    blocks: Vec<Block>,
    fed: Vec<FedFrame>,
    /// The time of its latest sample.
    until_ms: TimestampMs,
}

/// Why a batch is not taken.
enum Untaken {
    /// It never will be.
    Batch(String),
    /// The store does not take it now.
    Now(AppendError),
}

impl Reader<'_> {
    async fn read(&mut self, up: &mut Up) -> Result<(), Status> {
        let mut turns = PollSemaphore::new(Arc::clone(&self.ingest.bounds.turns));
        let mut kept = None;
        while let Some((message, turn)) = up
            .next_in_turn(kept.take(), |context| turns.poll_acquire(context))
            .await?
        {
            self.pulse.beat(clock::now_ms());
            match message {
                telemetry_up::Message::Definitions(definitions) => {
                    self.define(&definitions);
                    kept = Some(turn);
                }
                telemetry_up::Message::Batch(batch) => self.take(batch, turn).await?,
                // These wait for the database: others are read meanwhile.
                telemetry_up::Message::Event(event) => {
                    drop(turn);
                    self.event(&event).await;
                }
                telemetry_up::Message::Hello(hello) => {
                    drop(turn);
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
        self.meanings.forget(&definitions.segment);
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
            tracing::warn!(node = %self.node, %reason, count, "series of an agent are not taken");
        }
    }

    async fn take(&mut self, batch: Batch, turn: Option<OwnedSemaphorePermit>) -> Result<(), Status> {
        let received_us = now_us();
        let room = self.room(&batch).await?;
        drop(turn); // another stream may read what will wait for room
        let work = match self.understand(&batch) {
            Ok(Understood {
                blocks,
                fed,
                until_ms,
            }) => Work::Store(Durable {
                segment: batch.segment.as_str().into(),
                seq: batch.seq,
                received_us,
                cells: blocks.iter().map(|block| block.values.len()).sum(),
                blocks: vec![blocks],
                fed,
                until_ms,
                room: Some(room),
            }),
            Err(Untaken::Batch(reason)) => Work::Refuse(self.refuse(&batch, reason)),
            Err(Untaken::Now(error)) => return Err(writer::refused(self.node, &error)),
        };
        drop(batch); // what it says is in the work now, which may have to wait for the queue
        self.queue.send(work).await.map_err(|_| no_room())
    }

    /// Room for the batch's samples beside those of all other agents, until they are stored. Without it the stream is not read.
    async fn room(&self, batch: &Batch) -> Result<OwnedSemaphorePermit, Status> {
        let bytes: usize = batch.frames.iter().map(|frame| frame.values.len()).sum();
        let samples = (bytes / size_of::<f64>()).min(SAMPLES_TOGETHER_MAX) as u32;
        let room = Arc::clone(&self.ingest.bounds.room).acquire_many_owned(samples);
        room.await.map_err(|_| no_room())
    }

    /// The batch's samples as the store takes them. Rows of refused series are left out; their samples are counted.
    fn understand(&mut self, batch: &Batch) -> Result<Understood, Untaken> {
        let frames = wire::frame::decode(batch).map_err(|error| Untaken::Batch(error.to_string()))?;
        let cells: usize = frames.iter().map(|frame| frame.values.len()).sum();
        if cells > APPEND_SAMPLES_MAX {
            return Err(Untaken::Batch(format!(
                "a batch of {cells} samples is larger than the {APPEND_SAMPLES_MAX} allowed; split it"
            )));
        }
        self.names.note_use(&batch.segment);
        let (mut blocks, mut left_out, mut last) = (Vec::with_capacity(frames.len()), 0, None);
        let (mut fed, mut until_ms, now_ms) = (Vec::new(), TimestampMs::MIN, clock::now_ms());
        for frame in frames {
            let meaning = self.meaning(&batch.segment, &frame.series)?;
            last = meaning.refused.as_ref().map(|(_, reason)| *reason).or(last);
            fed.extend(FedFrame::of(&meaning.fed, &frame, now_ms));
            until_ms = frame.times_ms.last().map_or(until_ms, |last| until_ms.max(*last));
            let (block, without) = meaning.block(frame);
            blocks.extend(block);
            left_out += without;
        }
        if let Some(reason) = last.filter(|_| blocks.is_empty()) {
            return Err(Untaken::Batch(format!("none of its series is taken: {reason}")));
        }
        if left_out > 0 {
            let refused = &self.ingest.metrics.refused;
            refused
                .with_label_values(&["sample_of_refused_series"])
                .inc_by(left_out);
        }
        Ok(Understood {
            blocks,
            fed,
            until_ms,
        })
    }

    fn meaning(&mut self, segment: &str, indices: &[u32]) -> Result<&Meaning, Untaken> {
        let (names, store) = (&self.names, &self.ingest.series);
        self.meanings.of(segment, indices, || {
            let rows = names.rows(segment, indices).map_err(Untaken::Batch)?;
            let shape = (!rows.series.is_empty()).then(|| store.shape(rows.series));
            Ok(Meaning {
                segment: segment.to_owned(),
                indices: indices.to_vec(),
                shape: shape.transpose().map_err(Untaken::Now)?,
                refused: rows.refused,
                fed: rows.fed.into(),
            })
        })
    }

    fn refuse(&self, batch: &Batch, reason: String) -> Refusal {
        tracing::warn!(node = %self.node, seq = batch.seq, reason, "a batch of an agent is not taken");
        self.ingest.metrics.refused.with_label_values(&["batch"]).inc();
        Refusal {
            segment: batch.segment.clone(),
            seq: batch.seq,
            reason,
        }
    }

    /// At most once, so what does not read is counted and forgotten.
    async fn event(&mut self, event: &NodeEvent) {
        let parsed = (event.event_json.len() <= EVENT_BYTES_MAX)
            .then(|| serde_json::from_str::<Event>(&event.event_json));
        match parsed {
            Some(Ok(event)) if self.events.allow(clock::now_ms()) => {
                // An agent speaks for its own node only.
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
}

impl Reader<'_> {
    /// The run of an event, unless it is another node's. One that is not known may be of a job that only this node sees.
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
                tracing::error!(%error, %run, "an event is kept without its run");
                None
            }
        }
    }
}

/// Counts events a minute.
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
