//! Conditional parts and changing texts with little code.
//!
//! Leptos compiles a copy of its code for each closure in a view. These wrappers need only one copy, which saves a large part of the
//! download.

use leptos::prelude::*;

/// Shows its content while a condition is true.
#[component]
pub(crate) fn When(
    /// The condition.
    #[prop(into)]
    on: Signal<bool>,
    /// The content.
    children: ChildrenFn,
) -> AnyView {
    let holds = Memo::new(move |_| on.get());
    dynamic_view(move || if holds.get() { children() } else { empty_view() })
}

/// Returns a view that is rebuilt whenever a signal that it reads changes.
pub(crate) fn dynamic_view(make: impl Fn() -> AnyView + Send + 'static) -> AnyView {
    fn boxed(make: Box<dyn Fn() -> AnyView + Send>) -> AnyView {
        (move || make()).into_any()
    }
    boxed(Box::new(make))
}

/// Returns an empty view.
pub(crate) fn empty_view() -> AnyView {
    ().into_any()
}

/// Returns a text that changes, for a view or an attribute.
pub(crate) fn text<T: Into<String>>(words: impl Fn() -> T + Send + Sync + 'static) -> Signal<String> {
    Signal::derive(move || words().into())
}

/// Runs a closure now, and again whenever a signal that it reads changes.
pub(crate) fn effect(act: impl Fn() + 'static) {
    fn boxed(act: Box<dyn Fn()>) {
        Effect::new(act);
    }
    boxed(Box::new(act));
}

/// Tracks a memo that nothing else may read. With `Memo::track` alone it would never be computed, and never change.
pub(crate) fn track<T: Send + Sync + 'static>(memo: Memo<T>) {
    memo.with(|_| ());
}

/// Shows an error if there is one; a screen reader announces it.
#[component]
pub(crate) fn ErrorMessage(
    /// The error.
    what: RwSignal<Option<String>>,
    /// Content beside the error.
    #[prop(optional)]
    children: Option<ChildrenFn>,
) -> AnyView {
    let more = StoredValue::new(children);
    dynamic_view(move || match what.get() {
        Some(sentence) => {
            let more = more.get_value().map(|more| more());
            view! { <p class="alert alert-error text-sm" role="alert"><span class="min-w-0 break-words">{sentence} " " {more}</span></p> }.into_any()
        }
        None => empty_view(),
    })
}
