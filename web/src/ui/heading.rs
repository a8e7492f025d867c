//! Headings, and the title of the browser's tab.

use leptos::prelude::*;

/// The heading of a section, and a sentence that explains the section to new users.
#[component]
pub(crate) fn Heading(
    /// The heading.
    text: &'static str,
    /// The sentence.
    hint: &'static str,
    /// Content beside the heading.
    #[prop(optional)]
    children: Option<Children>,
) -> impl IntoView {
    view! {
        <div class="mb-2">
            <div class="flex flex-wrap gap-x-4 gap-y-1 items-center justify-between">
                <h2 class="text-lg font-bold">{text}</h2>
                {children.map(|children| children())}
            </div>
            <p class="text-sm opacity-70">{hint}</p>
        </div>
    }
}

/// Sets the title of the browser's tab while the page is open.
#[component]
pub(crate) fn Title(
    /// The name of the page.
    #[prop(into)]
    of: String,
) -> impl IntoView {
    document().set_title(&format!("{of} · Lockstep"));
}
