//! The knobs of a run, requested when the run changes, because the stream does not contain them.

use domain::api::runs::{KnobView, KnobsView};
use domain::run::knob::ChangeId;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::change_dialog::ChangeDialog;
use super::super::run_signal::RunSignal;
use crate::api::ApiError;
use crate::live::{Keyed, List, Live, Run};
use crate::session::UserSession;
use crate::ui::{AnswerOrder, effect, track};

/// The list. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct KnobList {
    /// The knobs.
    pub(super) list: List<KnobView>,
    /// The changes that can be reverted now.
    pub(super) revertible: RwSignal<Vec<ChangeId>>,
    /// Why the knobs cannot be shown.
    pub(super) problem: RwSignal<Option<String>>,
}

impl Keyed for KnobView {
    fn key(&self) -> String {
        self.name.clone()
    }
}

impl KnobList {
    /// Requests the list now, and again when the run or a change of its knobs has another state.
    pub(super) fn of(id: &str, run: RunSignal, dialog: ChangeDialog) -> Self {
        let knobs = Self {
            list: List::new(),
            revertible: RwSignal::new(Vec::new()),
            problem: RwSignal::new(None),
        };
        let session = expect_context::<UserSession>();
        let connected = expect_context::<Live>().connected;
        let answers = AnswerOrder::new();
        let version = Memo::new(move |_| run.with(|run| run.as_ref().map(version)));
        let path = format!("/api/runs/{id}/knobs");
        effect(move || {
            track(version);
            dialog.requested.track();
            connected.track();
            let (path, number) = (path.clone(), answers.begin());
            spawn_local(async move {
                let answer = session.get::<KnobsView>(&path).await;
                if answers.accept(number) {
                    knobs.take(answer);
                }
            });
        });
        knobs
    }

    fn take(self, answer: Result<KnobsView, ApiError>) {
        let problem = answer.as_ref().err().map(|error| error.message.clone());
        self.problem.set(problem);
        if let Ok(view) = answer {
            self.revertible.set(view.revertible);
            self.list.take(view.knobs);
        }
    }
}

/// Returns a text that differs when the knobs may have changed: state, attempt, a pending change, and changes in place with their states.
fn version(run: &Run) -> String {
    let summary = &run.summary;
    let last = run.more.attempts.last();
    let live = last.map(|attempt| attempt.live.as_slice()).unwrap_or_default();
    let made = live.iter().filter(|live| live.is_made()).count();
    format!(
        "{} {} {} {} {made}",
        summary.state.as_str(),
        summary.attempt,
        run.more.pending.is_some(),
        live.len()
    )
}
