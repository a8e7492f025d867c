//! The one way to ask for series: parse, prefetch, evaluate on a blocking thread, within a budget and a time.
//!
//! ```text
//! text ─ query::parse ─▶ slot ─▶ little, and in memory: at once ───────────────────────────────▶ Output
//!         │                │ └──▶ blocking pool: selections ─ store prefetch ─ evaluate ──────────┘
//!         │                │     └─ cancelled when the time is up or the caller drops the future ─┘
//!         │                └ refused: too many wait
//!         └ refused: malformed
//! ```
//! The HTTP API, the event stream and the rules all call this, so they agree.

mod load;
mod rolled_up;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use domain::series::{Budget, BudgetExceeded, SelectError, Selection};
use domain::time::TimestampMs;
use query::{EvalError, Output, Params, ParseError, Query};
use store::SeriesStore;
use store::series::Prefetched;
use tokio::runtime::Handle;

use crate::own_series::OwnSeries;
use crate::self_metrics::SelfMetrics;
pub(crate) use load::slots;
use load::{Load, Slot};

/// Samples one query may read; Prometheus' default, 800 MB at worst.
pub const SAMPLES_MAX: u64 = 50_000_000;
/// Series one query may select: every series of a metric on 10,000 GPUs with room for a label or two.
pub const SERIES_MAX: u64 = 300_000;
/// How long one query may take, waiting included.
pub const TIME_MAX: Duration = Duration::from_secs(30);

/// What a name or a series' labels in a list count as: 256 bytes.
const SAMPLES_A_NAME: u64 = 16;

/// Evaluates queries over the store. Cheap to clone.
#[derive(Clone)]
pub struct Evaluator {
    series: SeriesStore,
    own: Arc<OwnSeries>,
    load: Load,
    metrics: SelfMetricsOfQueries,
}

/// An answer with what it took. Its samples count as held, for the bound on all queries together, until this is dropped.
#[derive(Debug)]
pub struct Answered {
    /// The answer.
    pub output: Output,
    /// What it took.
    pub cost: Cost,
    /// What it holds.
    pub(crate) held: Budget,
}

impl Answered {
    /// Evaluated just now, with when the query began, how long it waited and how long it read.
    fn new(output: Output, held: Budget, (began, queued, reading): (Instant, Duration, Duration)) -> Self {
        let cost = Cost {
            samples: held.samples_spent(),
            queued,
            reading,
            evaluating: began.elapsed() - queued - reading,
        };
        Self { output, cost, held }
    }
}

/// What a query took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Samples read, and cells of intermediate results.
    pub samples: u64,
    /// Waiting for others.
    pub queued: Duration,
    /// Reading series.
    pub reading: Duration,
    /// Evaluating.
    pub evaluating: Duration,
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
    #[error("{}", in_prometheus_words(*.0))]
    TooMuch(BudgetExceeded),
    /// The time was up.
    #[error(
        "query timed out in expression evaluation: it did not finish within {} s; select fewer series, a shorter range or a \
         larger step",
        .0.as_secs_f64()
    )]
    Timeout(Duration),
    /// Too many are asking.
    #[error("{0} queries are waiting already; ask again in a second")]
    Busy(usize),
    /// The data does not fit the query.
    #[error("{0}")]
    Execution(String),
    /// The store failed.
    #[error("the series store could not answer: {0}")]
    Store(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A fault of the engine.
    #[error("the query engine failed")]
    Engine(#[source] tokio::task::JoinError),
}

/// Programs look for the words that Prometheus has; people read on.
fn in_prometheus_words(exceeded: BudgetExceeded) -> String {
    match exceeded {
        BudgetExceeded::Samples(_) => {
            format!("query processing would load too many samples into memory in query execution: {exceeded}")
        }
        BudgetExceeded::Cancelled => "query was canceled in expression evaluation".into(),
        BudgetExceeded::Series(_) | BudgetExceeded::Together(_) => exceeded.to_string(),
    }
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
            load: Load::new(),
            metrics,
        }
    }

    /// What can be asked of the collector itself.
    #[must_use]
    pub fn own(&self) -> &Arc<OwnSeries> {
        &self.own
    }

    /// The same evaluator with slots and samples of its own, so that neither side's queries hold up the other's.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self {
            load: Load::new(),
            ..self.clone()
        }
    }

    /// Slots nobody has, and samples nobody holds.
    #[must_use]
    pub fn free(&self) -> (usize, u64) {
        self.load.free()
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
        Ok(self.answer(query, params, TIME_MAX).await?.output)
    }

    /// The same within a time of the caller's, [`TIME_MAX`] at most, and with what it took.
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
            // A timer of no time might still let a quick answer through.
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

    /// Looks for names or series in the store's index, on a thread that may take its time, as one of the queries under way.
    /// The budget holds what was found against all of them, until it is dropped.
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
            Err(QueryError::TooMuch(BudgetExceeded::Together(_))) => {
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
        // Reading and evaluating in one go: a hop to another thread takes as long as a small query.
        let evaluated = tokio::task::spawn_blocking(move || {
            let _slot_until_the_work_ends = slot;
            let Source {
                stored,
                params,
                warnings,
            } = this.read(&query, params, &paid, &runtime)?;
            let reading = began.elapsed() - queued;
            let mut output = query.evaluate(&this.own.beside(stored), &params, &paid)?;
            output.warnings.extend(warnings);
            Ok::<_, QueryError>((output, reading))
        });
        let (output, reading) = evaluated.await.map_err(QueryError::Engine)??;
        Ok(Answered::new(output, budget, (began, queued, reading)))
    }

    /// Answers here and now what takes less time than the way to another thread and back: a panel of one or a few series that
    /// were asked for before. `None` for everything else, and for what fails, a fault of the engine too, so that it fails in
    /// one place.
    fn at_once(&self, query: &Query, params: Params, began: Instant) -> Option<Answered> {
        if !query.is_light(&params) {
            return None;
        }
        let queued = began.elapsed();
        let budget = self.load.budget_at_once();
        let evaluated = std::panic::catch_unwind(AssertUnwindSafe(|| {
            let stored = self.series.prefetch_known(&query.selections(&params), &budget)?;
            let reading = began.elapsed() - queued;
            let output = query.evaluate(&self.own.beside(stored), &params, &budget).ok()?;
            Some((output, reading))
        }));
        let (output, reading) = evaluated.ok()??;
        Some(Answered::new(output, budget, (began, queued, reading)))
    }

    /// Reads what the query selects; a second time, further back, where an hour's buckets would hide between lookbacks.
    fn read(
        &self,
        query: &Query,
        mut params: Params,
        budget: &Budget,
        runtime: &Handle,
    ) -> Result<Source, QueryError> {
        let mut selections = query.selections(&params);
        let mut stored = self.series.prefetch_here(&selections, budget, runtime)?;
        if let Some(lookback_ms) = rolled_up::lookback_ms(&rolled_up(&selections, &stored), &params) {
            params.lookback_ms = lookback_ms;
            selections = query.selections(&params);
            drop(std::mem::take(&mut stored));
            stored = self.series.prefetch_here(&selections, budget, runtime)?;
        }
        let warnings = rolled_up::warnings(&rolled_up(&selections, &stored), &params);
        Ok(Source {
            stored,
            params,
            warnings,
        })
    }
}

/// Series ready for a query, the parameters they were read for, and what to know about them.
struct Source {
    stored: Prefetched,
    params: Params,
    warnings: Vec<String>,
}

/// The selections whose answers come from roll-ups.
fn rolled_up<'a>(selections: &'a [Selection], stored: &Prefetched) -> Vec<(&'a Selection, i64)> {
    let resolution = |selection| Some((selection, stored.resolution_ms(selection)?));
    selections.iter().filter_map(resolution).collect()
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
            Self::TooMuch(BudgetExceeded::Together(_)) | Self::Busy(_) => "unavailable",
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

    use domain::series::{ABSENT, Labels};
    use store::series::{Append, Block};
    use store::{Store, StoreConfig};

    use super::*;

    const NOW_MS: i64 = 1_790_000_000_000;
    const SERIES: usize = 20;
    const TICKS: i64 = 300;

    /// Five minutes of twenty series by the second, with a hole here and there.
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
            // Whoever writes names meanwhile makes it wait for nothing.
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
                assert_eq!(at_once.cost.samples, later.cost.samples, "{text}");
            }
        }
        let rest = evaluator.free();
        let query = query::parse(r#"load{n="1"}"#).unwrap();
        let answered = evaluator.answer(query, range, TIME_MAX).await.unwrap();
        assert!(evaluator.free().1 < rest.1, "an answer holds its samples");
        drop(answered);
        assert_eq!(evaluator.free(), rest);
        store.close().await;
    }
}
