//! Makes batches durable in their order, as many at once as wait, and acknowledges the last of them.

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

/// Numbers that are stored and not acknowledged while more of their stream wait: each acknowledgement is a packet, and they were
/// a tenth of what catching up took. A quarter of what an agent sends ahead, so that it never waits for one.
const OWED_MAX: u64 = 16;
/// Samples put into one append; the store takes twice as many.
const GATHER_SAMPLES_MAX: usize = 1 << 19;

/// A batch that only has to be stored.
pub(super) struct Durable {
    pub(super) segment: Arc<str>,
    pub(super) seq: u64,
    /// When the batch of this number was read.
    pub(super) received_us: i64,
    /// Of each batch that was gathered.
    pub(super) blocks: Vec<Vec<Block>>,
    /// Cells of the blocks.
    pub(super) cells: usize,
    /// What feeds the analysers, once it is stored.
    pub(super) fed: Vec<FedFrame>,
    /// The time of the latest sample.
    pub(super) until_ms: TimestampMs,
    /// Their room, given back when they are stored.
    pub(super) room: Option<OwnedSemaphorePermit>,
}

/// What the reader hands over, in the order it came.
pub(super) enum Work {
    /// To be stored and acknowledged.
    Store(Durable),
    /// Never to be taken; said in its turn, so that the agent hears about its batches in their order.
    Refuse(Refusal),
}

/// Does what comes through the queue until it closes.
pub(super) async fn write(
    ingest: &Ingest,
    node: &NodeName,
    mut waiting: mpsc::Receiver<Work>,
    down: &mut Down,
) -> Result<(), Status> {
    let mut owed = Owed::default();
    let mut next = waiting.recv().await;
    while let Some(work) = next.take() {
        match work {
            Work::Refuse(refusal) => {
                acknowledge(&mut owed, down).await?;
                down.send(telemetry_down::Message::Refusal(refusal)).await?;
            }
            Work::Store(first) => {
                let (group, batches, left_over) = gather(first, &mut waiting);
                next = left_over;
                if !owed.is_of(&group.segment) {
                    acknowledge(&mut owed, down).await?;
                }
                match store(ingest, node, group, batches).await {
                    Ok(ack) => owed.add(ack),
                    Err(status) => {
                        acknowledge(&mut owed, down).await?;
                        return Err(status);
                    }
                }
            }
        }
        next = next.or_else(|| waiting.try_recv().ok());
        if next.is_none() || owed.is_much() {
            acknowledge(&mut owed, down).await?;
        }
        if next.is_none() {
            next = waiting.recv().await;
        }
    }
    Ok(())
}

async fn acknowledge(owed: &mut Owed, down: &mut Down) -> Result<(), Status> {
    let Some(ack) = owed.take() else {
        return Ok(());
    };
    let sent_us = now_us();
    down.send(telemetry_down::Message::Ack(Ack { sent_us, ..ack }))
        .await
}

/// What is stored and not acknowledged yet, of one segment.
#[derive(Default)]
struct Owed {
    ack: Option<Ack>,
    /// The last number that was acknowledged, of whatever segment.
    paid: u64,
}

impl Owed {
    fn is_of(&self, segment: &str) -> bool {
        self.ack.as_ref().is_none_or(|ack| ack.segment == segment)
    }

    /// The highest number stands for all before it, those that came twice among them.
    fn add(&mut self, ack: Ack) {
        if self.ack.as_ref().is_none_or(|owed| owed.seq < ack.seq) {
            self.ack = Some(ack);
        }
    }

    fn is_much(&self) -> bool {
        let owed = self.ack.as_ref().map_or(self.paid, |ack| ack.seq);
        owed.abs_diff(self.paid) >= OWED_MAX
    }

    fn take(&mut self) -> Option<Ack> {
        let ack = self.ack.take()?;
        self.paid = ack.seq;
        Some(ack)
    }
}

/// Merges the waiting batches of one segment. Returns what came after and does not belong to them.
fn gather(first: Durable, waiting: &mut mpsc::Receiver<Work>) -> (Durable, u64, Option<Work>) {
    let (mut group, mut batches) = (first, 1);
    while let Ok(work) = waiting.try_recv() {
        match work {
            Work::Store(batch) if group.continues_with(&batch) => {
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

impl Durable {
    fn continues_with(&self, batch: &Self) -> bool {
        batch.segment == self.segment
            && batch.seq > self.seq
            && self.cells + batch.cells <= GATHER_SAMPLES_MAX
    }
}

async fn store(ingest: &Ingest, node: &NodeName, group: Durable, batches: u64) -> Result<Ack, Status> {
    let Durable {
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

/// The agent keeps what was not acknowledged, comes back, defines its names anew and goes on.
pub(super) fn refused(node: &NodeName, error: &AppendError) -> Status {
    if let AppendError::DiskFull { .. } = error {
        // Told once, by the store; the agent hears it at each try.
        return Status::unavailable(error.to_string());
    }
    tracing::error!(%node, %error, "samples of an agent could not be stored");
    match error {
        AppendError::UnknownSeries(_) => {
            Status::aborted("a series was forgotten after its retention; connect again")
        }
        AppendError::Closed => Status::unavailable("the collector is stopping; connect again"),
        _ => Status::unavailable("the collector cannot store samples right now; try again"),
    }
}

/// Two nodes may choose one name for their segments; the store's names are shorter than node and segment together.
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

    fn batch(segment: &str, seq: u64, cells: usize) -> Work {
        Work::Store(Durable {
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

    /// The groups that are made of what waits; a refusal is a group of 0.
    fn gathered(all: Vec<Work>) -> Vec<(String, u64, u64)> {
        let (sender, mut waiting) = mpsc::channel(16);
        for work in all {
            sender.try_send(work).unwrap_or_else(|_| panic!("there is room"));
        }
        let (mut groups, mut next) = (vec![], waiting.try_recv().ok());
        while let Some(work) = next {
            next = match work {
                Work::Refuse(refusal) => {
                    groups.push((refusal.segment, refusal.seq, 0));
                    waiting.try_recv().ok()
                }
                Work::Store(first) => {
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
        let refusal = Work::Refuse(Refusal {
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
    fn a_group_has_a_bound_and_repeats_stand_alone() {
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
    fn what_is_owed_is_the_highest_number_and_not_too_far_behind() {
        let ack = |seq| Ack {
            segment: "a".into(),
            seq,
            ..Ack::default()
        };
        let mut owed = Owed::default();
        assert!(owed.is_of("a") && owed.is_of("b") && !owed.is_much());
        owed.add(ack(3));
        owed.add(ack(5));
        owed.add(ack(4));
        assert!(owed.is_of("a") && !owed.is_of("b") && !owed.is_much());
        assert_eq!(owed.take().map(|ack| ack.seq), Some(5));
        assert!(owed.take().is_none() && owed.is_of("b"));
        owed.add(ack(5 + OWED_MAX - 1));
        assert!(!owed.is_much());
        owed.add(ack(5 + OWED_MAX));
        assert!(owed.is_much());
        // A minute's batches have one number, and are as many.
        owed.take();
        owed.add(ack(500));
        assert!(owed.is_much());
    }

    #[test]
    fn sessions_of_two_nodes_never_meet() {
        let node = |name: &str| NodeName::new(name).expect("a good name");
        assert_ne!(session_name(&node("a"), "bc"), session_name(&node("ab"), "c"));
        assert_eq!(session_name(&node("a"), "s").len(), 32);
    }
}
