//! The period on which the reader zooms in, for pages that keep it in their address.

use js_sys::Float64Array;
use leptos::prelude::*;
use wasm_bindgen::prelude::*;

/// The event that tells a page that the reader zoomed in or out.
const EVENT: &str = "lockstep-zoom";

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = lockstepChart)]
    fn chosen() -> Float64Array;
    #[wasm_bindgen(js_namespace = lockstepChart)]
    fn period(is_live: bool);
}

/// Calls back with the start and the end, in seconds, of each period on which the reader zooms in, or with nothing if the reader wants to see
/// everything again. Ends with the current owner.
pub(crate) fn on_zoom(choose: impl Fn(Option<(f64, f64)>) + 'static) {
    let heard = window_event_listener_untyped(EVENT, move |_| {
        let ends = chosen().to_vec();
        choose(ends.first().copied().zip(ends.last().copied()));
    });
    on_cleanup(move || heard.remove());
}

/// Tells the charts that the page shows another period: they show the next data whole. `is_live`: whether the period ends now.
pub(crate) fn period_changed(is_live: bool) {
    period(is_live);
}
