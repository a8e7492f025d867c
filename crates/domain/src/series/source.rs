//! How a query reads series: one selection in, columns of samples out, within a budget.
//!
//! The evaluator is synchronous and pure. The store prefetches the samples of all selections and then passes a [`SeriesSource`] to it. A
//! test passes a source with literal samples.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::series::{Labels, METRIC_NAME, MatchOp, Matcher};
use crate::time::{TimeRange, TimestampMs};

/// The series and times that one selector of a query reads. `start_ms..=end_ms` already includes range, lookback, offset and `@`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Selection {
    /// Conditions on the labels. A series must match all of them.
    pub matchers: Vec<Matcher>,
    /// First time, inclusive.
    pub start_ms: TimestampMs,
    /// Last time, inclusive.
    pub end_ms: TimestampMs,
    /// Step of the query; 0 for an instant query. A store may pre-aggregate by it.
    pub step_ms: i64,
    /// Function that directly encloses the selector (`rate`, `max_over_time`, …), if any.
    pub function: Option<String>,
    /// True if only the newest sample of each series at or before `end_ms` is needed.
    pub latest: bool,
}

impl Selection {
    /// Returns the period of the selection.
    #[must_use]
    pub fn range(&self) -> TimeRange {
        TimeRange::new(self.start_ms, self.end_ms)
    }

    /// Returns the name of the metric if a matcher with `=` gives it.
    #[must_use]
    pub fn metric(&self) -> Option<&str> {
        let gives_it = |matcher: &&Matcher| matcher.name == METRIC_NAME && matcher.op == MatchOp::Equal;
        let given = self.matchers.iter().find(gives_it);
        given.map(|matcher| matcher.value.as_str())
    }
}

/// One series with its samples: times ascending, staleness markers included.
///
/// Series with the same time axis share its allocation, so that windows are computed once per axis (`Arc::ptr_eq`).
#[derive(Debug, Clone)]
pub struct Series {
    /// Labels of the series.
    pub labels: Labels,
    /// Sample times, strictly ascending.
    pub times_ms: Arc<[TimestampMs]>,
    /// One value per time; [`crate::series::ABSENT`] where this series has no sample on a shared time axis.
    pub values: Arc<[f64]>,
}

/// Result of a selection, ordered by labels.
#[derive(Debug, Clone, Default)]
pub struct SeriesSet {
    /// The series, each once.
    pub series: Vec<Series>,
    /// Longest bucket among the roll-ups in the result. A roll-up contains the last, largest, … value of a bucket, at the end of the
    /// bucket. `None` if all samples are raw samples.
    pub resolution_ms: Option<i64>,
}

/// A source of series.
pub trait SeriesSource {
    /// Returns every series that has a sample within the range of the selection. Samples outside of the range, and series that have only
    /// such samples, are allowed.
    ///
    /// # Errors
    /// Returns an error if the budget is spent, a matcher is malformed, or the store fails.
    fn select(&self, selection: &Selection, budget: &Budget) -> Result<SeriesSet, SelectError>;
}

/// Why a selection failed.
#[derive(Debug, thiserror::Error)]
pub enum SelectError {
    /// The budget is spent, or the query was cancelled.
    #[error(transparent)]
    Budget(#[from] BudgetExceeded),
    /// A matcher is not valid.
    #[error("{0}")]
    Matcher(String),
    /// The store failed.
    #[error("the series store could not be read")]
    Store(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Limits of one query. All parts of the query share them, also across threads. Clones spend the same budget.
#[derive(Debug, Clone)]
pub struct Budget {
    samples_left: Arc<AtomicU64>,
    series_left: Arc<AtomicU64>,
    cancelled: Arc<AtomicBool>,
    limits: (u64, u64),
    lease: Option<Arc<Lease>>,
}

/// Samples that all queries together may hold in memory, so that many large queries at once are also limited. Clones share the same pool.
#[derive(Debug, Clone)]
pub struct Pool {
    left: Arc<AtomicU64>,
    samples: u64,
}

/// Samples that one query took from a pool. They are returned when the last clone of the query's budget is dropped.
#[derive(Debug)]
struct Lease {
    pool: Pool,
    taken: AtomicU64,
}

/// Which limit of a query was exceeded. The `Display` text is for the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BudgetExceeded {
    /// The query reads more samples than allowed.
    #[error(
        "the query would read more than {0} samples; select fewer series, a shorter range or a larger step"
    )]
    Samples(u64),
    /// The query reads more series than allowed.
    #[error("the query selects more than {0} series; add label matchers")]
    Series(u64),
    /// All queries together hold more samples than allowed; this query alone may be small.
    #[error("all queries together would hold more than {0} samples in memory; try again in a moment")]
    AllQueries(u64),
    /// The client disconnected or the time limit passed.
    #[error("the query was cancelled")]
    Cancelled,
}

impl Budget {
    /// Returns a budget of `samples` and `series`.
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

    /// Returns the same budget that also takes its samples from `pool`. They are returned when the last clone is dropped.
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

    /// Returns a budget without limits, for tests and trusted callers.
    #[must_use]
    pub fn unlimited() -> Self {
        Self::new(u64::MAX, u64::MAX)
    }

    /// Returns a flag that, once set, makes every later [`Budget::take`] fail.
    #[must_use]
    pub fn cancel_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancelled)
    }

    /// Takes series and samples from the budget. Call it before they are read.
    ///
    /// # Errors
    /// Returns an error if the budget is too small or the query was cancelled.
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

    /// Returns the number of series left.
    #[must_use]
    pub fn series_left(&self) -> u64 {
        self.series_left.load(Ordering::Relaxed)
    }

    /// Returns the number of samples taken so far.
    #[must_use]
    pub fn samples_spent(&self) -> u64 {
        self.limits.0 - self.samples_left.load(Ordering::Relaxed)
    }

    /// Checks that the query may continue.
    ///
    /// # Errors
    /// Returns an error if the query was cancelled.
    pub fn check_cancelled(&self) -> Result<(), BudgetExceeded> {
        if self.cancelled.load(Ordering::Relaxed) {
            Err(BudgetExceeded::Cancelled)
        } else {
            Ok(())
        }
    }
}

impl Pool {
    /// Returns a pool of `samples` samples.
    #[must_use]
    pub fn new(samples: u64) -> Self {
        Self {
            left: Arc::new(AtomicU64::new(samples)),
            samples,
        }
    }

    /// Returns the number of samples that no query holds.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }
}

impl Lease {
    fn take(&self, samples: u64) -> Result<(), BudgetExceeded> {
        if !pay(&self.pool.left, samples) {
            return Err(BudgetExceeded::AllQueries(self.pool.samples));
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
        assert_eq!(other.take(0, 4), Err(BudgetExceeded::AllQueries(10)));
        assert_eq!(other.take(0, 3), Ok(()));
        let clone = one.clone();
        drop(one);
        assert_eq!(pool.left(), 0);
        drop((clone, other));
        assert_eq!(pool.left(), 10);
    }
}
