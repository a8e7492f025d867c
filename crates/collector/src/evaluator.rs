//! The only way to query series: parse, prefetch, and evaluate on a blocking thread, within a budget and a time limit.
//!
//! ```text
//! text ─ query::parse ─▶ slot ─▶ small, and in memory: evaluated here ────────────────────────────┬─▶ Output
//!         │                │ └──▶ blocking pool: selections ─ store prefetch ─ evaluate ──────────┘
//!         │                │     └─ cancelled at the time limit, or if the caller drops the future
//!         │                └ rejected: too many queries wait
//!         └ rejected: malformed
//! ```
//! The HTTP API, the event stream and the rules all use it, so they return the same values.

mod load;
mod rolled_up;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use domain::series::{Budget, BudgetExceeded, SelectError, Selection};
use domain::time::TimestampMs;
use query::{EvalError, Output, Params, ParseError, Query, Value, VectorSample};
use store::SeriesStore;
use store::series::Prefetched;
use tokio::runtime::Handle;

use crate::own_series::OwnSeries;
use crate::self_metrics::SelfMetrics;
pub(crate) use load::slots;
use load::{Load, Slot};

/// Maximum number of samples that one query may read: Prometheus' default, at most 800 MB.
pub const SAMPLES_MAX: u64 = 50_000_000;
/// Maximum number of series that one query may select: every series of a metric on 10,000 GPUs, with room for another label or two.
pub const SERIES_MAX: u64 = 300_000;
/// Time limit of one query, including the wait for a slot.
pub const TIME_MAX: Duration = Duration::from_secs(30);

/// How many samples a name, or a series' labels, count as in a list: 256 bytes.
const SAMPLES_A_NAME: u64 = 16;

/// Evaluates queries on the store. Cheap to clone.
#[derive(Clone)]
pub struct Evaluator {
    series: SeriesStore,
    own: Arc<OwnSeries>,
    load: Load,
    metrics: SelfMetricsOfQueries,
}

/// The result of a query and its cost. Its samples count against the bound of all queries until it is dropped.
#[derive(Debug)]
pub struct Answered {
    /// The result.
    pub output: Output,
    /// The cost of the query.
    pub cost: Cost,
    /// The budget that holds the samples.
    pub(crate) held: Budget,
}

impl Answered {
    /// Creates the result of a query that has just been evaluated. `samples_read`: the samples that were spent before the evaluation. The
    /// tuple: when the query began, how long it waited, and how long it read.
    fn new(
        output: Output,
        held: Budget,
        samples_read: u64,
        (began, queued, reading): (Instant, Duration, Duration),
    ) -> Self {
        let cost = Cost {
            samples: held.samples_spent(),
            samples_read,
            queued,
            reading,
            evaluating: began.elapsed() - queued - reading,
        };
        Self { output, cost, held }
    }
}

/// The cost of a query.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Number of samples read, and of values of intermediate results.
    pub samples: u64,
    /// Number of samples read.
    pub samples_read: u64,
    /// Time waiting for a slot.
    pub queued: Duration,
    /// Time reading series.
    pub reading: Duration,
    /// Time evaluating.
    pub evaluating: Duration,
}

#[derive(Clone)]
struct SelfMetricsOfQueries {
    seconds: prometheus::Histogram,
    failures: prometheus::IntCounterVec,
}

/// Why a query has no result.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The query is malformed.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// The times or the step are invalid.
    #[error("{0}")]
    Params(String),
    /// The query needs too much memory.
    #[error("{}", in_prometheus_words(*.0))]
    TooMuch(BudgetExceeded),
    /// The time limit was reached.
    #[error(
        "query timed out in expression evaluation: it did not finish within {} s; select fewer series, a shorter range or a \
         larger step",
        .0.as_secs_f64()
    )]
    Timeout(Duration),
    /// Too many queries are waiting.
    #[error("{0} queries are already waiting; try again in a second")]
    Busy(usize),
    /// The data does not fit the query.
    #[error("{0}")]
    Execution(String),
    /// The store failed.
    #[error("the series store failed: {0}")]
    Store(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The engine failed.
    #[error("the query engine failed")]
    Engine(#[source] tokio::task::JoinError),
}

/// Uses Prometheus' phrases, because programs look for them, and adds an explanation for people.
fn in_prometheus_words(exceeded: BudgetExceeded) -> String {
    match exceeded {
        BudgetExceeded::Samples(_) => {
            format!("query processing would load too many samples into memory in query execution: {exceeded}")
        }
        BudgetExceeded::Cancelled => "query was canceled in expression evaluation".into(),
        BudgetExceeded::Series(_) | BudgetExceeded::AllQueries(_) => exceeded.to_string(),
    }
}

impl Evaluator {
    /// Creates an evaluator over a store.
    #[must_use]
    pub fn new(series: SeriesStore, metrics: &SelfMetrics) -> Self {
        let metrics = SelfMetricsOfQueries {
            seconds: metrics.query_seconds.clone(),
            failures: metrics.query_failures.clone(),
        };
        Self {
            series,
            own: Arc::default(),
            load: Load::new(),
            metrics,
        }
    }

    /// The series of the collector itself.
    #[must_use]
    pub fn own(&self) -> &Arc<OwnSeries> {
        &self.own
    }

    /// Returns the same evaluator with its own slots and samples, so that neither side's queries delay the other's.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self {
            load: Load::new(),
            ..self.clone()
        }
    }

    /// Returns the number of free slots, and of samples that are not held.
    #[must_use]
    pub fn free(&self) -> (usize, u64) {
        self.load.free()
    }

    /// Returns the value of a query at one time.
    ///
    /// # Errors
    /// See [`QueryError`].
    pub async fn instant(&self, text: &str, at_ms: TimestampMs) -> Result<Output, QueryError> {
        self.evaluate(query::parse(text)?, Params::instant(at_ms)).await
    }

    /// Returns the samples of a query for an instant vector; none if its value has another type.
    pub(crate) async fn samples(
        &self,
        text: &str,
        at_ms: TimestampMs,
    ) -> Result<Vec<VectorSample>, QueryError> {
        Ok(match self.instant(text, at_ms).await?.value {
            Value::Vector(samples) => samples,
            _ => Vec::new(),
        })
    }

    /// Returns the values of a query every `step_ms` from start to end, both inclusive.
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

    /// Evaluates a parsed query. Dropping the future cancels the work.
    ///
    /// # Errors
    /// See [`QueryError`].
    pub async fn evaluate(&self, query: Query, params: Params) -> Result<Output, QueryError> {
        Ok(self.answer(query, params, TIME_MAX).await?.output)
    }

    /// Evaluates a parsed query within a time limit, at most [`TIME_MAX`], and returns the result with its cost.
    ///
    /// # Errors
    /// See [`QueryError`].
    pub async fn answer(
        &self,
        query: Query,
        params: Params,
        within: Duration,
    ) -> Result<Answered, QueryError> {
        let within = within.min(TIME_MAX);
        let timer = self.metrics.seconds.start_timer();
        let answer = if within.is_zero() {
            // With a time limit of zero, a fast result might still get through.
            Err(QueryError::Timeout(within))
        } else {
            let answer = tokio::time::timeout(within, self.work(query, params)).await;
            answer.unwrap_or(Err(QueryError::Timeout(within)))
        };
        timer.observe_duration();
        if let Err(error) = &answer {
            self.metrics.failures.with_label_values(&[error.reason()]).inc();
        }
        answer
    }

    /// Looks up names or series in the store's index, on a blocking thread, as one of the queries in progress. Until it is dropped, the
    /// budget counts the result against the bound of all queries.
    ///
    /// # Errors
    /// See [`QueryError`].
    pub(crate) async fn list<T: Send + 'static>(
        &self,
        look_up: impl FnOnce(&SeriesStore) -> Result<Vec<T>, SelectError> + Send + 'static,
    ) -> Result<(Vec<T>, Budget), QueryError> {
        let listed = tokio::time::timeout(TIME_MAX, async {
            let slot = self.load.slot().await?;
            let (series, budget) = (self.series.clone(), self.load.budget());
            let found = tokio::task::spawn_blocking(move || {
                let _slot_until_the_work_ends = slot;
                look_up(&series)
            });
            let found = found.await.map_err(QueryError::Engine)??;
            budget
                .take(0, (found.len() as u64).saturating_mul(SAMPLES_A_NAME))
                .map_err(QueryError::TooMuch)?;
            Ok((found, budget))
        });
        listed.await.unwrap_or(Err(QueryError::Timeout(TIME_MAX)))
    }

    async fn work(&self, query: Query, params: Params) -> Result<Answered, QueryError> {
        let began = Instant::now();
        match self.attempt(query.clone(), params, began).await {
            Err(QueryError::TooMuch(BudgetExceeded::AllQueries(_))) => {
                let _turn = self.load.room().await;
                self.attempt(query, params, began).await
            }
            answer => answer,
        }
    }

    async fn attempt(&self, query: Query, params: Params, began: Instant) -> Result<Answered, QueryError> {
        let slot = self.load.slot().await?;
        if let Some(answered) = self.at_once(&query, params, began) {
            return Ok(answered);
        }
        self.on_a_thread(slot, query, params, began).await
    }

    async fn on_a_thread(
        &self,
        slot: Slot,
        query: Query,
        params: Params,
        began: Instant,
    ) -> Result<Answered, QueryError> {
        let budget = self.load.budget();
        let _cancel_on_drop = CancelOnDrop(budget.cancel_flag());
        let queued = began.elapsed();
        let (this, paid, runtime) = (self.clone(), budget.clone(), Handle::current());
        // Reads and evaluates on one thread: a switch to another thread takes as long as a small query.
        let evaluated = tokio::task::spawn_blocking(move || {
            let _slot_until_the_work_ends = slot;
            let Source {
                stored,
                params,
                warnings,
            } = this.read(&query, params, &paid, &runtime)?;
            let reading = began.elapsed() - queued;
            let samples_read = paid.samples_spent();
            let mut output = query.evaluate(&this.own.combined_with(stored), &params, &paid)?;
            output.warnings.extend(warnings);
            Ok::<_, QueryError>((output, samples_read, reading))
        });
        let (output, samples_read, reading) = evaluated.await.map_err(QueryError::Engine)??;
        let times = (began, queued, reading);
        Ok(Answered::new(output, budget, samples_read, times))
    }

    /// Evaluates on the current thread if that takes less time than a switch to another thread and back: a panel of one or a few series
    /// that were read before. Returns `None` for everything else, and for all errors, including a panic of the engine, so that errors are
    /// handled in one place.
    fn at_once(&self, query: &Query, params: Params, began: Instant) -> Option<Answered> {
        if !query.is_light(&params) {
            return None;
        }
        let queued = began.elapsed();
        let budget = self.load.budget_at_once();
        let evaluated = std::panic::catch_unwind(AssertUnwindSafe(|| {
            let stored = self.series.prefetch_cached(&query.selections(&params), &budget)?;
            let reading = began.elapsed() - queued;
            let samples_read = budget.samples_spent();
            let output = query
                .evaluate(&self.own.combined_with(stored), &params, &budget)
                .ok()?;
            Some((output, samples_read, reading))
        }));
        let (output, samples_read, reading) = evaluated.ok()??;
        let times = (began, queued, reading);
        Some(Answered::new(output, budget, samples_read, times))
    }

    /// Reads what the query selects. Reads again, further back, if hourly buckets would fall between two lookbacks.
    fn read(
        &self,
        query: &Query,
        mut params: Params,
        budget: &Budget,
        runtime: &Handle,
    ) -> Result<Source, QueryError> {
        let mut selections = query.selections(&params);
        let mut stored = self.series.prefetch_blocking(&selections, budget, runtime)?;
        if let Some(lookback_ms) = rolled_up::lookback_ms(&rolled_up(&selections, &stored), &params) {
            params.lookback_ms = lookback_ms;
            selections = query.selections(&params);
            drop(std::mem::take(&mut stored));
            stored = self.series.prefetch_blocking(&selections, budget, runtime)?;
        }
        let warnings = rolled_up::warnings(&rolled_up(&selections, &stored), &params);
        Ok(Source {
            stored,
            params,
            warnings,
        })
    }
}

/// The series of a query, the parameters with which they were read, and warnings about them.
struct Source {
    stored: Prefetched,
    params: Params,
    warnings: Vec<String>,
}

/// Returns the selections that are answered from roll-ups.
fn rolled_up<'a>(selections: &'a [Selection], stored: &Prefetched) -> Vec<(&'a Selection, i64)> {
    let resolution = |selection| Some((selection, stored.resolution_ms(selection)?));
    selections.iter().filter_map(resolution).collect()
}

/// Stops the evaluation at its next check of the budget if the caller no longer waits.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl QueryError {
    /// Returns Prometheus' `errorType`.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Parse(_) | Self::Params(_) => "bad_data",
            Self::TooMuch(BudgetExceeded::Cancelled) => "canceled",
            Self::TooMuch(BudgetExceeded::AllQueries(_)) | Self::Busy(_) => "unavailable",
            Self::TooMuch(_) | Self::Execution(_) => "execution",
            Self::Timeout(_) => "timeout",
            Self::Store(_) | Self::Engine(_) => "internal",
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use domain::series::{ABSENT, Labels, SeriesSet, SeriesSource};
    use store::series::{Append, Block};
    use store::{Store, StoreConfig};

    use super::*;

    const NOW_MS: i64 = 1_790_000_000_000;
    const SERIES: usize = 20;
    const TICKS: i64 = 300;

    /// Five minutes of twenty series with one sample per second and some gaps.
    async fn filled(folder: &std::path::Path) -> Store {
        let store = Store::open(StoreConfig::new(folder)).await.unwrap();
        let names = (0..SERIES).map(|n| {
            let (n, node) = (n.to_string(), if n < 4 { "few" } else { "many" });
            Labels::new([("__name__", "load"), ("n", &n), ("node", node)]).unwrap()
        });
        let series = names
            .map(|labels| store.series.resolve(&labels).unwrap())
            .collect();
        let value = |at: usize| {
            if at.is_multiple_of(97) {
                ABSENT
            } else {
                (at % 31) as f64
            }
        };
        let block = Block {
            shape: store.series.shape(series).unwrap(),
            times_ms: (0..TICKS).map(|tick| NOW_MS + tick * 1_000).collect(),
            values: (0..SERIES * TICKS as usize).map(value).collect(),
        };
        let append = Append {
            source: None,
            blocks: vec![block],
        };
        store.series.append(append, NOW_MS + TICKS * 1_000).await.unwrap();
        store
    }

    #[tokio::test]
    async fn what_is_answered_at_once_is_answered_the_same_later() {
        let folder = tempfile::tempdir().unwrap();
        let store = filled(folder.path()).await;
        let evaluator = Evaluator::new(store.series.clone(), &SelfMetrics::default());
        let range = Params::range(NOW_MS, NOW_MS + TICKS * 1_000, 15_000);
        let instant = Params::instant(NOW_MS + 77_000);
        for (text, params, is_at_once) in [
            ("1 + 2", instant, true),
            (r#"load{node="few"}"#, range, true),
            (r#"load{node="few"}"#, instant, true),
            (r#"sum by (node) (rate(load{node="few"}[1m])) - 3"#, range, true),
            (r#"sum by (node) (rate(load{node="few"}[2m]))"#, range, false),
            (r#"load{n="3"} / on () load{n="2"}"#, range, true),
            (r#"load{node="nowhere"}"#, range, true),
            (r#"load{node="few"} / on () load{n="2"}"#, range, false),
            (r#"load{node="many"} + on (n) load{node="few"}"#, range, false),
            (r#"load{node="many"}"#, range, true),
            ("load", range, false),
            (r#"load{node=~"f.w"}"#, range, false),
            (r#"rate(load{node="few"}[1h])"#, range, false),
            (r#"max_over_time(load{node="few"}[1m:1s])"#, range, false),
        ] {
            let query = query::parse(text).unwrap();
            // A concurrent write of names only makes it use the slow path.
            let tries = 0..if is_at_once { 1_000 } else { 1 };
            let at_once = tries.into_iter().find_map(|_| {
                std::thread::yield_now();
                evaluator.at_once(&query, params, Instant::now())
            });
            assert_eq!(at_once.is_some(), is_at_once, "{text}");
            if let Some(at_once) = at_once {
                let slot = evaluator.load.slot().await.unwrap();
                let later = evaluator
                    .on_a_thread(slot, query, params, Instant::now())
                    .await
                    .unwrap();
                assert_eq!(at_once.output, later.output, "{text}");
                let samples = |answered: &Answered| (answered.cost.samples, answered.cost.samples_read);
                assert_eq!(samples(&at_once), samples(&later), "{text}");
            }
        }
        let rest = evaluator.free();
        let query = query::parse(r#"load{n="1"}"#).unwrap();
        let answered = evaluator.answer(query, range, TIME_MAX).await.unwrap();
        assert!(evaluator.free().1 < rest.1, "an answer holds its samples");
        let Cost {
            samples,
            samples_read,
            ..
        } = answered.cost;
        assert!(
            0 < samples_read && samples_read < samples,
            "{samples_read} of {samples}"
        );
        drop(answered);
        assert_eq!(evaluator.free(), rest);
        store.close().await;
    }

    /// Selections that were read one by one.
    struct OneByOne(Vec<(Selection, Prefetched)>);

    impl SeriesSource for OneByOne {
        fn select(&self, selection: &Selection, budget: &Budget) -> Result<SeriesSet, SelectError> {
            let (_, prefetched) = self.0.iter().find(|(of, _)| of == selection).unwrap();
            prefetched.select(selection, budget)
        }
    }

    /// Regression: the map of ranks read all of its samples twice.
    #[tokio::test]
    async fn a_function_and_a_selector_of_the_same_series_read_their_samples_once() {
        let folder = tempfile::tempdir().unwrap();
        let store = filled(folder.path()).await;
        let evaluator = Evaluator::new(store.series.clone(), &SelfMetrics::default());
        let range = Params::range(NOW_MS, NOW_MS + TICKS * 1_000, 15_000);
        for (text, is_shared) in [
            ("max_over_time(load[12s]) or (load + 0)", true),
            (
                r#"max_over_time(load{node="few"}[12s]) or (load{node="few"} + 0)"#,
                true,
            ),
            (
                "quantile(0.5, avg_over_time(load[12s]) or (load + 0)) + max(load)",
                true,
            ),
            ("rate(load[1m]) - load", true),
            ("max_over_time(load[12s]) - load offset 1m", false),
        ] {
            let query = query::parse(text).unwrap();
            let answered = evaluator.answer(query.clone(), range, TIME_MAX).await.unwrap();
            let (mut one_by_one, budget) = (Vec::new(), Budget::unlimited());
            for selection in query.selections(&range) {
                let of_one = std::slice::from_ref(&selection);
                let prefetched = store.series.prefetch(of_one, &budget).await.unwrap();
                one_by_one.push((selection, prefetched));
            }
            let (samples_read, one_by_one_read) = (answered.cost.samples_read, budget.samples_spent());
            assert_eq!(
                samples_read * 3 <= one_by_one_read * 2,
                is_shared,
                "{text}: {samples_read} of {one_by_one_read}"
            );
            let expected = query.evaluate(&OneByOne(one_by_one), &range, &Budget::unlimited());
            assert_eq!(answered.output, expected.unwrap(), "{text}");
        }
        store.close().await;
    }
}
