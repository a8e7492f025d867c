//! A field of the form: its label, hint, value and errors.

use crate::ui::{dynamic_view, text};
use domain::run::spec::FieldError;
use leptos::prelude::*;

/// A field with one line.
#[component]
pub(super) fn Text(
    /// The label above the field.
    label: &'static str,
    /// The hint beside the label.
    hint: &'static str,
    /// The field's name in the spec.
    field: &'static str,
    /// The current text.
    value: RwSignal<String>,
    /// All errors of the form.
    problems: Memo<Vec<FieldError>>,
) -> impl IntoView {
    view! {
        <div class="fieldset">
            <label class="label flex-wrap gap-x-2" for=field>{label} <span>{hint}</span></label>
            <input
                class="input w-full"
                id=field
                name=field
                autocomplete="off"
                aria-describedby=format!("{field}-mistakes")
                aria-invalid=text(move || is_wrong(field, problems).to_string())
                bind:value=value
            />
            <Mistakes field problems />
        </div>
    }
}

/// A field with several lines.
#[component]
pub(super) fn Area(
    /// The label above the field.
    label: &'static str,
    /// The hint beside the label.
    hint: &'static str,
    /// The field's name in the spec.
    field: &'static str,
    /// The current text.
    value: RwSignal<String>,
    /// All errors of the form.
    problems: Memo<Vec<FieldError>>,
) -> impl IntoView {
    view! {
        <div class="fieldset">
            <label class="label flex-wrap gap-x-2" for=field>{label} <span>{hint}</span></label>
            <textarea
                class="textarea w-full font-mono"
                rows="3"
                id=field
                name=field
                spellcheck="false"
                aria-describedby=format!("{field}-mistakes")
                aria-invalid=text(move || is_wrong(field, problems).to_string())
                bind:value=value
            ></textarea>
            <Mistakes field problems />
        </div>
    }
}

/// The errors of a field; `set` also shows those of `set.NAME`.
#[component]
pub(super) fn Mistakes(
    /// The field's name in the spec.
    field: &'static str,
    /// All errors of the form.
    problems: Memo<Vec<FieldError>>,
) -> impl IntoView {
    let sentences = Memo::new(move |_| {
        problems.with(|all| {
            all.iter()
                .filter(|problem| is_about(field, problem))
                .map(sentence)
                .collect::<Vec<_>>()
        })
    });
    let shown = dynamic_view(move || {
        let one =
            |sentence| view! { <p class="wrong text-sm" data-testid="mistake">{sentence}</p> }.into_any();
        let all: Vec<AnyView> = sentences.get().into_iter().map(one).collect();
        all.into_any()
    });
    view! { <div id=format!("{field}-mistakes") aria-live="polite">{shown}</div> }
}

fn is_wrong(field: &str, problems: Memo<Vec<FieldError>>) -> bool {
    problems.with(|all| all.iter().any(|problem| is_about(field, problem)))
}

fn is_about(field: &str, problem: &FieldError) -> bool {
    let rest = problem.field.strip_prefix(field);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn sentence(problem: &FieldError) -> String {
    match problem.field.split_once('.') {
        Some((_, name)) => format!("{name}: {}", problem.message),
        None => problem.message.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_belongs_to_the_settings() {
        let problem = |field: &str| FieldError {
            field: field.to_owned(),
            message: "is wrong".to_owned(),
        };
        assert!(is_about("set", &problem("set")) && is_about("set", &problem("set.lr")));
        assert!(!is_about("set", &problem("settings")) && !is_about("nodes", &problem("nproc_per_node")));
        assert_eq!(sentence(&problem("set.lr")), "lr: is wrong");
    }
}
