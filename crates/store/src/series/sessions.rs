//! Sending sessions: the last number of each, so that an append that arrives twice is stored once.

use std::collections::HashMap;
use std::time::Duration;

use domain::time::TimestampMs;
use tokio::time::Instant;

use super::committer::Request;

/// The maximum number of sessions. An agent has a few, and those of months ago are not needed.
const SESSIONS_MAX: usize = 100_000;
/// How long later appends of a session are refused after one of its appends failed. Long enough for all that were already in
/// flight; short enough that a sender that gave up on the failed one can go on.
const REFUSE_FOR: Duration = Duration::from_secs(10);

/// The last number seen of each sending session.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    by_name: HashMap<String, Session>,
    /// The lowest number that failed recently, by session.
    failed: HashMap<String, (u64, Instant)>,
}

#[derive(Debug, Clone, Copy)]
struct Session {
    seq: u64,
    seen_ms: TimestampMs,
    saved: bool,
}

/// A batch, sorted by what to do with each request.
pub(crate) struct Sorted {
    pub(crate) fresh: Vec<Request>,
    /// Acknowledged without storing them.
    pub(crate) seen: Vec<Request>,
    pub(crate) out_of_turn: Vec<Request>,
}

impl Sessions {
    /// Separates new appends from those seen before, also within the batch. An append after a failed one of its session is
    /// neither: storing it would raise the session's number past samples that are not stored.
    pub(crate) fn sort(&self, batch: Vec<Request>) -> Sorted {
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

    /// Restores a session from the database.
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
    pub(crate) fn note<'a>(
        &mut self,
        sources: impl IntoIterator<Item = &'a Option<(String, u64)>>,
        now_ms: TimestampMs,
    ) {
        for (name, seq) in sources.into_iter().flatten() {
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

    pub(crate) fn note_failure<'a>(&mut self, sources: impl IntoIterator<Item = &'a Option<(String, u64)>>) {
        for source in sources.into_iter().flatten() {
            self.note_refusal(source);
        }
    }

    /// Records that an append was refused before it was checked. Later appends of the session must not overtake it.
    pub(crate) fn note_refusal(&mut self, (name, seq): &(String, u64)) {
        if !self.failed.contains_key(name) {
            self.failed.retain(|_, (_, at)| at.elapsed() < REFUSE_FOR);
        }
        let failed = self.failed.entry(name.clone()).or_insert((*seq, Instant::now()));
        *failed = (failed.0.min(*seq), Instant::now());
    }

    /// Returns the current numbers of all sessions.
    pub(crate) fn all(&self) -> Vec<(String, u64, TimestampMs)> {
        let all = self.by_name.iter();
        all.map(|(name, session)| (name.clone(), session.seq, session.seen_ms))
            .collect()
    }

    /// Returns the sessions that changed since they were last written to the database.
    pub(crate) fn unsaved(&self) -> Vec<(String, u64, TimestampMs)> {
        let unsaved = self.by_name.iter().filter(|(_, session)| !session.saved);
        unsaved
            .map(|(name, session)| (name.clone(), session.seq, session.seen_ms))
            .collect()
    }

    /// Marks these numbers as written to the database.
    pub(crate) fn saved(&mut self, saved: &[(String, u64, TimestampMs)]) {
        for (name, seq, _) in saved {
            if let Some(session) = self.by_name.get_mut(name)
                && session.seq == *seq
            {
                session.saved = true;
            }
        }
    }

    /// Removes sessions that were not seen since a time, and the oldest ones beyond the maximum. Returns their names.
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
    use std::sync::Arc;

    use tokio::sync::oneshot;

    use super::*;
    use crate::series::Appended;
    use crate::series::wal::Entry;

    fn entry(seq: u64) -> Entry {
        Entry {
            source: Some(("a".into(), seq)),
            blocks: Vec::new(),
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
        sessions.note(&[entry(4).source], 0);
        check(&sessions, &[3, 4, 5, 5, 6], (&[5, 6], &[3, 4, 5], &[])).await;
    }

    #[tokio::test]
    async fn nothing_overtakes_an_append_that_failed() {
        let mut sessions = Sessions::default();
        sessions.note(&[entry(4).source], 0);
        sessions.note_failure(&[entry(5).source, entry(6).source]);
        check(&sessions, &[7], (&[], &[], &[7])).await;
        check(&sessions, &[5, 6, 7], (&[5, 6, 7], &[], &[])).await;
        sessions.note(&[entry(5).source], 0);
        check(&sessions, &[6], (&[6], &[], &[])).await;
    }
}
