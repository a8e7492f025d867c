//! All runs: the newest ones from the stream, older ones by request.

use std::collections::BTreeSet;

use domain::api::runs::RunSummary;
use domain::api::stream::RUNS_MAX;
use leptos::prelude::*;
use leptos::task::spawn_local;

use crate::live::{List, Live};
use crate::session::UserSession;
use crate::ui::{count_every, effect};

/// The request for the runs that the stream does not contain, with the maximum of the API.
const PATH: &str = "/api/runs?limit=10000";
/// Interval between requests. Older runs rarely change.
const AGAIN_MS: u32 = 60_000;

/// The list, and the error of the last request. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct AllRuns {
    /// All runs, newest first.
    pub(super) list: List<RunSummary>,
    pub(super) problem: RwSignal<Option<String>>,
}

impl AllRuns {
    /// Follows all runs while the current owner lives.
    pub(super) fn of() -> Self {
        let live = expect_context::<Live>();
        let session = expect_context::<UserSession>();
        let all = Self {
            list: List::new(),
            problem: RwSignal::new(None),
        };
        let requested = RwSignal::new(Vec::<RunSummary>::new());
        let request_count = RwSignal::new(0_u32);
        let has_older = Memo::new(move |_| live.runs.rows().len() >= RUNS_MAX as usize);
        effect(move || {
            if live.runs.is_known() {
                let newest = live.runs.rows().iter().map(|row| row.get()).collect();
                all.list
                    .take(requested.with(|requested| merged(newest, requested)));
            }
        });
        effect(move || {
            request_count.track();
            if !has_older.get() {
                return;
            }
            spawn_local(async move {
                let answer = session.get::<Vec<RunSummary>>(PATH).await;
                let problem = answer.as_ref().err().map(|error| error.message.clone());
                // The user may have left the page.
                if all.problem.try_set(problem).is_none()
                    && let Ok(runs) = answer
                {
                    requested.set(runs);
                }
            });
        });
        count_every(AGAIN_MS, request_count, move || live.paused.get_untracked());
        all
    }
}

/// Returns the runs of the stream, then the requested ones that the stream does not contain.
fn merged(newest: Vec<RunSummary>, requested: &[RunSummary]) -> Vec<RunSummary> {
    let mut known = BTreeSet::new();
    for run in &newest {
        known.insert(run.id.clone());
    }
    let older = requested.iter().filter(|run| !known.contains(&run.id));
    let older: Vec<RunSummary> = older.cloned().collect();
    let mut all = newest;
    all.extend(older);
    all
}

#[cfg(test)]
mod tests {
    use super::super::arrange::tests::run;
    use super::*;

    #[test]
    fn the_stream_knows_better_than_an_older_answer() {
        let newest = vec![run("c", 3), run("b", 2)];
        let mut stale = run("b", 2);
        stale.owner = Some("stale".to_owned());
        let all = merged(newest, &[stale, run("a", 1)]);
        let ids: Vec<&str> = all.iter().map(|run| run.id.as_str()).collect();
        assert_eq!(ids, ["c", "b", "a"]);
        assert_eq!(all[1].owner, None);
    }
}
