//! Headings, and the title and icon of the browser's tab.

use leptos::prelude::*;

use super::effect;
use crate::live::Live;

const ICON: &str = "/favicon.svg";
/// The icon while there are diagnoses.
const MARKED_ICON: &str = "/favicon-marked.svg";

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

/// Sets the title of the browser's tab while the page is open. For tabs in the background, the title begins with the number of
/// diagnoses, and the icon is marked if there are any.
#[component]
pub(crate) fn Title(
    /// The name of the page.
    #[prop(into)]
    of: String,
) -> impl IntoView {
    let diagnoses = expect_context::<Live>().diagnoses;
    effect(move || {
        let count = diagnoses.rows().len();
        document().set_title(&title(&of, count));
        let icon = document().query_selector("link[rel=icon]").ok().flatten();
        if let Some(icon) = icon {
            // Fails only for an invalid name of an attribute.
            let _valid = icon.set_attribute("href", if count > 0 { MARKED_ICON } else { ICON });
        }
    });
}

fn title(page: &str, diagnoses: usize) -> String {
    match diagnoses {
        0 => format!("{page} · Lockstep"),
        count => format!("● {count} · {page} · Lockstep"),
    }
}

#[cfg(test)]
mod tests {
    use super::title;

    #[test]
    fn the_title_begins_with_the_number_of_diagnoses() {
        assert_eq!(title("Overview", 0), "Overview · Lockstep");
        assert_eq!(title("Rules", 2), "● 2 · Rules · Lockstep");
    }
}
