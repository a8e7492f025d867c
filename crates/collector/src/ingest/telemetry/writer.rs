//! Stores batches in their order, all waiting ones at once, and acknowledges the last of them.

use std::sync::Arc;

use domain::ident::NodeName;
use domain::time::TimestampMs;
use sha2::{Digest, Sha256};
use store::series::{Append, AppendError, Appended, Block, joined};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tonic::Status;
use wire::proto::{Ack, Refusal, telemetry_down};

use super::socket::Down;
use crate::analysis::FedFrame;
use crate::clock::{self, now_us};
use crate::ingest::handles::Ingest;

/// Bound of the sequence numbers that are stored but not acknowledged while more batches of their stream wait. Each acknowledgement is a
/// packet; they took a tenth of the time of catching up. A quarter of what an agent sends ahead, so the agent never waits for an
/// acknowledgement.
const UNACKNOWLEDGED_MAX: u64 = 16;
/// Bound of the samples in one append. The store accepts twice as many.
const GATHER_SAMPLES_MAX: usize = 1 << 19;

/// A decoded batch, or several merged ones, to be stored.
pub(super) struct PendingBatch {
    pub(super) segment: Arc<str>,
    pub(super) seq: u64,
    /// When the batch with this sequence number was read.
    pub(super) received_us: i64,
    /// The blocks of each merged batch.
    pub(super) blocks: Vec<Vec<Block>>,
    /// Number of samples in the blocks.
    pub(super) cells: usize,
    /// The frames that feed the analysers, once the batch is stored.
    pub(super) fed: Vec<FedFrame>,
    /// The time of the latest sample.
    pub(super) until_ms: TimestampMs,
    /// Room for these samples, released when they are stored.
    pub(super) room: Option<OwnedSemaphorePermit>,
}

/// What the reader passes to the writer, in the order of arrival.
pub(super) enum WriterRequest {
    /// Store and acknowledge the batch.
    Store(PendingBatch),
    /// Refuse the batch for good. The refusal is sent in order, so the agent receives the results of its batches in their order.
    Refuse(Refusal),
}

/// Processes the queue until it closes.
pub(super) async fn write(
    ingest: &Ingest,
    node: &NodeName,
    mut waiting: mpsc::Receiver<WriterRequest>,
    down: &mut Down,
) -> Result<(), Status> {
    let mut pending = PendingAck::default();
    let mut next = waiting.recv().await;
    while let Some(request) = next.take() {
        match request {
            WriterRequest::Refuse(refusal) => {
                acknowledge(&mut pending, down).await?;
                down.send(telemetry_down::Message::Refusal(refusal)).await?;
            }
            WriterRequest::Store(first) => {
                let (group, batches, left_over) = gather(first, &mut waiting);
                next = left_over;
                if !pending.is_of(&group.segment) {
                    acknowledge(&mut pending, down).await?;
                }
                match store(ingest, node, group, batches).await {
                    Ok(ack) => pending.add(ack),
                    Err(status) => {
                        acknowledge(&mut pending, down).await?;
                        return Err(status);
                    }
                }
            }
        }
        next = next.or_else(|| waiting.try_recv().ok());
        if next.is_none() || pending.is_due() {
            acknowledge(&mut pending, down).await?;
        }
        if next.is_none() {
            next = waiting.recv().await;
        }
    }
    Ok(())
}

async fn acknowledge(pending: &mut PendingAck, down: &mut Down) -> Result<(), Status> {
    let Some(ack) = pending.take() else {
        return Ok(());
    };
    let sent_us = now_us();
    down.send(telemetry_down::Message::Ack(Ack { sent_us, ..ack }))
        .await
}

/// The acknowledgement of stored batches of one segment that is not sent yet.
#[derive(Default)]
struct PendingAck {
    ack: Option<Ack>,
    /// The last sequence number that was acknowledged, of any segment.
    last_acknowledged: u64,
}

impl PendingAck {
    fn is_of(&self, segment: &str) -> bool {
        self.ack.as_ref().is_none_or(|ack| ack.segment == segment)
    }

    /// Keeps the highest sequence number, which acknowledges all numbers before it, also batches that were sent twice.
    fn add(&mut self, ack: Ack) {
        if self.ack.as_ref().is_none_or(|pending| pending.seq < ack.seq) {
            self.ack = Some(ack);
        }
    }

    fn is_due(&self) -> bool {
        let pending = self.ack.as_ref().map_or(self.last_acknowledged, |ack| ack.seq);
        pending.abs_diff(self.last_acknowledged) >= UNACKNOWLEDGED_MAX
    }

    fn take(&mut self) -> Option<Ack> {
        let ack = self.ack.take()?;
        self.last_acknowledged = ack.seq;
        Some(ack)
    }
}

/// Merges the waiting batches of one segment. Returns the first item that does not belong to them.
fn gather(
    first: PendingBatch,
    waiting: &mut mpsc::Receiver<WriterRequest>,
) -> (PendingBatch, u64, Option<WriterRequest>) {
    let (mut group, mut batches) = (first, 1);
    while let Ok(request) = waiting.try_recv() {
        match request {
            WriterRequest::Store(batch) if group.continues_with(&batch) => {
                group.seq = batch.seq;
                group.received_us = batch.received_us;
                group.cells += batch.cells;
                match (&mut group.room, batch.room) {
                    (Some(room), Some(more)) => room.merge(more),
                    (room, more) => *room = room.take().or(more),
                }
                group.blocks.extend(batch.blocks);
                group.fed.extend(batch.fed);
                group.until_ms = group.until_ms.max(batch.until_ms);
                batches += 1;
            }
            other => return (group, batches, Some(other)),
        }
    }
    (group, batches, None)
}

impl PendingBatch {
    fn continues_with(&self, batch: &Self) -> bool {
        batch.segment == self.segment
            && batch.seq > self.seq
            && self.cells + batch.cells <= GATHER_SAMPLES_MAX
    }
}

async fn store(ingest: &Ingest, node: &NodeName, group: PendingBatch, batches: u64) -> Result<Ack, Status> {
    let PendingBatch {
        segment,
        seq,
        received_us,
        blocks,
        cells: _,
        fed,
        until_ms,
        room: _until_it_is_stored,
    } = group;
    let append = Append {
        source: Some((session_name(node, &segment), seq)),
        blocks: joined(blocks),
    };
    let appended = ingest
        .series
        .append(append, clock::now_ms())
        .await
        .map_err(|error| refused(node, &error))?;
    ingest.metrics.batches.inc_by(batches);
    ingest.analysis.send(node, until_ms, fed);
    count(ingest, &appended);
    Ok(Ack {
        segment: segment.to_string(),
        seq,
        received_us,
        sent_us: 0,
    })
}

fn count(ingest: &Ingest, appended: &Appended) {
    ingest
        .metrics
        .samples
        .with_label_values(&["agent"])
        .inc_by(appended.accepted);
    for (reason, count) in [
        ("too_old", appended.too_old),
        ("too_new", appended.too_new),
        ("conflict", appended.conflicts),
    ] {
        if count > 0 {
            ingest.metrics.refused.with_label_values(&[reason]).inc_by(count);
        }
    }
}

/// Returns the status that ends the stream. The agent keeps what was not acknowledged, reconnects, defines its names again and continues.
pub(super) fn refused(node: &NodeName, error: &AppendError) -> Status {
    if let AppendError::DiskFull { .. } = error {
        // The store logs this once; the agent receives it at each attempt to send.
        return Status::unavailable(error.to_string());
    }
    tracing::error!(%node, %error, "samples of an agent could not be stored");
    match error {
        AppendError::UnknownSeries(_) => {
            Status::aborted("a series was removed after its retention; connect again")
        }
        AppendError::Closed => Status::unavailable("the collector is stopping; connect again"),
        _ => Status::unavailable("the collector cannot store samples right now; try again"),
    }
}

/// Two nodes may choose the same segment name, so the store's name is a hash of both. A hash is also shorter than node and segment
/// together.
fn session_name(node: &NodeName, segment: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(node.as_str());
    hash.update([0]);
    hash.update(segment);
    hex::encode(&hash.finalize()[..16])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(segment: &str, seq: u64, cells: usize) -> WriterRequest {
        WriterRequest::Store(PendingBatch {
            segment: segment.into(),
            seq,
            received_us: 0,
            blocks: vec![],
            fed: vec![],
            until_ms: 0,
            cells,
            room: None,
        })
    }

    /// Returns the groups that the waiting batches are merged into. A refusal is a group of 0.
    fn gathered(all: Vec<WriterRequest>) -> Vec<(String, u64, u64)> {
        let (sender, mut waiting) = mpsc::channel(16);
        for request in all {
            sender
                .try_send(request)
                .unwrap_or_else(|_| panic!("there is room"));
        }
        let (mut groups, mut next) = (vec![], waiting.try_recv().ok());
        while let Some(request) = next {
            next = match request {
                WriterRequest::Refuse(refusal) => {
                    groups.push((refusal.segment, refusal.seq, 0));
                    waiting.try_recv().ok()
                }
                WriterRequest::Store(first) => {
                    let (group, count, rest) = gather(first, &mut waiting);
                    groups.push((group.segment.to_string(), group.seq, count));
                    rest
                }
            };
        }
        groups
    }

    #[test]
    fn only_neighbours_of_a_segment_are_merged() {
        let all = vec![
            batch("a", 1, 1),
            batch("a", 2, 1),
            batch("b", 7, 1),
            batch("a", 3, 1),
        ];
        assert_eq!(
            gathered(all),
            [("a".into(), 2, 2), ("b".into(), 7, 1), ("a".into(), 3, 1)]
        );
    }

    #[test]
    fn a_refusal_keeps_its_place() {
        let refusal = WriterRequest::Refuse(Refusal {
            segment: "a".into(),
            seq: 2,
            reason: "malformed".into(),
        });
        let all = vec![batch("a", 1, 1), refusal, batch("a", 3, 1), batch("a", 4, 1)];
        assert_eq!(
            gathered(all),
            [("a".into(), 1, 1), ("a".into(), 2, 0), ("a".into(), 4, 2)]
        );
    }

    #[test]
    fn a_group_has_a_bound_and_a_repeated_batch_starts_a_new_one() {
        let all = vec![
            batch("a", 1, GATHER_SAMPLES_MAX),
            batch("a", 2, 1),
            batch("a", 2, 1),
            batch("a", 1, 1),
        ];
        assert_eq!(
            gathered(all),
            [
                ("a".into(), 1, 1),
                ("a".into(), 2, 1),
                ("a".into(), 2, 1),
                ("a".into(), 1, 1)
            ]
        );
    }

    #[test]
    fn the_pending_ack_has_the_highest_number_and_is_due_after_the_bound() {
        let ack = |seq| Ack {
            segment: "a".into(),
            seq,
            ..Ack::default()
        };
        let mut pending = PendingAck::default();
        assert!(pending.is_of("a") && pending.is_of("b") && !pending.is_due());
        pending.add(ack(3));
        pending.add(ack(5));
        pending.add(ack(4));
        assert!(pending.is_of("a") && !pending.is_of("b") && !pending.is_due());
        assert_eq!(pending.take().map(|ack| ack.seq), Some(5));
        assert!(pending.take().is_none() && pending.is_of("b"));
        pending.add(ack(5 + UNACKNOWLEDGED_MAX - 1));
        assert!(!pending.is_due());
        pending.add(ack(5 + UNACKNOWLEDGED_MAX));
        assert!(pending.is_due());
        // Like the batches of one minute, which have one number and count as many.
        pending.take();
        pending.add(ack(500));
        assert!(pending.is_due());
    }

    #[test]
    fn sessions_of_two_nodes_never_meet() {
        let node = |name: &str| NodeName::new(name).expect("a good name");
        assert_ne!(session_name(&node("a"), "bc"), session_name(&node("ab"), "c"));
        assert_eq!(session_name(&node("a"), "s").len(), 32);
    }
}
