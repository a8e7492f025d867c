//! Shares evaluations: if several tabs request the same query for the same time, at once or within a second, it is evaluated once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::frame::has_room_for_extremes;
use super::recent_results::RecentResults;
use crate::evaluator::{Answered, Cost, Evaluator, TIME_MAX};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared as SharedFuture, WeakShared, ready};
use query::{Extremes, Output, Params, Query};

/// Number of entries at which finished ones are removed.
const SWEEP_AT: usize = 1_024;
/// Maximum number of samples, and time, of a query for extremes that evaluates its expression several times per step. It has about 40 MB of
/// values, and is one of two for a chart.
const FINE_SAMPLES_MAX: u64 = 5_000_000;
const FINE_TIME_MAX: Duration = Duration::from_secs(1);
/// Why the lock is never poisoned.
const NO_PANIC: &str = "nothing panics while holding it";

/// Whether the extremes within each step are evaluated too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum WantedExtremes {
    /// They are not evaluated.
    No,
    /// They are evaluated if they are neither too many nor too expensive.
    IfAffordable,
    /// They are evaluated even if they seem expensive: a frame with many more steps has them, and this one continues it.
    Continued,
}

/// The result of an evaluation.
pub(super) struct Evaluated {
    pub(super) output: Output,
    /// The least and the greatest values within each step, if they were requested, and are neither too many nor too expensive.
    pub(super) extremes: Option<[Output; 2]>,
}

/// The result of an evaluation, or its error, for all tabs that wait for it.
pub(super) type Answer = Result<Arc<Evaluated>, Arc<str>>;

/// A query: its text, its first and last time, its step, and its extremes.
pub(super) type Key = (String, i64, i64, i64, WantedExtremes);
type Evaluation = BoxFuture<'static, Answer>;

/// The evaluations of all tabs.
#[derive(Clone, Default)]
pub(crate) struct Coalesced(Arc<Mutex<Evaluations>>);

#[derive(Default)]
struct Evaluations {
    in_progress: HashMap<Key, WeakShared<Evaluation>>,
    recent: RecentResults,
}

impl Coalesced {
    /// Returns the result of a query, shared with all that request the same while it is evaluated. If all of them leave, it is cancelled. A
    /// result with one time is also shared with those that request it within a second: it is small, and each tab requests it once per step.
    pub(super) fn evaluate(
        &self,
        evaluator: &Evaluator,
        text: &str,
        when: Params,
        extremes: WantedExtremes,
    ) -> SharedFuture<Evaluation> {
        let key = (
            text.to_owned(),
            when.start_ms,
            when.end_ms,
            when.step_ms,
            extremes,
        );
        let mut evaluations = self.0.lock().expect(NO_PANIC);
        let running = evaluations.in_progress.get(&key);
        if let Some(running) = running.and_then(WeakShared::upgrade) {
            return running;
        }
        if let Some(evaluated) = evaluations.recent.get(&key, Instant::now()) {
            let answer: Answer = Ok(evaluated);
            return ready(answer).boxed().shared();
        }
        let in_progress = &mut evaluations.in_progress;
        if in_progress.len() >= SWEEP_AT {
            in_progress.retain(|_, running| running.upgrade().is_some());
        }
        let (evaluator, text) = (evaluator.clone(), text.to_owned());
        let (shared, finished) = (Arc::clone(&self.0), key.clone());
        let evaluation = async move {
            let parsed = query::parse(&text).map_err(|error| Arc::<str>::from(error.to_string()))?;
            let of_steps = match extremes {
                WantedExtremes::No => None,
                WantedExtremes::IfAffordable | WantedExtremes::Continued => parsed.extremes(when.step_ms),
            };
            let answered = evaluator.answer(parsed, when, TIME_MAX).await;
            let Answered { output, cost, .. } =
                answered.map_err(|error| Arc::<str>::from(error.to_string()))?;
            let of_steps = of_steps.filter(|of_steps| {
                has_room_for_extremes(&output.value, &when)
                    && (extremes == WantedExtremes::Continued
                        || is_affordable(&cost, of_steps.evaluations_per_step))
            });
            let extremes = match of_steps {
                Some(of_steps) => evaluate_extremes(&evaluator, of_steps, when).await,
                None => None,
            };
            let evaluated = Arc::new(Evaluated { output, extremes });
            if when.start_ms == when.end_ms {
                let mut evaluations = shared.lock().expect(NO_PANIC);
                evaluations.recent.keep(finished, &evaluated, Instant::now());
            }
            Ok::<_, Arc<str>>(evaluated)
        };
        let running = evaluation.boxed().shared();
        if let Some(weak) = running.downgrade() {
            in_progress.insert(key, weak);
        }
        running
    }
}

/// Returns the extremes, or `None` if one cannot be evaluated, for example because it would read too many samples. Then the values of the
/// query are shown alone.
async fn evaluate_extremes(
    evaluator: &Evaluator,
    Extremes { min, max, .. }: Extremes,
    when: Params,
) -> Option<[Output; 2]> {
    let min = evaluate_extreme(evaluator, min, when).await?;
    let max = evaluate_extreme(evaluator, max, when).await?;
    Some([min, max])
}

async fn evaluate_extreme(evaluator: &Evaluator, query: Query, when: Params) -> Option<Output> {
    let evaluated = evaluator.evaluate(query, when).await;
    evaluated
        .inspect_err(|error| tracing::debug!(%error, "the extremes of a query cannot be evaluated"))
        .ok()
}

/// Returns true if a query of this cost may be evaluated so often per step: it then reads the same samples, and has more intermediate
/// results.
fn is_affordable(cost: &Cost, evaluations_per_step: u64) -> bool {
    if evaluations_per_step <= 1 {
        return true;
    }
    let intermediate = cost.samples.saturating_sub(cost.samples_read);
    let samples = intermediate
        .saturating_mul(evaluations_per_step)
        .saturating_add(cost.samples_read);
    let times = u32::try_from(evaluations_per_step).unwrap_or(u32::MAX);
    samples <= FINE_SAMPLES_MAX && cost.evaluating.saturating_mul(times) <= FINE_TIME_MAX
}

#[cfg(test)]
mod tests {
    use store::{Store, StoreConfig};

    use super::*;
    use crate::self_metrics::SelfMetrics;

    /// Regression: each of two people who looked at the same run had all of its charts evaluated again.
    #[tokio::test]
    async fn tabs_that_request_a_step_one_after_another_share_its_result() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(StoreConfig::new(folder.path()))
            .await
            .expect("a new store");
        let evaluator = Evaluator::new(store.series.clone(), &SelfMetrics::default());
        let coalesced = Coalesced::default();
        let evaluate = async |when: Params, extremes: WantedExtremes| {
            let evaluation = coalesced.evaluate(&evaluator, "vector(1)", when, extremes);
            evaluation.await.expect("a result")
        };
        for (what, when, is_shared) in [
            ("an instant query", Params::instant(5_000), true),
            (
                "the next step of a chart",
                Params::range(6_000, 6_000, 2_000),
                true,
            ),
            ("a whole chart", Params::range(0, 6_000, 2_000), false),
        ] {
            let first = evaluate(when, WantedExtremes::No).await;
            let second = evaluate(when, WantedExtremes::No).await;
            assert_eq!(Arc::ptr_eq(&first, &second), is_shared, "{what}");
            let other = evaluate(when, WantedExtremes::Continued).await;
            assert!(!Arc::ptr_eq(&first, &other), "{what}, with extremes");
        }
    }

    #[test]
    fn extremes_that_cost_many_times_their_query_are_not_evaluated() {
        let cost = |samples_read, intermediate, evaluating_ms| Cost {
            samples: samples_read + intermediate,
            samples_read,
            evaluating: Duration::from_millis(evaluating_ms),
            ..Cost::default()
        };
        for (what, cost, evaluations_per_step, expected) in [
            (
                "a selector costs what its query costs",
                cost(49_000_000, 900_000, 5_000),
                1,
                true,
            ),
            (
                "a quotient of 64 ranks over an hour",
                cost(500_000, 115_000, 3),
                6,
                true,
            ),
            (
                "a quotient of 1,024 ranks over an hour",
                cost(8_000_000, 1_800_000, 40),
                6,
                false,
            ),
            (
                "few samples, but many values per step",
                cost(1_000, 50_000, 2),
                1_008,
                false,
            ),
            ("few samples that take long", cost(1_000, 600, 100), 144, false),
            ("one step of a live chart", cost(600, 24, 0), 1_008, true),
            ("as many as there can be", cost(0, u64::MAX, 0), u64::MAX, false),
        ] {
            assert_eq!(is_affordable(&cost, evaluations_per_step), expected, "{what}");
        }
    }
}
