//! The committer: one task that makes appends durable, many at a time.
//!
//! ```text
//! gather ≤ 100 ms → new series' names → write-ahead row (samples and session numbers) → head → answers
//! ```
//! Nobody is answered before the row is on disk. The task is never cancelled: it ends when all doors to it are closed and
//! the queue is empty. When a write fails, all senders of the batch are told, nothing of it is in the head, and the next
//! batch tries again on a new file; so the store comes back by itself when the disk does.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use domain::series::{Frame, Labels};
use domain::time::TimestampMs;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::head::{Counts, GroupId, range_of};
use super::index::Pending;
use super::wal::{self, Entry, Wal};
use super::{Append, AppendError, Appended, FUTURE_MS_MAX, SeriesId, Shared, lock, read, write};

/// The most samples in one batch, 8 MB of values: a larger one would make the others wait too long.
const BATCH_SAMPLES_MAX: usize = 1 << 20;

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

/// The last number seen of each sending session.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    by_name: HashMap<String, Session>,
    /// The lowest number that failed lately.
    failed: HashMap<String, (u64, Instant)>,
}

#[derive(Debug, Clone, Copy)]
struct Session {
    seq: u64,
    seen_ms: TimestampMs,
    saved: bool,
}

/// Cuts off the samples that are too old or too far ahead, and counts them.
pub(crate) fn within_window(
    append: Append,
    now_ms: TimestampMs,
    out_of_order_ms: i64,
    appended: &mut Appended,
) -> Entry {
    let (start_ms, end_ms) = (
        now_ms.saturating_sub(out_of_order_ms),
        now_ms.saturating_add(FUTURE_MS_MAX),
    );
    let mut cut = |frame: Frame<SeriesId>| {
        let range = range_of(&frame.times_ms, start_ms, end_ms);
        if range.len() == frame.times_ms.len() {
            return frame;
        }
        let (before, within, after) = (
            part(&frame, 0..range.start),
            part(&frame, range.clone()),
            part(&frame, range.end..frame.times_ms.len()),
        );
        appended.too_old += before.samples() as u64;
        appended.too_new += after.samples() as u64;
        within
    };
    let frames = append
        .frames
        .into_iter()
        .map(&mut cut)
        .filter(|frame| !frame.values.is_empty())
        .collect();
    Entry {
        source: append.source,
        frames,
    }
}

fn part(frame: &Frame<SeriesId>, range: std::ops::Range<usize>) -> Frame<SeriesId> {
    let values = (0..frame.series.len())
        .flat_map(|row| &frame.row(row)[range.clone()])
        .copied()
        .collect();
    Frame {
        series: frame.series.clone(),
        times_ms: frame.times_ms[range.clone()].to_vec(),
        values,
    }
}

/// Runs until every sender is gone.
pub(crate) async fn run(shared: Arc<Shared>, mut wal: Wal, mut requests: mpsc::Receiver<Request>) {
    while let Some(first) = requests.recv().await {
        let batch = gather(
            first,
            &mut requests,
            Duration::from_millis(shared.config.gather_ms),
        )
        .await;
        commit(&shared, &mut wal, batch).await;
        shared
            .wal_bytes
            .store(wal.current_bytes() as i64, Ordering::Relaxed);
    }
    wal.close().await;
}

async fn gather(first: Request, requests: &mut mpsc::Receiver<Request>, patience: Duration) -> Vec<Request> {
    let deadline = Instant::now() + patience;
    let mut samples = first.samples;
    let mut batch = vec![first];
    while samples < BATCH_SAMPLES_MAX {
        let Ok(Some(request)) = timeout_at(deadline, requests.recv()).await else {
            break;
        };
        samples += request.samples;
        batch.push(request);
    }
    batch
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
            for (
                sender,
                Counts {
                    accepted,
                    duplicates,
                    conflicts,
                },
            ) in senders.into_iter().zip(counts)
            {
                let _ = sender.reply.send(Ok(Appended {
                    accepted,
                    duplicates,
                    conflicts,
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
    let encode = move || (wal::encode(&entries), entries);
    let (data, entries) = tokio::task::spawn_blocking(encode)
        .await
        .map_err(std::io::Error::other)?;
    let written = match (data, save_names(shared).await) {
        (Ok(data), Ok(())) => wal.commit(data).await,
        (Err(error), _) => Err(error.into()),
        (_, Err(error)) => Err(error),
    };
    let batch = written.inspect_err(|_| lock(&shared.sessions).note_failure(&entries))?;
    let shared = Arc::clone(shared);
    let apply = move || {
        lock(&shared.sessions).note(&entries, now_ms);
        apply(&shared, batch, &entries)
    };
    Ok(tokio::task::spawn_blocking(apply)
        .await
        .map_err(std::io::Error::other)?)
}

/// Puts a batch into the head; also what a replay does.
pub(crate) fn apply(shared: &Shared, batch: u64, entries: &[Entry]) -> Vec<Counts> {
    let _gate = lock(&shared.between_batches);
    let index = read(&shared.index);
    let frame_counts = |frame: &Frame<SeriesId>| {
        let mut counts = Counts::default();
        for (row, id) in frame.series.iter().enumerate() {
            if let Some(entry) = index.entry(*id) {
                counts += entry
                    .group
                    .lock()
                    .append(entry.row, &frame.times_ms, frame.row(row), batch);
            }
        }
        counts
    };
    let entry_counts = |entry: &Entry| {
        let mut counts = Counts::default();
        entry
            .frames
            .iter()
            .for_each(|frame| counts += frame_counts(frame));
        counts
    };
    entries.iter().map(entry_counts).collect()
}

/// Makes the names of new series durable.
async fn save_names(shared: &Shared) -> Result<(), sqlx::Error> {
    if !read(&shared.index).has_pending() {
        return Ok(());
    }
    let (pending, mark) = read(&shared.index).pending();
    let mut transaction = shared.database.begin().await?;
    // One statement for all: a thousand agents that connect at once bring a quarter of a million names.
    sqlx::query("INSERT OR IGNORE INTO groups (id, node, metric) SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?)")
        .bind(groups_json(&pending))
        .execute(&mut *transaction)
        .await?;
    sqlx::query("INSERT OR IGNORE INTO series (id, group_id, labels) SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?)")
        .bind(series_json(&pending))
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    write(&shared.index).made_durable(mark, pending.groups.len());
    Ok(())
}

fn groups_json(pending: &Pending) -> String {
    let groups = pending
        .groups
        .iter()
        .map(|group| serde_json::json!([group.id.0, &*group.node, &*group.metric]));
    serde_json::Value::Array(groups.collect()).to_string()
}

fn series_json(pending: &Pending) -> String {
    let text = |labels: &Labels| serde_json::to_string(labels).expect("labels are a map of strings");
    let row =
        |(id, group, labels): &(SeriesId, GroupId, Labels)| serde_json::json!([id.0, group.0, text(labels)]);
    serde_json::Value::Array(pending.series.iter().map(row).collect()).to_string()
}

// === impl Sessions ===

/// Sessions remembered; an agent has a few, and those of months ago are of no use.
const SESSIONS_MAX: usize = 100_000;
/// How long a session's later appends are refused after one of its appends failed. Long enough for all that were already
/// on their way; short enough that a sender which gave the failed one up goes on.
const REFUSE_FOR: Duration = Duration::from_secs(10);

/// A batch by what is to be done with each request.
struct Sorted {
    fresh: Vec<Request>,
    seen: Vec<Request>,
    out_of_turn: Vec<Request>,
}

impl Sessions {
    /// Tells what is new from what was seen before, within the batch too. An append that comes after a failed one of its
    /// session is neither: storing it would raise the session's number past samples that are not stored.
    fn sort(&self, batch: Vec<Request>) -> Sorted {
        let mut sorted = Sorted {
            fresh: Vec::new(),
            seen: Vec::new(),
            out_of_turn: Vec::new(),
        };
        let mut within: HashMap<String, u64> = HashMap::new();
        for request in batch {
            let Some((name, seq)) = &request.entry.source else {
                sorted.fresh.push(request);
                continue;
            };
            let in_batch = within.get(name).copied();
            if in_batch
                .or_else(|| self.seq(name))
                .is_some_and(|last| *seq <= last)
            {
                sorted.seen.push(request);
            } else if in_batch.is_none() && self.failed_before(name, *seq) {
                sorted.out_of_turn.push(request);
            } else {
                within.insert(name.clone(), *seq);
                sorted.fresh.push(request);
            }
        }
        sorted
    }

    fn seq(&self, session: &str) -> Option<u64> {
        self.by_name.get(session).map(|session| session.seq)
    }

    fn failed_before(&self, session: &str, seq: u64) -> bool {
        self.failed
            .get(session)
            .is_some_and(|(failed, at)| *failed < seq && at.elapsed() < REFUSE_FOR)
    }

    /// What the database remembers.
    pub(crate) fn restore(&mut self, session: String, seq: u64, seen_ms: TimestampMs) {
        self.by_name.insert(
            session,
            Session {
                seq,
                seen_ms,
                saved: true,
            },
        );
    }

    /// Raises the numbers to those of a durable batch.
    pub(crate) fn note(&mut self, entries: &[Entry], now_ms: TimestampMs) {
        for (name, seq) in entries.iter().filter_map(|entry| entry.source.as_ref()) {
            let new = Session {
                seq: *seq,
                seen_ms: now_ms,
                saved: false,
            };
            match self.by_name.get_mut(name) {
                Some(known) => {
                    *known = Session {
                        seq: known.seq.max(*seq),
                        seen_ms: known.seen_ms.max(now_ms),
                        ..new
                    };
                }
                None => drop(self.by_name.insert(name.clone(), new)),
            }
            self.failed.remove(name);
        }
    }

    fn note_failure(&mut self, entries: &[Entry]) {
        self.failed.retain(|_, (_, at)| at.elapsed() < REFUSE_FOR);
        for (name, seq) in entries.iter().filter_map(|entry| entry.source.as_ref()) {
            let failed = self.failed.entry(name.clone()).or_insert((*seq, Instant::now()));
            *failed = (failed.0.min(*seq), Instant::now());
        }
    }

    /// Those that changed since they were last written to the database.
    pub(crate) fn unsaved(&self) -> Vec<(String, u64, TimestampMs)> {
        let unsaved = self.by_name.iter().filter(|(_, session)| !session.saved);
        unsaved
            .map(|(name, session)| (name.clone(), session.seq, session.seen_ms))
            .collect()
    }

    /// Those numbers are in the database now.
    pub(crate) fn saved(&mut self, saved: &[(String, u64, TimestampMs)]) {
        for (name, seq, _) in saved {
            if let Some(session) = self.by_name.get_mut(name)
                && session.seq == *seq
            {
                session.saved = true;
            }
        }
    }

    /// Forgets sessions not heard of since a time, and the oldest of too many; returns their names.
    pub(crate) fn forget(&mut self, before_ms: TimestampMs) -> Vec<String> {
        let mut by_age: Vec<_> = self
            .by_name
            .iter()
            .map(|(name, session)| (session.seen_ms, name.clone()))
            .collect();
        by_age.sort_unstable();
        let excess = by_age.len().saturating_sub(SESSIONS_MAX);
        let old = by_age.partition_point(|(seen_ms, _)| *seen_ms < before_ms);
        by_age.truncate(old.max(excess));
        for (_, name) in &by_age {
            self.by_name.remove(name);
        }
        by_age.into_iter().map(|(_, name)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(seq: u64) -> Entry {
        Entry {
            source: Some(("a".into(), seq)),
            frames: Vec::new(),
        }
    }

    async fn check(sessions: &Sessions, seqs: &[u64], expected: (&[u64], &[u64], &[u64])) {
        let room = Arc::new(tokio::sync::Semaphore::new(100));
        let mut batch = Vec::new();
        for seq in seqs {
            let room = Arc::clone(&room)
                .acquire_owned()
                .await
                .expect("the semaphore is open");
            let (entry, appended, reply) = (entry(*seq), Appended::default(), oneshot::channel().0);
            batch.push(Request {
                entry,
                appended,
                samples: 0,
                now_ms: 0,
                reply,
                _room: room,
            });
        }
        let sorted = sessions.sort(batch);
        let seqs = |requests: &[Request]| {
            requests
                .iter()
                .filter_map(|r| r.entry.source.as_ref().map(|(_, seq)| *seq))
                .collect::<Vec<_>>()
        };
        assert_eq!(seqs(&sorted.fresh), expected.0);
        assert_eq!(seqs(&sorted.seen), expected.1);
        assert_eq!(seqs(&sorted.out_of_turn), expected.2);
    }

    #[tokio::test]
    async fn a_number_counts_once() {
        let mut sessions = Sessions::default();
        sessions.note(&[entry(4)], 0);
        check(&sessions, &[3, 4, 5, 5, 6], (&[5, 6], &[3, 4, 5], &[])).await;
    }

    #[tokio::test]
    async fn nothing_overtakes_an_append_that_failed() {
        let mut sessions = Sessions::default();
        sessions.note(&[entry(4)], 0);
        sessions.note_failure(&[entry(5), entry(6)]);
        check(&sessions, &[7], (&[], &[], &[7])).await;
        check(&sessions, &[5, 6, 7], (&[5, 6, 7], &[], &[])).await;
        sessions.note(&[entry(5)], 0);
        check(&sessions, &[6], (&[6], &[], &[])).await;
    }

    #[test]
    fn samples_out_of_the_window_are_counted_and_the_others_kept() {
        let frame = Frame {
            series: vec![SeriesId(1), SeriesId(2)],
            times_ms: vec![0, 9_000_000, 99_000_000],
            values: vec![1.0, 2.0, 3.0, domain::series::ABSENT, 5.0, 6.0],
        };
        let mut appended = Appended::default();
        let append = Append {
            source: None,
            frames: vec![frame],
        };
        let kept = within_window(append, 10_000_000, 2_000_000, &mut appended);
        assert_eq!((appended.too_old, appended.too_new), (1, 2));
        assert_eq!(
            (
                kept.frames[0].times_ms.as_slice(),
                kept.frames[0].values.as_slice()
            ),
            (&[9_000_000][..], &[2.0, 5.0][..])
        );
    }
}
