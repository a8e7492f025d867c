//! Something that a person wants done: sent, under way, refused in words.

use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::Serialize;
use wasm_bindgen::JsValue;

use crate::session::Who;

/// What became of the last wish. Cheap to copy.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    who: Who,
    /// Whether the answer is awaited.
    pub(crate) busy: RwSignal<bool>,
    /// Why it was refused.
    pub(crate) problem: RwSignal<Option<String>>,
}

impl Wish {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self {
            who: expect_context::<Who>(),
            busy: RwSignal::new(false),
            problem: RwSignal::new(None),
        }
    }

    /// Sends `body` to `path`; `then` gets the answer when it is good.
    pub(crate) fn send(self, path: String, body: &impl Serialize, then: impl FnOnce(JsValue) + 'static) {
        // Only a map whose keys are no texts cannot be written, and no wish has one.
        self.send_text(
            path,
            serde_json::to_string(body).unwrap_or_default(),
            Box::new(then),
        );
    }

    fn send_text(self, path: String, body: String, then: Box<dyn FnOnce(JsValue)>) {
        self.busy.set(true);
        self.problem.set(None);
        spawn_local(async move {
            let answer = self.who.send(&path, body).await;
            // The part of the page that asked may be gone before the answer is here.
            if self.busy.try_set(false).is_some() {
                return;
            }
            match answer {
                Ok(answer) => then(answer),
                Err(error) => self.problem.set(Some(error.message)),
            }
        });
    }
}
