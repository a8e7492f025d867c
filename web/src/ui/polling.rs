//! Requests that are made again and again.

use gloo_timers::future::TimeoutFuture;
use leptos::prelude::*;
use leptos::task::spawn_local;

/// Increments the counter at this interval, except while `pauses` returns true. Ends with the owner of the counter.
pub(crate) fn count_every(interval_ms: u32, count: RwSignal<u32>, pauses: impl Fn() -> bool + 'static) {
    spawn_local(async move {
        loop {
            TimeoutFuture::new(interval_ms).await;
            if count.is_disposed() {
                return;
            }
            if !pauses() {
                count.try_update(|count| *count = count.wrapping_add(1));
            }
        }
    });
}
