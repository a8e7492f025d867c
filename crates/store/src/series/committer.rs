//! The committer: one task that makes appends durable, many at a time.
//!
//! ```text
//! gather ≤ 100 ms → new series' names → write-ahead row (samples and session numbers) → head → answers
//! ```
//! Nobody is answered before the row is on disk. The task is never cancelled: it ends when all doors to it are closed and
//! the queue is empty. When a write fails, all senders of the batch are told, nothing of it is in the head, and the next
//! batch tries again on a new file; so the store comes back by itself when the disk does.

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

/// So many samples, 4 MB of values, are a full batch: a larger one would make the others wait too long, and on its way to disk
/// it is held four times over.
const BATCH_SAMPLES_MAX: usize = 1 << 19;
/// So many samples are worth a commit of their own: nobody waits longer for others to join. A thousand nodes send as many in
/// 100 ms, so it hastens only those who send in bulk.
const BATCH_SAMPLES_ENOUGH: usize = 32 << 10;

/// Looks at the queue while others are waited for.
const NAPS: u32 = 4;

/// An append on its way.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) entry: Entry,
    /// What is known of it already: samples out of the window.
    pub(crate) appended: Appended,
    pub(crate) samples: usize,
    pub(crate) now_ms: TimestampMs,
    pub(crate) reply: oneshot::Sender<Result<Appended, AppendError>>,
    pub(crate) _room: OwnedSemaphorePermit,
}

/// Runs until every sender is gone.
pub(crate) async fn run(
    shared: Arc<Shared>,
    mut wal: Wal,
    mut requests: mpsc::Receiver<Request>,
    mut closings: mpsc::Receiver<wal::Closed>,
) {
    let patience = Duration::from_millis(shared.config.gather_ms);
    loop {
        tokio::select! {
            first = requests.recv() => {
                let Some(first) = first else { break };
                let batch = gather(first, &mut requests, patience).await;
                commit(&shared, &mut wal, batch).await;
                wal.rotate();
            }
            () = shared.new_names.notified() => save_names(&shared, patience).await,
            Some(closed) = closings.recv() => wal.close_current(closed),
        }
        shared
            .wal_bytes
            .store(wal.current_bytes() as i64, Ordering::Relaxed);
    }
    wal.close().await;
}

/// Makes new names durable before the first samples under them come, so that those do not wait for it.
async fn save_names(shared: &Arc<Shared>, patience: Duration) {
    // A batch that came first has written them already.
    if !read(&shared.index).has_pending() {
        return;
    }
    sleep(patience).await;
    if let Err(error) = names::save(shared).await {
        // The batch that needs them tries again, and is the one to be refused.
        tracing::debug!(%error, "names of new series could not be written yet");
    }
}

/// Sleeps while the others come, rather than wake up for each of them: in a few naps, each of which may find enough.
async fn gather(first: Request, requests: &mut mpsc::Receiver<Request>, patience: Duration) -> Vec<Request> {
    let deadline = Instant::now() + patience;
    let mut batch = vec![first];
    for nap in (0..NAPS).rev() {
        if drain(&mut batch, requests) >= BATCH_SAMPLES_ENOUGH {
            break;
        }
        sleep_until(deadline - patience * nap / NAPS).await;
    }
    drain(&mut batch, requests);
    batch
}

/// Takes what waits, up to a full batch; returns the batch's samples.
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
        // A sender that is gone has no use for the answer, here and below.
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
            shared.space.note_failure(&error);
            tracing::error!(%error, appends = senders.len(), "a batch of samples could not be written; their senders keep them and try again");
            let error = AppendError::Write(Arc::new(error));
            let replies = senders.into_iter().map(|sender| sender.reply);
            for reply in replies.chain(seen.into_iter().map(|request| request.reply)) {
                let _ = reply.send(Err(error.clone()));
            }
        }
    }
}

/// Who waits for an entry's answer.
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
    shared.memory.grew(counts.iter().map(|counts| counts.cells).sum());
    counts
}

/// Puts blocks of a batch into the head; also what a replay does.
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
