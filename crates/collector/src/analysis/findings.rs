//! The findings of the analysers by run, for the API.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use domain::api::findings::RunFindings;
use domain::ident::RunId;
use domain::time::TimestampMs;

/// How long the findings of an ended attempt are shown: a person who was woken by an alert looks within this time.
const OVER_SHOWN_MS: i64 = 3_600_000;
/// Bound of the runs whose findings are kept. The oldest are removed first.
const RUNS_MAX: usize = 1_000;

/// The latest findings of each run.
#[derive(Debug, Default)]
pub struct Findings(Mutex<BTreeMap<RunId, RunFindings>>);

impl Findings {
    /// Returns the findings of a run, which are empty if nothing was found.
    #[must_use]
    pub fn of(&self, run: &RunId) -> RunFindings {
        self.lock().get(run).cloned().unwrap_or_default()
    }

    /// Reads the findings of a run with `look`.
    pub(crate) fn with<T>(&self, run: &RunId, look: impl FnOnce(&RunFindings) -> Option<T>) -> Option<T> {
        look(self.lock().get(run)?)
    }

    /// Replaces the findings of a run with an active attempt.
    pub(super) fn set(&self, run: &RunId, found: RunFindings) {
        self.lock().insert(run.clone(), found);
    }

    /// Marks ended attempts, whose last findings are kept for a while.
    pub(super) fn keep_over(&self, now_ms: TimestampMs, is_under_way: impl Fn(&RunId) -> bool) {
        let mut runs = self.lock();
        for (run, found) in runs.iter_mut() {
            if !is_under_way(run) && found.over_since_ms.is_none() {
                found.over_since_ms = Some(now_ms);
            }
        }
        runs.retain(|_, found| {
            found
                .over_since_ms
                .is_none_or(|since| now_ms - since < OVER_SHOWN_MS)
        });
        let too_many = runs.len().saturating_sub(RUNS_MAX);
        let mut over: Vec<(TimestampMs, RunId)> = runs
            .iter()
            .filter_map(|(run, found)| Some((found.over_since_ms?, run.clone())))
            .collect();
        over.sort_unstable();
        for (_, run) in over.iter().take(too_many) {
            runs.remove(run);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<RunId, RunFindings>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_of_an_attempt_that_is_over_stay_for_an_hour() {
        let (findings, run) = (Findings::default(), RunId::new("r1").expect("a good name"));
        let found = RunFindings {
            at_ms: 5,
            ..RunFindings::default()
        };
        findings.set(&run, found.clone());
        findings.keep_over(10, |_| true);
        assert_eq!(findings.of(&run), found);
        findings.keep_over(20, |_| false);
        assert_eq!(findings.of(&run).over_since_ms, Some(20));
        findings.keep_over(OVER_SHOWN_MS + 19, |_| false);
        assert_eq!(findings.of(&run).at_ms, 5);
        findings.keep_over(OVER_SHOWN_MS + 20, |_| false);
        assert_eq!(findings.of(&run), RunFindings::default());
    }
}
