//! What the head's samples take of memory, and waiting when that is too much.

use std::sync::atomic::{AtomicI64, Ordering};

use tokio::sync::Notify;

/// Counted in bytes. Appends wait while samples that are not in chunks yet take more than they may; the sealer is woken,
/// and whatever it seals makes room.
#[derive(Debug)]
pub(crate) struct Memory {
    unsealed_max: i64,
    unsealed: AtomicI64,
    sealed: AtomicI64,
    less: Notify,
    /// Wakes the sealer.
    pub(crate) full: Notify,
}

impl Memory {
    pub(crate) fn new(unsealed_max: u64) -> Self {
        Self {
            unsealed_max: i64::try_from(unsealed_max).unwrap_or(i64::MAX),
            unsealed: AtomicI64::default(),
            sealed: AtomicI64::default(),
            less: Notify::new(),
            full: Notify::new(),
        }
    }

    /// Bytes of samples that are not in chunks yet.
    pub(crate) fn unsealed(&self) -> u64 {
        self.unsealed.load(Ordering::Relaxed).max(0).unsigned_abs()
    }

    /// Bytes of chunks that are kept for recent queries.
    pub(crate) fn sealed(&self) -> u64 {
        self.sealed.load(Ordering::Relaxed).max(0).unsigned_abs()
    }

    /// Whether all of the head has to be sealed at once, full or not.
    pub(crate) fn is_full(&self) -> bool {
        self.unsealed.load(Ordering::Relaxed) >= self.unsealed_max
    }

    /// Notes cells put into lanes.
    pub(crate) fn grew(&self, cells: i64) {
        self.unsealed.fetch_add(cells * 8, Ordering::Relaxed);
    }

    /// Notes that a segment's cells became a chunk of so many bytes.
    pub(crate) fn sealed_segment(&self, cells: i64, chunk_bytes: usize) {
        self.unsealed.fetch_sub(cells * 8, Ordering::Relaxed);
        self.sealed.fetch_add(chunk_bytes as i64, Ordering::Relaxed);
        if !self.is_full() {
            self.less.notify_waiters();
        }
    }

    /// Notes that chunks were let go of.
    pub(crate) fn evicted(&self, bytes: usize) {
        self.sealed.fetch_sub(bytes as i64, Ordering::Relaxed);
    }

    /// Waits until samples may come.
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
        let memory = Arc::new(Memory::new(80));
        memory.has_room().await;
        memory.grew(10);
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
}
