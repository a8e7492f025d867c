//! A diagnosis with everything around it: asked for when the page opens, whenever the stream says that it changed, and after each
//! action.

use domain::api::diagnoses::DiagnosisView;
use gloo_timers::future::TimeoutFuture;
use js_sys::JSON;
use leptos::prelude::*;
use leptos::task::spawn_local;
use wasm_bindgen::JsValue;

use super::act::Offered;
use crate::api::{ApiError, unreadable};
use crate::json::{Unreadable, field, read_field};
use crate::live::{Live, read_diagnosis};
use crate::session::Who;
use crate::ui::{changing, nothing, text, whenever};

/// Notes of other people come without a word of the stream.
const AGAIN_MS: u32 = 10_000;

/// A diagnosis, and what can be done about it now.
struct Answer {
    /// The answer as it came: what is the same is not shown anew.
    text: String,
    view: DiagnosisView,
    actions: Vec<Offered>,
}

/// The diagnosis, and why it cannot be shown. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct Loaded {
    pub(super) id: StoredValue<String>,
    pub(super) view: RwSignal<Option<DiagnosisView>>,
    /// What can be done now, the likeliest first.
    pub(super) actions: RwSignal<Vec<Offered>>,
    pub(super) problem: RwSignal<Option<String>>,
    text: StoredValue<String>,
    asked: RwSignal<u32>,
}

impl Loaded {
    /// Asks for as long as the current owner lives.
    pub(super) fn of(id: String) -> Self {
        let live = expect_context::<Live>();
        let who = expect_context::<Who>();
        let loaded = Self {
            id: StoredValue::new(id),
            view: RwSignal::new(None),
            actions: RwSignal::new(Vec::new()),
            problem: RwSignal::new(None),
            text: StoredValue::new(String::new()),
            asked: RwSignal::new(0),
        };
        whenever(move || {
            loaded.asked.track();
            live.connected.track();
            let _changes = live.diagnoses.rows();
            spawn_local(async move { loaded.take(asked(who, loaded.path("")).await) });
        });
        spawn_local(async move {
            loop {
                TimeoutFuture::new(AGAIN_MS).await;
                // Gone with the page.
                if loaded
                    .asked
                    .try_update(|asked| *asked = asked.wrapping_add(1))
                    .is_none()
                {
                    return;
                }
            }
        });
        loaded
    }

    /// Asks now.
    pub(super) fn again(self) {
        self.asked.update(|asked| *asked = asked.wrapping_add(1));
    }

    /// The address of the diagnosis in the API, or of something that can be done with it.
    pub(super) fn path(self, what: &str) -> String {
        self.id
            .try_with_value(|id| format!("/api/diagnoses/{id}{what}"))
            .unwrap_or_default()
    }

    /// A view of it that is made anew when something of it changes.
    pub(super) fn shown(self, show: fn(&DiagnosisView) -> AnyView) -> AnyView {
        changing(move || self.view.with(|view| view.as_ref().map_or_else(nothing, show)))
    }

    /// Words about it; empty until it is known.
    pub(super) fn words(self, say: fn(&DiagnosisView) -> String) -> Signal<String> {
        text(move || self.view.with(|view| view.as_ref().map(say)).unwrap_or_default())
    }

    fn take(self, answer: Result<Answer, ApiError>) {
        let problem = answer.as_ref().err().map(|error| error.message.clone());
        // The page may be another one by now.
        if self.problem.try_set(problem).is_none()
            && let Ok(answer) = answer
            && self.text.with_value(|shown| *shown != answer.text)
        {
            self.text.set_value(answer.text);
            self.view.set(Some(answer.view));
            // Buttons that are made anew would close a question that is open.
            if self.actions.with_untracked(|shown| *shown != answer.actions) {
                self.actions.set(answer.actions);
            }
        }
    }
}

async fn asked(who: Who, path: String) -> Result<Answer, ApiError> {
    let answer = who.fetch(&path).await?;
    read(&answer).map_err(|error| unreadable(&error))
}

fn read(answer: &JsValue) -> Result<Answer, Unreadable> {
    let actions: Option<Vec<Offered>> = read_field(answer, "actions")?;
    let view = DiagnosisView {
        diagnosis: read_diagnosis(&field(answer, "diagnosis")?)?,
        why: read_field(answer, "why")?,
        // Read apart, as far as they are shown.
        actions: Vec::new(),
        charts: read_field(answer, "charts")?,
        changed_before: read_field(answer, "changed_before")?,
        similar: read_field(answer, "similar")?,
        timeline: read_field(answer, "timeline")?,
    };
    Ok(Answer {
        text: JSON::stringify(answer).map(String::from).unwrap_or_default(),
        view,
        actions: actions.unwrap_or_default(),
    })
}
