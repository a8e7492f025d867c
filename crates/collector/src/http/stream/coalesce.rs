//! Shares evaluations: if several tabs send the same query for the same time, it is evaluated once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::frame::has_room_for_extremes;
use crate::evaluator::{Answered, Cost, Evaluator, TIME_MAX};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared as SharedFuture, WeakShared};
use query::{Extremes, Output, Params, Query};

/// Number of entries at which finished ones are removed.
const SWEEP_AT: usize = 1_024;
/// Maximum number of samples, and time, of a query for extremes that evaluates its expression several times per step. It has about 40 MB of
/// values, and is one of two for a chart.
const FINE_SAMPLES_MAX: u64 = 5_000_000;
const FINE_TIME_MAX: Duration = Duration::from_secs(1);

/// The result of an evaluation.
pub(super) struct Evaluated {
    pub(super) output: Output,
    /// The least and the greatest values within each step, if they were requested, and are neither too many nor too expensive.
    pub(super) extremes: Option<[Output; 2]>,
}

/// The result of an evaluation, or its error, for all tabs that wait for it.
pub(super) type Answer = Result<Arc<Evaluated>, Arc<str>>;

type Key = (String, i64, i64, i64, bool);
type Evaluation = BoxFuture<'static, Answer>;

/// Evaluations in progress.
#[derive(Clone, Default)]
pub(crate) struct Coalesced(Arc<Mutex<HashMap<Key, WeakShared<Evaluation>>>>);

impl Coalesced {
    /// Returns the result of a query, shared with all that request the same while it is evaluated. If all of them leave, it is cancelled.
    pub(super) fn evaluate(
        &self,
        evaluator: &Evaluator,
        text: &str,
        when: Params,
        extremes: bool,
    ) -> SharedFuture<Evaluation> {
        let key = (
            text.to_owned(),
            when.start_ms,
            when.end_ms,
            when.step_ms,
            extremes,
        );
        let mut under_way = self.0.lock().expect("nothing panics while holding it");
        if let Some(running) = under_way.get(&key).and_then(WeakShared::upgrade) {
            return running;
        }
        if under_way.len() >= SWEEP_AT {
            under_way.retain(|_, running| running.upgrade().is_some());
        }
        let (evaluator, text) = (evaluator.clone(), text.to_owned());
        let evaluation = async move {
            let parsed = query::parse(&text).map_err(|error| Arc::<str>::from(error.to_string()))?;
            let of_steps = parsed.extremes(when.step_ms).filter(|_| extremes);
            let answered = evaluator.answer(parsed, when, TIME_MAX).await;
            let Answered { output, cost, .. } =
                answered.map_err(|error| Arc::<str>::from(error.to_string()))?;
            let of_steps = of_steps.filter(|of_steps| {
                has_room_for_extremes(&output.value, &when)
                    && is_affordable(&cost, of_steps.evaluations_per_step)
            });
            let extremes = match of_steps {
                Some(of_steps) => evaluate_extremes(&evaluator, of_steps, when).await,
                None => None,
            };
            Ok::<_, Arc<str>>(Arc::new(Evaluated { output, extremes }))
        };
        let running = evaluation.boxed().shared();
        if let Some(weak) = running.downgrade() {
            under_way.insert(key, weak);
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
    use super::*;

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
