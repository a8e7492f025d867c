//! All errors in one place. Each leads to its field.

use domain::api::runs::SpecProblem;
use leptos::prelude::*;

use super::document::quoted;
use super::editor::Editor;
use super::field::is_about;
use super::fields::FIELDS;
use crate::language::{tr, tr_with};
use crate::ui::{dynamic_view, empty_view, focus};

/// The errors. Screen readers announce a change.
#[component]
pub(super) fn Summary(editor: Editor) -> impl IntoView {
    let shown = dynamic_view(move || {
        let problems = editor.problems.get();
        if problems.is_empty() {
            return empty_view();
        }
        let is_text = editor.is_text.get();
        let item = |problem: &SpecProblem| {
            let sentence = sentence(problem, is_text);
            let field = if is_text {
                "toml".to_owned()
            } else {
                problem.field.clone()
            };
            view! { <li><button type="button" class="link text-left" on:click=move |_| open(&field)>{sentence}</button></li> }.into_any()
        };
        let items: Vec<AnyView> = problems.iter().map(item).collect();
        view! {
            <div class="alert alert-error text-sm grid-cols-1" data-testid="error-summary">
                <div class="min-w-0 break-words"><p>{tr("Correct these before the start:")}</p> <ul class="list-disc ml-5">{items}</ul></div>
            </div>
        }
        .into_any()
    });
    view! { <div id="problems" role="alert">{shown}</div> }
}

/// Returns the label of the field, or the position in the text, and the error.
fn sentence(problem: &SpecProblem, is_text: bool) -> String {
    let message = &problem.message;
    match (problem.line, problem.column) {
        (Some(line), Some(column)) if is_text => {
            let place = tr_with(
                "Line {line}, column {column}",
                &[("line", &line), ("column", &column)],
            );
            let field = if problem.field.is_empty() {
                String::new()
            } else {
                format!(" ({})", problem.field)
            };
            format!("{place}{field}: {message}")
        }
        _ if problem.field.is_empty() => message.clone(),
        _ => {
            let field = FIELDS.iter().find(|field| is_about(field.path, &problem.field));
            let inside = field.and_then(|field| problem.field.strip_prefix(field.path)?.strip_prefix('.'));
            let inside = inside.map(|name| format!(" {name}")).unwrap_or_default();
            let label = field.map_or(problem.field.as_str(), |field| tr(field.label));
            format!("{label}{inside}: {message}")
        }
    }
}

/// Moves the focus to a field: to its own input, or to the one that contains it.
fn open(field: &str) {
    let containing = FIELDS.iter().find(|known| is_about(known.path, field));
    let ids = [Some(field), containing.map(|known| known.path)];
    for id in ids.into_iter().flatten() {
        let selector = format!("[id={}]", quoted(id));
        let element = document().query_selector(&selector).ok().flatten();
        let details = element.and_then(|element| element.closest("details").ok().flatten());
        if let Some(details) = details {
            // Fails only for an invalid name of an attribute.
            let _valid = details.set_attribute("open", "");
        }
        if focus(&selector) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::form::problem;
    use super::*;

    #[test]
    fn an_error_names_its_field_or_its_line() {
        let of = |field: &str| problem(field, "is wrong".to_owned());
        assert_eq!(sentence(&of("git.revision"), false), "Git revision: is wrong");
        assert_eq!(sentence(&of("env.RANK"), false), "Variables RANK: is wrong");
        assert_eq!(sentence(&of("nodez"), false), "nodez: is wrong");
        let placed = SpecProblem {
            line: Some(3),
            column: Some(5),
            ..of("nodez")
        };
        assert_eq!(sentence(&placed, true), "Line 3, column 5 (nodez): is wrong");
        assert_eq!(sentence(&of(""), true), "is wrong");
    }
}
