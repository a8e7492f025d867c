//! What happened to a run besides its attempts and checkpoints. It is requested while the page is open, because the stream does not
//! contain it.

use domain::api::runs::RunAction;
use domain::event::{Event, Severity};
use domain::run::state::RunState;
use domain::time::TimestampMs;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::Deserialize;

use super::super::run_signal::RunSignal;
use crate::api::ApiError;
use crate::live::Live;
use crate::session::UserSession;
use crate::ui::{AnswerOrder, count_every, effect, track};

/// Interval between requests. Changes of the run's state and of its diagnoses are requested at once.
const AGAIN_MS: u32 = 10_000;
/// Maximum number of entries of each kind, the newest ones.
const ENTRIES_MAX: u32 = 500;

/// The history of a run, newest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in super::super) struct RunHistory {
    /// Changes of the run's state.
    pub(super) states: Vec<Event>,
    /// Errors of its GPUs.
    pub(super) gpu_errors: Vec<Event>,
    /// Its diagnoses.
    pub(in super::super) diagnoses: Vec<RunDiagnosis>,
    /// What people did to it.
    pub(super) actions: Vec<RunAction>,
}

/// The fields of a [`Diagnosis`](domain::api::alerts::Diagnosis) that are read.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(in super::super) struct RunDiagnosis {
    pub(in super::super) id: String,
    pub(in super::super) summary: String,
    pub(in super::super) severity: Severity,
    pub(in super::super) active_ms: TimestampMs,
    #[serde(default)]
    pub(in super::super) fired_ms: Option<TimestampMs>,
    #[serde(default)]
    pub(in super::super) resolved_ms: Option<TimestampMs>,
}

impl RunDiagnosis {
    /// Returns the summary with the symbol of its severity.
    pub(in super::super) fn label(&self) -> String {
        let symbol = match self.severity {
            Severity::Critical => "▲",
            Severity::Warning => "◆",
            Severity::Info => "●",
        };
        format!("{symbol} {}", self.summary)
    }
}

/// Requests the history while the current owner lives and the run can change.
pub(in super::super) fn run_history(id: &str, run: RunSignal) -> RwSignal<RunHistory> {
    let (history, request_count) = (RwSignal::new(RunHistory::default()), RwSignal::new(0_u32));
    let answers = AnswerOrder::new();
    let session = expect_context::<UserSession>();
    let live = expect_context::<Live>();
    let state =
        Memo::new(move |_| run.with(|run| run.as_ref().map(|run| (run.summary.state, run.summary.attempt))));
    let id = id.to_owned();
    effect(move || {
        request_count.track();
        track(state);
        live.connected.track();
        let _changes = live.diagnoses.rows();
        let (id, number) = (id.clone(), answers.begin());
        spawn_local(async move {
            // Another part of the page shows when the collector does not respond.
            if let Ok(fresh) = request(session, &id).await
                && answers.accept(number)
                && history.with_untracked(|shown| *shown != fresh)
            {
                history.set(fresh);
            }
        });
    });
    count_every(AGAIN_MS, request_count, move || {
        let is_final = |(state, _)| RunState::is_final(state);
        live.paused.get_untracked() || state.get_untracked().is_some_and(is_final)
    });
    history
}

async fn request(session: UserSession, run: &str) -> Result<RunHistory, ApiError> {
    let events = |kind: &str| format!("/api/events?run={run}&kind={kind}&limit={ENTRIES_MAX}");
    let diagnoses = format!("/api/diagnoses?run={run}&state=all&limit={ENTRIES_MAX}");
    Ok(RunHistory {
        states: session.get(&events("run_state")).await?,
        gpu_errors: session.get(&events("xid")).await?,
        diagnoses: session.get(&diagnoses).await?,
        actions: session.get(&format!("/api/runs/{run}/actions")).await?,
    })
}
