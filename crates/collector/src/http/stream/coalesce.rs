//! Shares evaluations: if several tabs send the same query for the same time, it is evaluated once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::evaluator::Evaluator;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared as SharedFuture, WeakShared};
use query::{Output, Params, Query};

/// Number of entries at which finished ones are removed.
const SWEEP_AT: usize = 1_024;

/// The result of an evaluation.
pub(super) struct Evaluated {
    pub(super) output: Output,
    /// The least and the greatest values within each step, if they were requested and the query has them.
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
            let output = evaluator
                .evaluate(parsed, when)
                .await
                .map_err(|error| Arc::<str>::from(error.to_string()))?;
            let extremes = match of_steps {
                Some(queries) => evaluate_extremes(&evaluator, queries, when).await,
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
    [min, max]: [Query; 2],
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
