//! Shares evaluations: if several tabs send the same query for the same time, it is evaluated once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::evaluator::Evaluator;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared as SharedFuture, WeakShared};
use query::{Output, Params};

/// Number of entries at which finished ones are removed.
const SWEEP_AT: usize = 1_024;

/// The result of an evaluation, or its error, for all tabs that wait for it.
pub(super) type Answer = Result<Arc<Output>, Arc<str>>;

type Key = (String, i64, i64, i64);
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
    ) -> SharedFuture<Evaluation> {
        let key = (text.to_owned(), when.start_ms, when.end_ms, when.step_ms);
        let mut under_way = self.0.lock().expect("nothing panics while holding it");
        if let Some(running) = under_way.get(&key).and_then(WeakShared::upgrade) {
            return running;
        }
        if under_way.len() >= SWEEP_AT {
            under_way.retain(|_, running| running.upgrade().is_some());
        }
        let (evaluator, text) = (evaluator.clone(), text.to_owned());
        let evaluation = async move {
            let parsed = query::parse(&text).map_err(|error| Arc::from(error.to_string()))?;
            evaluator
                .evaluate(parsed, when)
                .await
                .map(Arc::new)
                .map_err(|error| Arc::from(error.to_string()))
        };
        let running = evaluation.boxed().shared();
        if let Some(weak) = running.downgrade() {
            under_way.insert(key, weak);
        }
        running
    }
}
