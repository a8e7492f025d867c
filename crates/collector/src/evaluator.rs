//! The one way to ask for series: parse, prefetch, evaluate on a blocking thread, within a budget and a time.
//!
//! ```text
//! text ─ query::parse ─▶ selections ─ store prefetch (async) ─▶ evaluate (blocking pool) ─▶ Output
//!         └ refused: malformed            └──── cancelled when the time is up or the caller drops the future ────┘
//! ```
//! The HTTP API, the event stream and the rules all call this, so they agree.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use domain::series::{Budget, BudgetExceeded, SelectError};
use domain::time::TimestampMs;
use query::{EvalError, Output, Params, ParseError, Query};
use store::SeriesStore;
use tokio::sync::Semaphore;

use crate::own_series::OwnSeries;
use crate::self_metrics::SelfMetrics;

/// Samples one query may read; Prometheus' default, 800 MB at worst.
pub const SAMPLES_MAX: u64 = 50_000_000;
/// Series one query may select: every series of a metric on 10,000 GPUs with room for a label or two.
pub const SERIES_MAX: u64 = 300_000;
/// How long one query may take, waiting included.
pub const TIME_MAX: Duration = Duration::from_secs(30);
/// Queries evaluated at once, a core; more only share the same cores and hold more memory.
const CONCURRENT_A_CORE: usize = 2;

/// Evaluates queries over the store. Cheap to clone.
#[derive(Clone)]
pub struct Evaluator {
    series: SeriesStore,
    own: Arc<OwnSeries>,
    slots: Arc<Semaphore>,
    metrics: SelfMetricsOfQueries,
}

#[derive(Clone)]
struct SelfMetricsOfQueries {
    seconds: prometheus::Histogram,
    failures: prometheus::IntCounterVec,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// Not a query.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// Times or steps that make no sense.
    #[error("{0}")]
    Params(String),
    /// Too much work.
    #[error(transparent)]
    TooMuch(BudgetExceeded),
    /// The time was up.
    #[error(
        "the query did not finish within {} s; select fewer series, a shorter range or a larger step",
        TIME_MAX.as_secs()
    )]
    Timeout,
    /// The data does not fit the query.
    #[error("{0}")]
    Execution(String),
    /// The store failed.
    #[error("the series store could not answer: {0}")]
    Store(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Evaluator {
    /// An evaluator over a store.
    #[must_use]
    pub fn new(series: SeriesStore, metrics: &SelfMetrics) -> Self {
        let metrics = SelfMetricsOfQueries {
            seconds: metrics.query_seconds.clone(),
            failures: metrics.query_failures.clone(),
        };
        Self {
            series,
            own: Arc::default(),
            slots: Arc::new(Semaphore::new(slots())),
            metrics,
        }
    }

    /// What can be asked of the collector itself.
    #[must_use]
    pub fn own(&self) -> &OwnSeries {
        &self.own
    }

    /// The same evaluator with slots of its own, so that neither side's queries hold up the other's.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(slots())),
            ..self.clone()
        }
    }

    /// The value of a query at one time.
    ///
    /// # Errors
    /// See [`QueryError`].
    pub async fn instant(&self, text: &str, at_ms: TimestampMs) -> Result<Output, QueryError> {
        self.evaluate(query::parse(text)?, Params::instant(at_ms)).await
    }

    /// The values of a query every `step_ms` from start to end, both inclusive.
    ///
    /// # Errors
    /// See [`QueryError`].
    pub async fn range(
        &self,
        text: &str,
        start_ms: TimestampMs,
        end_ms: TimestampMs,
        step_ms: i64,
    ) -> Result<Output, QueryError> {
        if step_ms <= 0 {
            let message =
                "zero or negative query resolution step widths are not accepted. Try a positive integer";
            return Err(QueryError::Params(message.into()));
        }
        self.evaluate(query::parse(text)?, Params::range(start_ms, end_ms, step_ms))
            .await
    }

    /// Evaluates a parsed query. Dropping the future cancels the work behind it.
    ///
    /// # Errors
    /// See [`QueryError`].
    pub async fn evaluate(&self, query: Query, params: Params) -> Result<Output, QueryError> {
        let timer = self.metrics.seconds.start_timer();
        let answer = tokio::time::timeout(TIME_MAX, self.work(query, params))
            .await
            .unwrap_or(Err(QueryError::Timeout));
        timer.observe_duration();
        if let Err(error) = &answer {
            self.metrics.failures.with_label_values(&[error.reason()]).inc();
        }
        answer
    }

    async fn work(&self, query: Query, params: Params) -> Result<Output, QueryError> {
        let slot = Arc::clone(&self.slots)
            .acquire_owned()
            .await
            .expect("the semaphore is never closed");
        let budget = Budget::new(SAMPLES_MAX, SERIES_MAX);
        let _cancel_on_drop = CancelOnDrop(budget.cancel_flag());
        let selections = query.selections(&params);
        let source = self.own.beside(self.series.prefetch(&selections, &budget).await?);
        let evaluated = tokio::task::spawn_blocking(move || {
            let _slot_until_the_work_ends = slot;
            query.evaluate(&source, &params, &budget)
        });
        Ok(evaluated
            .await
            .map_err(|panic| QueryError::Execution(format!("the query engine failed: {panic}")))??)
    }
}

fn slots() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from) * CONCURRENT_A_CORE
}

/// Makes the evaluation stop at its next look at the budget when nobody waits for it any more.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl QueryError {
    /// Prometheus' `errorType`.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Parse(_) | Self::Params(_) => "bad_data",
            Self::TooMuch(BudgetExceeded::Cancelled) => "canceled",
            Self::TooMuch(_) | Self::Execution(_) => "execution",
            Self::Timeout => "timeout",
            Self::Store(_) => "internal",
        }
    }
}

impl From<EvalError> for QueryError {
    fn from(error: EvalError) -> Self {
        match error {
            EvalError::Params(message) => Self::Params(message),
            EvalError::Budget(budget) => Self::TooMuch(budget),
            EvalError::Select(error) => error.into(),
            EvalError::Execution(message) => Self::Execution(message),
        }
    }
}

impl From<SelectError> for QueryError {
    fn from(error: SelectError) -> Self {
        match error {
            SelectError::Budget(budget) => Self::TooMuch(budget),
            SelectError::Matcher(message) => Self::Params(message),
            SelectError::Store(error) => Self::Store(error),
        }
    }
}
