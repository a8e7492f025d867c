//! The set of series of a sender: one bit per series, indexed by the store's ids, which are dense.

use std::time::{Duration, Instant};

use store::series::SeriesId;

/// When the sender is at its limit: how often series that the store has removed are removed here.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// Series that a sender has sent, and that still exist in the store.
#[derive(Debug, Default)]
pub(super) struct SentSeries {
    bits: Vec<u64>,
    count: usize,
    swept: Option<Instant>,
}

impl SentSeries {
    pub(super) fn add(&mut self, id: SeriesId) {
        let (word, bit) = (id.0 as usize / 64, 1 << (id.0 % 64));
        if self.bits.len() <= word {
            self.bits.resize(word + 1, 0);
        }
        self.count += usize::from(self.bits[word] & bit == 0);
        self.bits[word] |= bit;
    }

    /// Returns true if the number of series is below a limit, after removed series are taken out.
    pub(super) fn has_room(&mut self, limit: usize, now: Instant, lives: impl Fn(SeriesId) -> bool) -> bool {
        if self.count < limit {
            return true;
        }
        if self
            .swept
            .is_none_or(|swept| now.saturating_duration_since(swept) >= SWEEP_EVERY)
        {
            self.swept = Some(now);
            self.sweep(lives);
        }
        self.count < limit
    }

    fn sweep(&mut self, lives: impl Fn(SeriesId) -> bool) {
        for (word, bits) in (0_u32..).zip(&mut self.bits) {
            for bit in 0..64 {
                if *bits & 1 << bit != 0 && !lives(SeriesId(word * 64 + bit)) {
                    *bits &= !(1 << bit);
                    self.count -= 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_series_make_room() {
        let mut sent = SentSeries::default();
        let now = Instant::now();
        for n in [1, 63, 64, 1_000, 64] {
            sent.add(SeriesId(n));
        }
        assert!(sent.has_room(5, now, |_| panic!("there is room as it is")));
        assert!(!sent.has_room(4, now, |_| true));
        // Not swept again at once.
        assert!(!sent.has_room(4, now, |_| false));
        assert!(sent.has_room(4, now + SWEEP_EVERY, |id| id.0 != 64));
        sent.add(SeriesId(64));
        assert!(!sent.has_room(4, now + SWEEP_EVERY, |_| true));
    }
}
