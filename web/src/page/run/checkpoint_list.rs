//! The checkpoints of a run. They are requested while the page is open, because the stream does not contain them.

use domain::api::checkpoints::{CheckpointView, PruneAnswer};
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::Deserialize;

use super::run_signal::RunSignal;
use crate::language::tr_with;
use crate::live::{List, Live, Row};
use crate::session::UserSession;
use crate::ui::{AnswerOrder, count_every, effect, track};

/// Interval between requests. Saves are minutes apart; opening a dialog requests the list at once.
const AGAIN_MS: u32 = 10_000;

/// The fields of the [list](domain::api::checkpoints::CheckpointList) that are read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Answer {
    folder: Option<String>,
    free_bytes: Option<u64>,
    /// Why the folder cannot be read, if so.
    problem: Option<String>,
    checkpoints: Vec<CheckpointView>,
    retention: PruneAnswer,
}

/// The list. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct CheckpointList {
    /// The checkpoints, newest first.
    pub(super) list: List<CheckpointView>,
    /// The folder, and the free bytes of its file system.
    pub(super) folder: RwSignal<Option<(String, Option<u64>)>>,
    /// Why not all checkpoints can be listed.
    pub(super) problem: RwSignal<Option<String>>,
    /// What a prune by the run's own rules would remove and keep now.
    pub(super) retention: RwSignal<PruneAnswer>,
    request_count: RwSignal<u32>,
}

impl CheckpointList {
    /// Requests the list while the current owner lives, and at once when the run's state changes.
    pub(super) fn of(id: &str, run: RunSignal) -> Self {
        let checkpoints = Self {
            list: List::new(),
            folder: RwSignal::new(None),
            problem: RwSignal::new(None),
            retention: RwSignal::new(PruneAnswer::default()),
            request_count: RwSignal::new(0),
        };
        let session = expect_context::<UserSession>();
        let (live, answers) = (expect_context::<Live>(), AnswerOrder::new());
        let state = Memo::new(move |_| run.with(|run| run.as_ref().map(|run| run.summary.state)));
        let path = format!("/api/runs/{id}/checkpoints");
        effect(move || {
            checkpoints.request_count.track();
            track(state);
            live.connected.track();
            let (path, number) = (path.clone(), answers.begin());
            spawn_local(async move {
                let answer = session.get::<Answer>(&path).await;
                if answers.accept(number) {
                    checkpoints.take(answer.map_err(|error| error.message));
                }
            });
        });
        count_every(AGAIN_MS, checkpoints.request_count, move || {
            live.paused.get_untracked()
        });
        checkpoints
    }

    /// Requests the list now.
    pub(super) fn again(self) {
        self.request_count
            .update(|request_count| *request_count = request_count.wrapping_add(1));
    }

    /// Returns the checkpoints; tracked.
    pub(super) fn all(self) -> Vec<CheckpointView> {
        self.list.rows().iter().map(Row::get).collect()
    }

    /// Returns the number of steps since the newest usable checkpoint; tracked.
    pub(super) fn steps_since(self) -> Option<u64> {
        let all = self.all();
        all.iter()
            .filter(|one| is_usable(one))
            .filter_map(|one| one.age_steps)
            .min()
    }

    fn take(self, answer: Result<Answer, String>) {
        let problem = answer
            .as_ref()
            .map_or_else(|error| Some(error.clone()), |answer| answer.problem.clone());
        self.problem.set(problem);
        if let Ok(answer) = answer {
            self.folder
                .set(answer.folder.map(|folder| (folder, answer.free_bytes)));
            self.retention.set(answer.retention);
            self.list.take(answer.checkpoints);
        }
    }
}

/// Returns true if training can continue from it exactly.
pub(super) fn can_resume_exactly(one: &CheckpointView) -> bool {
    one.complete && one.content != "model"
}

/// Returns true if the run resumes from it automatically: it is complete, and the run wrote it.
pub(super) fn is_usable(one: &CheckpointView) -> bool {
    can_resume_exactly(one) && !one.foreign
}

/// Returns `step 1200`, or its path if its step is unknown.
pub(super) fn name(one: &CheckpointView) -> String {
    one.step.map_or_else(
        || one.path.clone(),
        |step| tr_with("step {step}", &[("step", &step)]),
    )
}
