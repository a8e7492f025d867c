//! A list that the stream does not contain. It is requested again when an alert starts or ends, and every few seconds.

use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::de::DeserializeOwned;

use crate::language::tr;
use crate::live::{Keyed, List, Live};
use crate::session::UserSession;
use crate::ui::{AnswerOrder, ErrorMessage, When, count_every, effect};

/// Interval between requests. Rules are evaluated each second, but users do not read faster than this.
const AGAIN_MS: u32 = 5_000;

/// The list, and the error of the last request. Cheap to copy.
pub(super) struct Polled<T: 'static> {
    pub(super) list: List<T>,
    pub(super) problem: RwSignal<Option<String>>,
    request_count: RwSignal<u32>,
}

impl<T> Clone for Polled<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Polled<T> {}

impl<T: Keyed + DeserializeOwned + PartialEq + Send + Sync + 'static> Polled<T> {
    /// Requests the list while the current owner lives.
    pub(super) fn of(path: &'static str) -> Self {
        let live = expect_context::<Live>();
        let session = expect_context::<UserSession>();
        let polled = Self {
            list: List::new(),
            problem: RwSignal::new(None),
            request_count: RwSignal::new(0),
        };
        let answers = AnswerOrder::new();
        effect(move || {
            polled.request_count.track();
            // Also runs after a reconnect, because changes may have been missed.
            if live.connected.get() {
                let _changes = live.diagnoses.rows();
            }
            let number = answers.begin();
            spawn_local(async move {
                let answer = session.get::<Vec<T>>(path).await;
                if !answers.accept(number) {
                    return;
                }
                polled
                    .problem
                    .set(answer.as_ref().err().map(|error| error.message.clone()));
                if let Ok(items) = answer {
                    polled.list.take(items);
                }
            });
        });
        count_every(AGAIN_MS, polled.request_count, move || {
            live.paused.get_untracked()
        });
        polled
    }

    /// Requests the list now.
    pub(super) fn again(self) {
        self.request_count
            .update(|request_count| *request_count = request_count.wrapping_add(1));
    }
}

/// The text shown while the list is empty.
#[component]
pub(super) fn Absence<T: Keyed + DeserializeOwned + PartialEq + Send + Sync + 'static>(
    /// The list.
    of: Polled<T>,
    /// The text for an empty list.
    empty: &'static str,
) -> impl IntoView {
    view! {
        <ErrorMessage what=of.problem />
        <When on=move || !of.list.is_known() && of.problem.with(Option::is_none)><p class="text-muted">{tr("Loading…")}</p></When>
        <When on=move || of.list.is_empty()><p class="text-muted">{empty}</p></When>
    }
}
