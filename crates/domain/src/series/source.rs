//! How a query reads series: one selection in, columns out, within a budget.
//!
//! The evaluator is synchronous and pure. A store prefetches what the selections ask for, then hands over a
//! [`SeriesSource`]; a test hands over a literal one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::series::{Labels, Matcher};
use crate::time::{TimeRange, TimestampMs};

/// What a query wants of one selector. `start_ms..=end_ms` already includes range, lookback, offset and `@`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Selection {
    /// All must hold.
    pub matchers: Vec<Matcher>,
    /// The first time of interest, inclusive.
    pub start_ms: TimestampMs,
    /// The last time of interest, inclusive.
    pub end_ms: TimestampMs,
    /// The query's step; 0 for an instant query. A store may pre-aggregate by it.
    pub step_ms: i64,
    /// The function right around the selector (`rate`, `max_over_time`, …), if any.
    pub function: Option<String>,
    /// Only the newest sample of each series at or before `end_ms` matters.
    pub latest: bool,
}

impl Selection {
    /// The times of interest.
    #[must_use]
    pub fn range(&self) -> TimeRange {
        TimeRange::new(self.start_ms, self.end_ms)
    }
}

/// One series with its samples: times ascending, staleness markers included.
///
/// Series that share a time axis share its allocation, so that windows are computed once an axis (`Arc::ptr_eq`).
#[derive(Debug, Clone)]
pub struct Series {
    /// Its name.
    pub labels: Labels,
    /// Sample times, strictly ascending.
    pub times_ms: Arc<[TimestampMs]>,
    /// As many values; [`crate::series::ABSENT`] where this series has no sample on a shared axis.
    pub values: Arc<[f64]>,
}

/// The answer to a selection, in the order of the labels.
#[derive(Debug, Clone, Default)]
pub struct SeriesSet {
    /// Each series once.
    pub series: Vec<Series>,
    /// The longest bucket among them, where samples have aged into roll-ups: they are its last, largest, … value, at its
    /// end. `None` when all are as they came.
    pub resolution_ms: Option<i64>,
}

/// Where series come from.
pub trait SeriesSource {
    /// Returns every series that has a sample within the selection's range.
    ///
    /// # Errors
    /// When the budget is spent, a matcher is malformed, or the store fails.
    fn select(&self, selection: &Selection, budget: &Budget) -> Result<SeriesSet, SelectError>;
}

/// Why a selection could not be answered.
#[derive(Debug, thiserror::Error)]
pub enum SelectError {
    /// Too much, or cancelled.
    #[error(transparent)]
    Budget(#[from] BudgetExceeded),
    /// A matcher that cannot be used.
    #[error("{0}")]
    Matcher(String),
    /// The store failed.
    #[error("the series store could not be read")]
    Store(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// What one query may cost. Shared by all its parts; safe to use from several threads. Clones spend the same budget.
#[derive(Debug, Clone)]
pub struct Budget {
    samples_left: Arc<AtomicU64>,
    series_left: Arc<AtomicU64>,
    cancelled: Arc<AtomicBool>,
    limits: (u64, u64),
    lease: Option<Arc<Lease>>,
}

/// Samples that several queries may hold together, so that many large ones at once are bounded as one is. Clones are the
/// same pool.
#[derive(Debug, Clone)]
pub struct Pool {
    left: Arc<AtomicU64>,
    samples: u64,
}

/// What one query took out of a pool; it goes back when the last clone of the query's budget is dropped.
#[derive(Debug)]
struct Lease {
    pool: Pool,
    taken: AtomicU64,
}

/// A spent budget, in words for the person who asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BudgetExceeded {
    /// More samples than allowed.
    #[error(
        "the query would read more than {0} samples; select fewer series, a shorter range or a larger step"
    )]
    Samples(u64),
    /// More series than allowed.
    #[error("the query selects more than {0} series; add label matchers")]
    Series(u64),
    /// More samples than all queries together may hold; this one alone may be small.
    #[error("all queries together would hold more than {0} samples; ask again in a moment")]
    Together(u64),
    /// The client left or the time was up.
    #[error("the query was cancelled")]
    Cancelled,
}

impl Budget {
    /// A budget of samples and series.
    #[must_use]
    pub fn new(samples: u64, series: u64) -> Self {
        Self {
            samples_left: Arc::new(AtomicU64::new(samples)),
            series_left: Arc::new(AtomicU64::new(series)),
            cancelled: Arc::default(),
            limits: (samples, series),
            lease: None,
        }
    }

    /// The same budget, paid out of a pool too for as long as a clone of it lives.
    #[must_use]
    pub fn within(self, pool: &Pool) -> Self {
        let lease = Lease {
            pool: pool.clone(),
            taken: AtomicU64::new(0),
        };
        Self {
            lease: Some(Arc::new(lease)),
            ..self
        }
    }

    /// For tests and trusted callers.
    #[must_use]
    pub fn unlimited() -> Self {
        Self::new(u64::MAX, u64::MAX)
    }

    /// A flag that, once set, makes every further [`Budget::take`] fail.
    #[must_use]
    pub fn cancel_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancelled)
    }

    /// Pays for series and samples before they are read.
    ///
    /// # Errors
    /// When the budget does not cover them, or the query was cancelled.
    pub fn take(&self, series: u64, samples: u64) -> Result<(), BudgetExceeded> {
        self.check_cancelled()?;
        if !pay(&self.series_left, series) {
            return Err(BudgetExceeded::Series(self.limits.1));
        }
        if !pay(&self.samples_left, samples) {
            return Err(BudgetExceeded::Samples(self.limits.0));
        }
        self.lease.as_ref().map_or(Ok(()), |lease| lease.take(samples))
    }

    /// Series it still pays for.
    #[must_use]
    pub fn series_left(&self) -> u64 {
        self.series_left.load(Ordering::Relaxed)
    }

    /// Samples paid for so far.
    #[must_use]
    pub fn samples_spent(&self) -> u64 {
        self.limits.0 - self.samples_left.load(Ordering::Relaxed)
    }

    /// Whether to go on.
    ///
    /// # Errors
    /// When the query was cancelled.
    pub fn check_cancelled(&self) -> Result<(), BudgetExceeded> {
        if self.cancelled.load(Ordering::Relaxed) {
            Err(BudgetExceeded::Cancelled)
        } else {
            Ok(())
        }
    }
}

impl Pool {
    /// A pool of so many samples.
    #[must_use]
    pub fn new(samples: u64) -> Self {
        Self {
            left: Arc::new(AtomicU64::new(samples)),
            samples,
        }
    }

    /// Samples that nobody holds.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }
}

impl Lease {
    fn take(&self, samples: u64) -> Result<(), BudgetExceeded> {
        if !pay(&self.pool.left, samples) {
            return Err(BudgetExceeded::Together(self.pool.samples));
        }
        self.taken.fetch_add(samples, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pool.left.fetch_add(*self.taken.get_mut(), Ordering::Relaxed);
    }
}

fn pay(left: &AtomicU64, cost: u64) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| now.checked_sub(cost))
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_spent_once() {
        let budget = Budget::new(10, 2);
        assert_eq!(budget.take(1, 6), Ok(()));
        assert_eq!(budget.take(1, 6), Err(BudgetExceeded::Samples(10)));
        assert_eq!(budget.take(5, 0), Err(BudgetExceeded::Series(2)));
        budget.cancel_flag().store(true, Ordering::Relaxed);
        assert_eq!(budget.take(0, 0), Err(BudgetExceeded::Cancelled));
    }

    #[test]
    fn a_pool_is_shared_and_filled_again() {
        let pool = Pool::new(10);
        let (one, other) = (Budget::new(9, 1).within(&pool), Budget::new(9, 1).within(&pool));
        assert_eq!(one.take(0, 7), Ok(()));
        assert_eq!(other.take(0, 4), Err(BudgetExceeded::Together(10)));
        assert_eq!(other.take(0, 3), Ok(()));
        let clone = one.clone();
        drop(one);
        assert_eq!(pool.left(), 0);
        drop((clone, other));
        assert_eq!(pool.left(), 10);
    }
}
