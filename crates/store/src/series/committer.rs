//! The committer: one task that makes appends durable, many at a time.
//!
//! ```text
//! gather ≤ 100 ms → names of new series → write-ahead row (samples and session numbers) → head → answers
//! ```
//! The committer sends answers only after the row is on disk. The task is never cancelled: it ends when all its senders are
//! dropped and the queue is empty. When a write fails, all senders of the batch get the error and nothing of the batch is in
//! the head. The next batch tries again with a new file, so the store recovers without help when the disk does.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use domain::time::TimestampMs;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use super::counts::Counts;
use super::lane::Cells;
use super::sessions::Sorted;
use super::wal::{self, Entry, Wal};
use super::{AppendError, Appended, Block, Shared, lock, names, read};

/// The maximum number of samples in a batch: 4 MB of values. A larger batch would delay the other senders too much; it takes
/// four times its size in memory on the way to disk.
const BATCH_SAMPLES_MAX: usize = 1 << 19;
/// From this number of samples on, a batch is committed without waiting for more. 1,000 nodes send this many in 100 ms, so it
/// speeds up only senders of bulk data.
const BATCH_SAMPLES_ENOUGH: usize = 32 << 10;

/// How often the queue is read while the committer waits for more appends.
const GATHER_WAKEUPS: u32 = 4;

/// An append in the queue.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) entry: Entry,
    /// The part of the result that is already known: samples outside the window.
    pub(crate) appended: Appended,
    pub(crate) samples: usize,
    pub(crate) now_ms: TimestampMs,
    pub(crate) reply: oneshot::Sender<Result<Appended, AppendError>>,
    pub(crate) _room: OwnedSemaphorePermit,
}

/// Runs until all senders are dropped.
pub(crate) async fn run(
    shared: Arc<Shared>,
    mut wal: Wal,
    mut requests: mpsc::Receiver<Request>,
    mut closings: mpsc::Receiver<wal::Closed>,
) {
    let gather_time = Duration::from_millis(shared.config.gather_ms);
    loop {
        tokio::select! {
            first = requests.recv() => {
                let Some(first) = first else { break };
                let batch = gather(first, &mut requests, gather_time).await;
                commit(&shared, &mut wal, batch).await;
                wal.rotate();
            }
            () = shared.new_names.notified() => save_names(&shared, gather_time).await,
            Some(closed) = closings.recv() => wal.close_current(closed),
        }
        shared
            .wal_bytes
            .store(wal.current_bytes() as i64, Ordering::Relaxed);
    }
    wal.close().await;
}

/// Makes names of new series durable before their first samples arrive, so that those samples do not wait for it.
async fn save_names(shared: &Arc<Shared>, gather_time: Duration) {
    // An earlier batch may have written them already.
    if !read(&shared.index).has_pending() {
        return;
    }
    sleep(gather_time).await;
    if let Err(error) = names::save(shared).await {
        // The batch that needs these names tries again, and is refused if that fails.
        tracing::debug!(%error, "names of new series could not be written yet");
    }
}

/// Waits for more appends. It sleeps a few times instead of waking up for each append, and stops early when it has enough.
async fn gather(
    first: Request,
    requests: &mut mpsc::Receiver<Request>,
    gather_time: Duration,
) -> Vec<Request> {
    let deadline = Instant::now() + gather_time;
    let mut batch = vec![first];
    for wakeup in (0..GATHER_WAKEUPS).rev() {
        if drain(&mut batch, requests) >= BATCH_SAMPLES_ENOUGH {
            break;
        }
        sleep_until(deadline - gather_time * wakeup / GATHER_WAKEUPS).await;
    }
    drain(&mut batch, requests);
    batch
}

/// Moves waiting appends to the batch until it is full. Returns the number of samples in the batch.
fn drain(batch: &mut Vec<Request>, requests: &mut mpsc::Receiver<Request>) -> usize {
    let mut samples: usize = batch.iter().map(|request| request.samples).sum();
    while samples < BATCH_SAMPLES_MAX
        && let Ok(request) = requests.try_recv()
    {
        samples += request.samples;
        batch.push(request);
    }
    samples
}

async fn commit(shared: &Arc<Shared>, wal: &mut Wal, batch: Vec<Request>) {
    let Sorted {
        fresh,
        seen,
        out_of_turn,
    } = lock(&shared.sessions).sort(batch);
    for request in out_of_turn {
        // Sending fails if the sender is gone and needs no answer, here and below.
        let _ = request.reply.send(Err(AppendError::OutOfTurn));
    }
    let now_ms = fresh.last().map_or(0, |request| request.now_ms);
    let (entries, senders): (Vec<_>, Vec<_>) = fresh.into_iter().map(Request::split).unzip();
    let counts = if entries.is_empty() {
        Ok(Vec::new())
    } else {
        store(shared, wal, entries, now_ms).await
    };
    match counts {
        Ok(counts) => {
            for (sender, counts) in senders.into_iter().zip(counts) {
                let _ = sender.reply.send(Ok(Appended {
                    accepted: counts.accepted,
                    duplicates: counts.duplicates,
                    conflicts: counts.conflicts,
                    ..sender.appended
                }));
            }
            for request in seen {
                let _ = request.reply.send(Ok(Appended {
                    already_seen: true,
                    ..Appended::default()
                }));
            }
        }
        Err(error) => {
            shared.disk_guard.note_failure(&error);
            tracing::error!(%error, appends = senders.len(), "a batch of samples could not be written; the senders keep the samples and try again");
            let error = AppendError::Write(Arc::new(error));
            let replies = senders.into_iter().map(|sender| sender.reply);
            for reply in replies.chain(seen.into_iter().map(|request| request.reply)) {
                let _ = reply.send(Err(error.clone()));
            }
        }
    }
}

/// The waiting sender of an entry.
struct Sender {
    appended: Appended,
    reply: oneshot::Sender<Result<Appended, AppendError>>,
    _room: OwnedSemaphorePermit,
}

impl Request {
    fn split(self) -> (Entry, Sender) {
        (
            self.entry,
            Sender {
                appended: self.appended,
                reply: self.reply,
                _room: self._room,
            },
        )
    }
}

async fn store(
    shared: &Arc<Shared>,
    wal: &mut Wal,
    entries: Vec<Entry>,
    now_ms: TimestampMs,
) -> Result<Vec<Counts>, sqlx::Error> {
    let written = match names::save(shared).await {
        Ok(()) => wal.commit(wal::encode(&entries)).await,
        Err(error) => Err(error),
    };
    let batch = written
        .inspect_err(|_| lock(&shared.sessions).note_failure(entries.iter().map(|entry| &entry.source)))?;
    let shared = Arc::clone(shared);
    let apply = move || {
        lock(&shared.sessions).note(entries.iter().map(|entry| &entry.source), now_ms);
        apply(&shared, batch, &entries)
    };
    Ok(tokio::task::spawn_blocking(apply)
        .await
        .map_err(std::io::Error::other)?)
}

fn apply(shared: &Shared, batch: u64, entries: &[Entry]) -> Vec<Counts> {
    let _gate = lock(&shared.between_batches);
    let counts: Vec<Counts> = entries.iter().map(|entry| put(batch, &entry.blocks)).collect();
    shared
        .memory
        .add_cells(counts.iter().map(|counts| counts.cells).sum());
    counts
}

/// Adds the blocks of a batch to the head. Also used when the write-ahead log is replayed.
pub(crate) fn put(batch: u64, blocks: &[Block]) -> Counts {
    let mut counts = Counts::default();
    for block in blocks {
        for part in &block.shape.parts {
            let cells = Cells {
                times_ms: &block.times_ms,
                values: &block.values,
                columns: &part.columns,
            };
            counts += part.group.lock().append(&part.rows, cells, batch);
        }
    }
    counts
}
