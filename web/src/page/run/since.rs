//! Since when a run is in its state.

use domain::event::Event;
use domain::time::TimestampMs;
use gloo_timers::future::TimeoutFuture;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::run_signal::RunSignal;
use crate::session::UserSession;
use crate::ui::effect;

/// Maximum number of requests for the event of a new state, and the pause between two: the stream can show the state before its event.
const TRIES: u32 = 5;
const AGAIN_MS: u32 = 2_000;

/// Returns when the run entered its state. `None` until that is known, or if its event is no longer stored.
pub(super) fn state_since(id: &str, run: RunSignal) -> Signal<Option<TimestampMs>> {
    let entered_ms = RwSignal::new(None::<TimestampMs>);
    // Of the state before: the newest event is still that one if the event of this state is not stored yet.
    let before_ms = StoredValue::new(None::<TimestampMs>);
    let session = expect_context::<UserSession>();
    let state = Memo::new(move |_| run.with(|run| run.as_ref().map(|run| run.summary.state)));
    let path = format!("/api/events?run={id}&kind=run_state&limit=1");
    effect(move || {
        let (asked, earlier_ms) = (state.get(), before_ms.get_value());
        entered_ms.set(None);
        let path = path.clone();
        spawn_local(async move {
            for _ in 0..TRIES {
                let events = session.get::<Vec<Event>>(&path).await.unwrap_or_default();
                let newest_ms = events.first().map(|event| event.at_ms);
                // The user has left the page, or the state has changed again.
                if state.try_get_untracked() != Some(asked) {
                    return;
                }
                if newest_ms.is_some() && newest_ms != earlier_ms {
                    // The first answer can contain the event of a state that the page has not shown, so it is confirmed once.
                    let is_confirmed = entered_ms.get_untracked() == newest_ms;
                    before_ms.set_value(newest_ms);
                    entered_ms.set(newest_ms);
                    if is_confirmed {
                        return;
                    }
                }
                TimeoutFuture::new(AGAIN_MS).await;
            }
        });
    });
    Signal::derive(move || {
        let ended_ms = run.with(|run| {
            let summary = &run.as_ref()?.summary;
            summary.ended_ms.filter(|_| summary.state.is_final())
        });
        ended_ms.or(entered_ms.get())
    })
}
