//! Counts the memory of the head's samples, and lets appends wait when it is full.

use std::sync::atomic::{AtomicI64, Ordering};

use domain::time::TimestampMs;
use tokio::sync::Notify;

/// The head has room for one minute of each series at 1 Hz, however many series there are: shorter chunks would cost more than
/// this memory.
const SERIES_BYTES: i64 = 64 * 8;
/// Chunks older than this are merged if samples arrive every second. Merged chunks are read from disk.
const KEPT_MS_MAX: i64 = 3_600_000;

/// Counts in bytes. Appends wait while samples that are not in chunks yet exceed their limit. The sealer is then woken up, and
/// each sealed segment makes room.
#[derive(Debug)]
pub(crate) struct Memory {
    unsealed_least: i64,
    unsealed_max: AtomicI64,
    unsealed: AtomicI64,
    sealed_max: i64,
    sealed: AtomicI64,
    /// How long chunks are kept for recent queries.
    kept_ms: AtomicI64,
    /// The end of the oldest of these chunks.
    oldest_ms: AtomicI64,
    less: Notify,
    /// Wakes the sealer.
    pub(crate) full: Notify,
}

impl Memory {
    pub(crate) fn new(unsealed_max: u64, sealed_max: u64) -> Self {
        let most = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
        Self {
            unsealed_least: most(unsealed_max),
            unsealed_max: AtomicI64::new(most(unsealed_max)),
            unsealed: AtomicI64::default(),
            sealed_max: most(sealed_max),
            sealed: AtomicI64::default(),
            kept_ms: AtomicI64::new(KEPT_MS_MAX),
            oldest_ms: AtomicI64::new(TimestampMs::MIN),
            less: Notify::new(),
            full: Notify::new(),
        }
    }

    /// Sets the limit of unsealed samples for this many series.
    pub(crate) fn fit(&self, series: usize) {
        let of_series = i64::try_from(series)
            .unwrap_or(i64::MAX)
            .saturating_mul(SERIES_BYTES);
        self.unsealed_max
            .store(of_series.max(self.unsealed_least), Ordering::Relaxed);
    }

    /// Returns the bytes of samples that are not in chunks yet.
    pub(crate) fn unsealed(&self) -> u64 {
        self.unsealed.load(Ordering::Relaxed).max(0).unsigned_abs()
    }

    /// Returns the bytes of chunks that are kept for recent queries.
    pub(crate) fn sealed(&self) -> u64 {
        self.sealed.load(Ordering::Relaxed).max(0).unsigned_abs()
    }

    /// Returns true if chunks that are kept for recent queries exceed their limit.
    pub(crate) fn exceeds_recent_limit(&self) -> bool {
        self.sealed.load(Ordering::Relaxed) > self.sealed_max
    }

    /// Returns true if the whole head must be sealed at once, whether its lanes are full or not.
    pub(crate) fn is_full(&self) -> bool {
        self.unsealed.load(Ordering::Relaxed) >= self.unsealed_max.load(Ordering::Relaxed)
    }

    /// Counts cells added to lanes.
    pub(crate) fn add_cells(&self, cells: i64) {
        self.unsealed.fetch_add(cells * 8, Ordering::Relaxed);
    }

    /// Records that the cells of a segment became a chunk of `chunk_bytes`.
    pub(crate) fn sealed_segment(&self, cells: i64, chunk_bytes: usize) {
        self.unsealed.fetch_sub(cells * 8, Ordering::Relaxed);
        self.sealed.fetch_add(chunk_bytes as i64, Ordering::Relaxed);
        if !self.is_full() {
            self.less.notify_waiters();
        }
    }

    /// Returns how long to keep chunks: at least `least_ms`, and up to one hour while they stay within their limit.
    pub(crate) fn kept_ms(&self, least_ms: i64, now_ms: TimestampMs) -> i64 {
        let (sealed, kept_ms) = (
            self.sealed.load(Ordering::Relaxed),
            self.kept_ms.load(Ordering::Relaxed),
        );
        let next_ms = if self.exceeds_recent_limit() {
            let span_ms = now_ms.saturating_sub(self.oldest_ms.load(Ordering::Relaxed));
            (kept_ms.min(span_ms) as f64 * self.sealed_max as f64 / sealed as f64) as i64
        } else {
            // Grows slowly, because removed chunks do not come back.
            kept_ms + kept_ms / 64 + 1
        };
        next_ms.clamp(least_ms, least_ms.max(KEPT_MS_MAX))
    }

    /// Like [`Memory::kept_ms`], but stores the result. Call it once per round, when all older chunks are removed.
    pub(crate) fn keep_ms(&self, least_ms: i64, now_ms: TimestampMs) -> i64 {
        let kept_ms = self.kept_ms(least_ms, now_ms);
        self.kept_ms.store(kept_ms, Ordering::Relaxed);
        kept_ms
    }

    /// Records the end of the oldest chunk that was not removed.
    pub(crate) fn set_oldest(&self, oldest_ms: Option<TimestampMs>) {
        self.oldest_ms
            .store(oldest_ms.unwrap_or(TimestampMs::MIN), Ordering::Relaxed);
    }

    /// Records that chunks were removed.
    pub(crate) fn remove_recent(&self, bytes: usize) {
        self.sealed.fetch_sub(bytes as i64, Ordering::Relaxed);
    }

    /// Waits until there is room for samples.
    pub(crate) async fn has_room(&self) {
        while self.is_full() {
            let less = self.less.notified();
            self.full.notify_one();
            if self.is_full() {
                less.await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn appends_wait_until_something_is_sealed() {
        let memory = Arc::new(Memory::new(80, 0));
        memory.has_room().await;
        memory.add_cells(10);
        let waiting = tokio::spawn({
            let memory = Arc::clone(&memory);
            async move { memory.has_room().await }
        });
        tokio::time::timeout(Duration::from_secs(5), memory.full.notified())
            .await
            .expect("the sealer is woken");
        assert!(!waiting.is_finished());
        memory.sealed_segment(10, 3);
        tokio::time::timeout(Duration::from_secs(5), waiting)
            .await
            .expect("room is seen")
            .expect("no panic");
        assert_eq!((memory.unsealed(), memory.sealed()), (0, 3));
    }

    #[test]
    fn there_is_room_for_a_minute_of_each_series() {
        let memory = Memory::new(1_000, 0);
        memory.add_cells(125);
        assert!(memory.is_full());
        memory.fit(2);
        assert!(!memory.is_full());
        memory.fit(1);
        assert!(memory.is_full());
    }

    #[test]
    fn chunks_are_kept_for_an_hour_while_there_is_room() {
        let now_ms = 10 * KEPT_MS_MAX;
        let memory = Memory::new(80, 1_000);
        memory.sealed_segment(0, 1_000);
        assert_eq!(memory.keep_ms(5, now_ms), KEPT_MS_MAX);
        memory.sealed_segment(0, 1_000);
        let kept = [memory.kept_ms(5, now_ms), memory.keep_ms(5, now_ms)];
        assert_eq!(kept, [KEPT_MS_MAX / 2; 2], "asking alone changes nothing");
        assert_eq!(memory.keep_ms(5, now_ms), KEPT_MS_MAX / 4);
        memory.remove_recent(1_500);
        assert!((KEPT_MS_MAX / 4 + 1..KEPT_MS_MAX / 2).contains(&memory.keep_ms(5, now_ms)));
        memory.sealed_segment(0, 1_000_000);
        assert_eq!(
            memory.keep_ms(60_000, now_ms),
            60_000,
            "the least is kept whatever it takes"
        );
        assert_eq!(memory.keep_ms(2 * KEPT_MS_MAX, now_ms), 2 * KEPT_MS_MAX);
    }

    #[test]
    fn what_is_to_go_is_a_part_of_what_is_there() {
        let now_ms = 10 * KEPT_MS_MAX;
        let memory = Memory::new(80, 1_000);
        memory.set_oldest(Some(now_ms - 600_000));
        memory.sealed_segment(0, 2_000);
        assert_eq!(
            memory.kept_ms(5, now_ms),
            300_000,
            "half of ten minutes, not of an hour"
        );
        memory.set_oldest(None);
        assert_eq!(memory.kept_ms(5, now_ms), KEPT_MS_MAX / 2);
    }
}
