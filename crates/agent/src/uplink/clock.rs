//! Measures the offset between this node's clock and the collector's, from the acknowledgements that arrive anyway.
//!
//! ```text
//! agent      t0 batch is sent                      t3 acknowledgement arrives
//! collector        t1 batch is read … t2 acknowledgement is sent
//!
//! offset (agent − collector) = ((t0 − t1) + (t3 − t2)) / 2      the error is at most half the delay
//! delay                      = (t3 − t0) − (t2 − t1)
//! ```
//! As in NTP, the exchange with the smallest delay of the last minute is used: time spent in a queue in one direction looks like a wrong
//! clock. When a clock is set, the measurement starts again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use domain::time::TimestampMs;

use crate::sample::Samples;
use crate::sample::series::series;

/// How long an exchange is used. Clocks drift by a few parts in 100,000, so by less than a millisecond in this time.
const COUNTS_FOR: Duration = Duration::from_secs(60);
/// The number of exchanges kept: one per second, plus those of a backfill.
const KEPT_MAX: usize = 128;
/// The largest difference, in microseconds, between the progress of the wall clock and of the monotonic clock from one exchange to the
/// next. A larger one means that the clock was set.
const SET_US: i64 = 50_000;

/// The four times of an exchange, in microseconds since 1970, each by the clock of the side where it was taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exchange {
    /// When the batch left the agent.
    pub(crate) left_us: i64,
    /// When the batch reached the collector.
    pub(crate) received_us: i64,
    /// When the answer left the collector.
    pub(crate) answered_us: i64,
    /// When the answer reached the agent.
    pub(crate) returned_us: i64,
}

/// The offset of the clock, and the delay of the exchange that measured it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Estimate {
    /// The agent's clock minus the collector's, in microseconds.
    pub(crate) offset_us: i64,
    pub(crate) delay_us: i64,
}

/// The offset of the node's clock from the collector's. Cheap to clone; all clones share one state.
#[derive(Debug, Clone, Default)]
pub(crate) struct Clock(Arc<Mutex<Filter>>);

impl Clock {
    /// Records an exchange that ended now.
    pub(crate) fn note(&self, exchange: Exchange) {
        let mut filter = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        filter.note(exchange, Instant::now());
    }

    /// Adds the estimate to the samples, if there is one.
    pub(crate) fn read(&self, samples: &Samples, at_ms: TimestampMs) {
        let estimate = {
            let filter = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            filter.estimate(Instant::now())
        };
        let Some(estimate) = estimate else { return };
        let put = |name, us: i64| samples.push(&series(name, &[]), at_ms, us as f64 / 1e6);
        put("lockstep_agent_clock_offset_seconds", estimate.offset_us);
        put("lockstep_agent_clock_delay_seconds", estimate.delay_us);
    }
}

/// Returns the time of the wall clock, in microseconds since 1970.
pub(crate) fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

#[derive(Debug, Default)]
struct Filter {
    kept: VecDeque<(Instant, Estimate)>,
    /// The monotonic time and the wall-clock time of the last exchange.
    last: Option<(Instant, i64)>,
}

impl Filter {
    fn note(&mut self, exchange: Exchange, at: Instant) {
        let Some(estimate) = exchange.estimate() else {
            return;
        };
        let was_set = self.last.is_some_and(|(then, wall_us)| {
            let passed = i64::try_from(at.duration_since(then).as_micros()).unwrap_or(i64::MAX);
            (exchange.returned_us - wall_us - passed).abs() > SET_US
        });
        if was_set {
            self.kept.clear();
        }
        self.last = Some((at, exchange.returned_us));
        if self.kept.len() == KEPT_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back((at, estimate));
    }

    fn estimate(&self, now: Instant) -> Option<Estimate> {
        let counts = self
            .kept
            .iter()
            .filter(|(at, _)| now.duration_since(*at) <= COUNTS_FOR);
        counts
            .map(|(_, estimate)| *estimate)
            .min_by_key(|estimate| estimate.delay_us)
    }
}

impl Exchange {
    /// Returns `None` for impossible times: a clock was set in between.
    fn estimate(self) -> Option<Estimate> {
        let there = self.left_us.checked_sub(self.received_us)?;
        let back = self.returned_us.checked_sub(self.answered_us)?;
        let delay_us = back.checked_sub(there)?;
        let busy_us = self.answered_us.checked_sub(self.received_us)?;
        (delay_us >= 0 && busy_us >= 0).then(|| Estimate {
            offset_us: there.midpoint(back),
            delay_us,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLLECTOR_US: i64 = 1_700_000_000_000_000;

    /// An exchange at a time of the collector, with an agent whose clock is ahead by `ahead_us`.
    fn exchange(at_us: i64, ahead_us: i64, there_us: i64, back_us: i64) -> Exchange {
        let busy_us = 40_000;
        let received_us = COLLECTOR_US + at_us + there_us;
        Exchange {
            left_us: COLLECTOR_US + at_us + ahead_us,
            received_us,
            answered_us: received_us + busy_us,
            returned_us: received_us + busy_us + back_us + ahead_us,
        }
    }

    /// The estimate after exchanges at the given seconds, each with (ahead, there, back) in microseconds.
    fn estimate(exchanges: &[(u64, i64, i64, i64)], after_s: u64) -> Option<Estimate> {
        let (start, mut filter) = (Instant::now(), Filter::default());
        for (at_s, ahead_us, there_us, back_us) in exchanges {
            let done = exchange(*at_s as i64 * 1_000_000, *ahead_us, *there_us, *back_us);
            let passed = done.returned_us - COLLECTOR_US - ahead_us;
            filter.note(done, start + Duration::from_micros(passed.unsigned_abs()));
        }
        filter.estimate(start + Duration::from_secs(after_s))
    }

    fn expect(offset_us: i64, delay_us: i64) -> Option<Estimate> {
        Some(Estimate { offset_us, delay_us })
    }

    #[test]
    fn a_wrong_clock_is_measured_from_one_exchange() {
        assert_eq!(estimate(&[(0, 7_000_000, 300, 300)], 1), expect(7_000_000, 600));
        assert_eq!(estimate(&[(0, -7_000_000, 300, 300)], 1), expect(-7_000_000, 600));
        assert_eq!(estimate(&[], 1), None);
    }

    #[test]
    fn a_queue_in_one_direction_is_not_a_wrong_clock() {
        let queued = [
            (0, 5_000, 900_000, 200),
            (1, 5_000, 400_000, 200),
            (2, 5_000, 210, 190),
            (3, 5_000, 200, 700_000),
        ];
        assert_eq!(estimate(&queued, 4), expect(4_990, 400));
        // The good exchange is too old. The best of the others is used; its error is at most half its delay.
        let late = estimate(&queued, 63).expect("one is left");
        assert!((late.offset_us - 5_000).abs() <= late.delay_us / 2, "{late:?}");
        assert_eq!(
            estimate(&queued, 64),
            None,
            "an exchange of a minute ago does not count"
        );
    }

    #[test]
    fn a_clock_that_is_set_is_measured_again() {
        let set = [
            (0, 9_000_000, 100, 100),
            (1, 9_000_000, 100, 100),
            (2, 0, 5_000, 5_000),
        ];
        assert_eq!(estimate(&set, 3), expect(0, 10_000));
    }

    #[test]
    fn times_that_cannot_be_are_left_out() {
        let mut turned = exchange(0, 0, 100, 100);
        turned.returned_us = turned.left_us - 1_000_000;
        assert_eq!(turned.estimate(), None);
        let absent = Exchange {
            received_us: 0,
            answered_us: i64::MIN,
            ..turned
        };
        assert_eq!(absent.estimate(), None);
    }
}
