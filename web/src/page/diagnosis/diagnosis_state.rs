//! A diagnosis with its context. It is requested when the page opens, when the stream reports a change, and after each action.

use domain::api::diagnoses::DiagnosisView;
use js_sys::{JSON, Reflect};
use leptos::prelude::*;
use leptos::task::spawn_local;
use wasm_bindgen::JsValue;

use super::actions::OfferedAction;
use crate::api::{ApiError, unreadable};
use crate::json::{Unreadable, field, read_field};
use crate::live::{List, Live, read_diagnosis};
use crate::session::UserSession;
use crate::ui::{AnswerOrder, count_every, dynamic_view, effect, empty_view, text};

/// The stream does not report notes of other users, so the diagnosis is requested again at this interval.
const AGAIN_MS: u32 = 10_000;

/// A diagnosis, and the actions that are possible now.
struct Answer {
    /// The response text without the charts: an equal response is not shown again.
    text: String,
    view: DiagnosisView,
    actions: Vec<OfferedAction>,
}

/// The diagnosis, and the error of the last request. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct DiagnosisState {
    pub(super) id: StoredValue<String>,
    pub(super) view: RwSignal<Option<DiagnosisView>>,
    /// The possible actions, the most likely to help first.
    pub(super) actions: List<OfferedAction>,
    pub(super) problem: RwSignal<Option<String>>,
    text: StoredValue<String>,
    request_count: RwSignal<u32>,
}

impl DiagnosisState {
    /// Requests the diagnosis while the current owner lives.
    pub(super) fn of(id: String) -> Self {
        let live = expect_context::<Live>();
        let session = expect_context::<UserSession>();
        let state = Self {
            id: StoredValue::new(id),
            view: RwSignal::new(None),
            actions: List::new(),
            problem: RwSignal::new(None),
            text: StoredValue::new(String::new()),
            request_count: RwSignal::new(0),
        };
        let answers = AnswerOrder::new();
        effect(move || {
            state.request_count.track();
            live.connected.track();
            let _changes = live.diagnoses.rows();
            let number = answers.begin();
            spawn_local(async move {
                let answer = request(session, state.path("")).await;
                if answers.accept(number) {
                    state.take(answer);
                }
            });
        });
        count_every(AGAIN_MS, state.request_count, move || live.paused.get_untracked());
        state
    }

    /// Requests the diagnosis now.
    pub(super) fn again(self) {
        self.request_count
            .update(|request_count| *request_count = request_count.wrapping_add(1));
    }

    /// Returns the API path of the diagnosis, or of a resource below it.
    pub(super) fn path(self, what: &str) -> String {
        self.id
            .try_with_value(|id| format!("/api/diagnoses/{id}{what}"))
            .unwrap_or_default()
    }

    /// Returns a view of the diagnosis that is rebuilt when its content changes.
    pub(super) fn shown(self, show: fn(&DiagnosisView) -> AnyView) -> AnyView {
        dynamic_view(move || self.view.with(|view| view.as_ref().map_or_else(empty_view, show)))
    }

    /// Returns text about the diagnosis; empty until it has loaded.
    pub(super) fn words(self, say: fn(&DiagnosisView) -> String) -> Signal<String> {
        text(move || self.view.with(|view| view.as_ref().map(say)).unwrap_or_default())
    }

    fn take(self, answer: Result<Answer, ApiError>) {
        let problem = answer.as_ref().err().map(|error| error.message.clone());
        self.problem.set(problem);
        if let Ok(answer) = answer
            && self.text.with_value(|shown| *shown != answer.text)
        {
            self.text.set_value(answer.text);
            self.actions.take(answer.actions);
            self.view.set(Some(answer.view));
        }
    }
}

async fn request(session: UserSession, path: String) -> Result<Answer, ApiError> {
    let answer = session.fetch(&path).await?;
    read(&answer).map_err(|error| unreadable(&error))
}

fn read(answer: &JsValue) -> Result<Answer, Unreadable> {
    let actions: Option<Vec<OfferedAction>> = read_field(answer, "actions")?;
    let view = DiagnosisView {
        diagnosis: read_diagnosis(&field(answer, "diagnosis")?)?,
        why: read_field(answer, "why")?,
        // The actions are read separately, with only the fields that are shown.
        actions: Vec::new(),
        charts: read_field(answer, "charts")?,
        changed_before: read_field(answer, "changed_before")?,
        similar: read_field(answer, "similar")?,
        timeline: read_field(answer, "timeline")?,
    };
    // The charts stay as first loaded. The end of each moves with the time, and the rest of the page must not be rebuilt for that.
    let _set = Reflect::set(answer, &JsValue::from_str("charts"), &JsValue::UNDEFINED);
    Ok(Answer {
        text: JSON::stringify(answer).map(String::from).unwrap_or_default(),
        view,
        actions: actions.unwrap_or_default(),
    })
}
