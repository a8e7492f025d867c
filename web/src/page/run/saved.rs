//! What a run has saved, as the collector lists it: asked for while the page is open, since the stream does not carry it.

use domain::api::checkpoints::{CheckpointView, PruneAnswer};
use gloo_timers::future::TimeoutFuture;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::Deserialize;

use super::known::Known;
use crate::live::{List, Live, Row};
use crate::session::Who;
use crate::ui::whenever;

/// Saves are minutes apart; a dialog that is opened asks at once.
const AGAIN_MS: u32 = 10_000;

/// What is looked at of the [list](domain::api::checkpoints::CheckpointList).
#[derive(Default, Deserialize)]
#[serde(default)]
struct Answer {
    folder: Option<String>,
    free_bytes: Option<u64>,
    /// Why the folder cannot be looked at, where it cannot.
    problem: Option<String>,
    checkpoints: Vec<CheckpointView>,
    retention: PruneAnswer,
}

/// The list. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct Saved {
    /// The checkpoints, newest first.
    pub(super) list: List<CheckpointView>,
    /// The folder, and the free bytes of its file system.
    pub(super) folder: RwSignal<Option<(String, Option<u64>)>>,
    /// Why they cannot be listed, or not all of them.
    pub(super) problem: RwSignal<Option<String>>,
    /// What a prune by the run's own rules would remove and keep now.
    pub(super) retention: RwSignal<PruneAnswer>,
    asked: RwSignal<u32>,
}

impl Saved {
    /// Asks for as long as the current owner lives, and at once when the run's state changes.
    pub(super) fn of(id: &str, run: Known) -> Self {
        let saved = Self {
            list: List::new(),
            folder: RwSignal::new(None),
            problem: RwSignal::new(None),
            retention: RwSignal::new(PruneAnswer::default()),
            asked: RwSignal::new(0),
        };
        let who = expect_context::<Who>();
        let connected = expect_context::<Live>().connected;
        let state = Memo::new(move |_| run.with(|run| run.as_ref().map(|run| run.summary.state)));
        let path = format!("/api/runs/{id}/checkpoints");
        whenever(move || {
            saved.asked.track();
            state.track();
            connected.track();
            let path = path.clone();
            spawn_local(async move { saved.take(who.get(&path).await.map_err(|error| error.message)) });
        });
        spawn_local(async move {
            loop {
                TimeoutFuture::new(AGAIN_MS).await;
                // Gone with the page.
                if saved
                    .asked
                    .try_update(|asked| *asked = asked.wrapping_add(1))
                    .is_none()
                {
                    return;
                }
            }
        });
        saved
    }

    /// Asks now.
    pub(super) fn again(self) {
        self.asked.update(|asked| *asked = asked.wrapping_add(1));
    }

    /// The checkpoints as they are now; tracked.
    pub(super) fn all(self) -> Vec<CheckpointView> {
        self.list.rows().iter().map(Row::get).collect()
    }

    /// How many steps the newest checkpoint that training can go on from lies behind; tracked.
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
        if self.problem.try_set(problem).is_some() {
            return;
        }
        if let Ok(answer) = answer {
            self.folder
                .set(answer.folder.map(|folder| (folder, answer.free_bytes)));
            self.retention.set(answer.retention);
            self.list.take(answer.checkpoints);
        }
    }
}

/// Whether training can go on from it exactly.
pub(super) fn is_whole(one: &CheckpointView) -> bool {
    one.complete && one.content != "model"
}

/// Whether the run resumes from it by itself: it is whole, and the run's own.
pub(super) fn is_usable(one: &CheckpointView) -> bool {
    is_whole(one) && !one.foreign
}

/// `step 1200`, or where it lies when its step is not known.
pub(super) fn name(one: &CheckpointView) -> String {
    one.step
        .map_or_else(|| one.path.clone(), |step| format!("step {step}"))
}
