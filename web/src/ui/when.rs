//! Parts that come and go, and texts that change, at a small price.
//!
//! Leptos builds a copy of its machinery for each closure it meets in a view. Behind these two there is one copy for all, which
//! is a good part of what a browser has to load.

use leptos::prelude::*;

/// Shows its content while something holds.
#[component]
pub(crate) fn When(
    /// What has to hold.
    #[prop(into)]
    on: Signal<bool>,
    /// The content.
    children: ChildrenFn,
) -> AnyView {
    let holds = Memo::new(move |_| on.get());
    (move || holds.get().then(|| children())).into_any()
}

/// A text that changes, for a view or an attribute.
pub(crate) fn text<T: Into<String>>(words: impl Fn() -> T + Send + Sync + 'static) -> Signal<String> {
    Signal::derive(move || words().into())
}
