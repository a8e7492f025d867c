//! Parts that come and go, and texts that change, at a small price.
//!
//! Leptos builds a copy of its machinery for each closure it meets in a view. Behind these there is one copy for all, which
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
    changing(move || if holds.get() { children() } else { nothing() })
}

/// A view that is made anew whenever something it looks at changes.
pub(crate) fn changing(make: impl Fn() -> AnyView + Send + 'static) -> AnyView {
    fn boxed(make: Box<dyn Fn() -> AnyView + Send>) -> AnyView {
        (move || make()).into_any()
    }
    boxed(Box::new(make))
}

/// No view.
pub(crate) fn nothing() -> AnyView {
    ().into_any()
}

/// A text that changes, for a view or an attribute.
pub(crate) fn text<T: Into<String>>(words: impl Fn() -> T + Send + Sync + 'static) -> Signal<String> {
    Signal::derive(move || words().into())
}

/// Does something now, and again whenever something it looks at changes.
pub(crate) fn whenever(act: impl Fn() + 'static) {
    fn boxed(act: Box<dyn Fn()>) {
        Effect::new(act);
    }
    boxed(Box::new(act));
}

/// What went wrong, while something is; read out when it comes.
#[component]
pub(crate) fn Trouble(
    /// What is wrong, if anything.
    what: RwSignal<Option<String>>,
    /// Beside the sentence.
    #[prop(optional)]
    children: Option<ChildrenFn>,
) -> AnyView {
    let more = StoredValue::new(children);
    changing(move || match what.get() {
        Some(sentence) => {
            let more = more.get_value().map(|more| more());
            view! { <p class="alert alert-error text-sm" role="alert"><span class="min-w-0 break-words">{sentence} " " {more}</span></p> }.into_any()
        }
        None => nothing(),
    })
}
