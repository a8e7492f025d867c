//! A canvas that is as wide as its place in the page.

use leptos::html::Div;
use leptos::prelude::*;

/// Creates the canvas when its place is in the page, and removes it with its owner. Returns the canvas and the width of the place in pixels,
/// which is 0 until then.
pub(crate) fn canvas_in<Canvas: 'static>(
    place: NodeRef<Div>,
    create: fn(&web_sys::HtmlElement) -> Canvas,
) -> (StoredValue<Option<Canvas>, LocalStorage>, ReadSignal<i32>) {
    let canvas = StoredValue::new_local(None::<Canvas>);
    let (width, set_width) = signal(0);
    let measure_width = move || {
        if let Some(element) = place.get_untracked() {
            set_width.set(element.client_width());
        }
    };
    let resized = window_event_listener(leptos::ev::resize, move |_| measure_width());
    on_cleanup(move || {
        resized.remove();
        canvas.update_value(|canvas| *canvas = None);
    });
    super::effect(move || {
        if let Some(element) = place.get() {
            canvas.set_value(Some(create(&element)));
            measure_width();
        }
    });
    (canvas, width)
}
