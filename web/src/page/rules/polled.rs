//! A list that the stream does not carry: asked for again whenever an alert comes or goes, and every few seconds.

use gloo_timers::future::TimeoutFuture;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::de::DeserializeOwned;

use crate::live::{Keyed, List, Live};
use crate::session::Who;
use crate::ui::{Trouble, When, whenever};

/// Rules are evaluated each second, but no one reads faster than this.
const AGAIN_MS: u32 = 5_000;

/// The list, and why it could not be had. Cheap to copy.
pub(super) struct Polled<T: 'static> {
    pub(super) list: List<T>,
    pub(super) problem: RwSignal<Option<String>>,
    asked: RwSignal<u32>,
}

impl<T> Clone for Polled<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Polled<T> {}

impl<T: Keyed + DeserializeOwned + PartialEq + Send + Sync + 'static> Polled<T> {
    /// Asks for as long as the current owner lives.
    pub(super) fn of(path: &'static str) -> Self {
        let live = expect_context::<Live>();
        let who = expect_context::<Who>();
        let polled = Self {
            list: List::new(),
            problem: RwSignal::new(None),
            asked: RwSignal::new(0),
        };
        whenever(move || {
            polled.asked.track();
            // Also when the stream is back: whatever happened meanwhile is news.
            if live.connected.get() {
                let _changes = live.diagnoses.rows();
            }
            spawn_local(async move {
                let answer = who.get::<Vec<T>>(path).await;
                // The page may be another one by now.
                if polled
                    .problem
                    .try_set(answer.as_ref().err().map(|error| error.message.clone()))
                    .is_none()
                    && let Ok(items) = answer
                {
                    polled.list.take(items);
                }
            });
        });
        spawn_local(async move {
            loop {
                TimeoutFuture::new(AGAIN_MS).await;
                if polled
                    .asked
                    .try_update(|asked| *asked = asked.wrapping_add(1))
                    .is_none()
                {
                    return;
                }
            }
        });
        polled
    }

    /// Asks again now.
    pub(super) fn again(self) {
        self.asked.update(|asked| *asked = asked.wrapping_add(1));
    }
}

/// What is shown while there is nothing to show.
#[component]
pub(super) fn Absence<T: Keyed + DeserializeOwned + PartialEq + Send + Sync + 'static>(
    /// The list.
    of: Polled<T>,
    /// What an empty list means.
    empty: &'static str,
) -> impl IntoView {
    view! {
        <Trouble what=of.problem />
        <When on=move || !of.list.is_known() && of.problem.with(Option::is_none)><p class="text-muted">"Loading…"</p></When>
        <When on=move || of.list.is_empty()><p class="text-muted">{empty}</p></When>
    }
}
