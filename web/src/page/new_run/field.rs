//! The inputs of the form, made from the table of fields.

use domain::api::runs::SpecProblem;
use leptos::prelude::*;

use super::editor::Editor;
use super::fields::{FIELDS, Field, SET, Section};
use super::kind::Kind;
use crate::language::tr;
use crate::ui::{When, dynamic_view, text};

/// The fields of a section. `more` chooses the ones under "More".
pub(super) fn fields_of(section: Section, more: bool) -> impl Iterator<Item = &'static Field> {
    FIELDS
        .iter()
        .filter(move |field| field.section == section && field.is_rare == more)
}

/// The rare fields of a section. Opens when one of them is set or wrong, and does not close by itself.
#[component]
pub(super) fn More(editor: Editor, section: Section) -> impl IntoView {
    let count = fields_of(section, true).count();
    let is_open = Memo::new(move |was_open: Option<&bool>| {
        let mut fields = fields_of(section, true);
        let is_used = fields.any(|field| {
            let is_set = editor
                .form
                .text(field.path)
                .with(|text| text != field.kind.default());
            is_set || is_wrong(editor, field.path)
        });
        is_used || was_open.copied().unwrap_or_default()
    });
    let names: Vec<&str> = fields_of(section, true)
        .take(3)
        .map(|field| tr(field.label))
        .collect();
    let dots = if count > names.len() { "…" } else { "" };
    let names = format!("{}: {}{dots}", tr("More"), names.join(", "));
    let rows = move || {
        fields_of(section, true)
            .map(|field| input(editor, field))
            .collect::<Vec<AnyView>>()
    };
    view! {
        <When on=move || { count > 0 }>
            <details prop:open=move || is_open.get() data-testid=format!("more-{section:?}")>
                <summary class="cursor-pointer py-1">{names.clone()}</summary>
                <div class="grid grid-cols-1 sm:grid-cols-2 gap-x-3 gap-y-2 fields mt-2">{rows()}</div>
            </details>
        </When>
    }
}

/// A field with its label and its errors.
pub(super) fn input(editor: Editor, field: &'static Field) -> AnyView {
    let (path, value) = (field.path, editor.form.text(field.path));
    let wrong = text(move || is_wrong(editor, path).to_string());
    let about = format!("{path}-mistakes");
    let label = move || view! { <label class="label flex-wrap gap-x-2 whitespace-normal" for=path>{tr(field.label)} <span>{tr(field.hint)}</span></label> };
    let set = Box::new(move |chosen| value.set(chosen));
    let control = match field.kind {
        Kind::Flag => {
            let is_checked = move || value.with(|text| text == "true");
            let choose = move |event| value.set(if event_target_checked(&event) { "true".to_owned() } else { String::new() });
            view! {
                <label class="flex gap-2 items-center py-2">
                    <input type="checkbox" id=path name=path aria-describedby=about prop:checked=is_checked on:change=choose />
                    <span>{tr(field.label)} " " <span class="text-muted text-sm">{tr(field.hint)}</span></span>
                </label>
            }
            .into_any()
        }
        Kind::Lines | Kind::Pairs | Kind::Names => view! {
            {label()}
            <textarea class="textarea w-full font-mono" rows="3" id=path name=path spellcheck="false" autocomplete="off" aria-describedby=about aria-invalid=wrong bind:value=value></textarea>
        }
        .into_any(),
        Kind::Choice(words) => {
            let words = words.iter().map(|&word| (word.to_owned(), word.to_owned()));
            select(label().into_any(), path, value.into(), words.collect(), set)
        }
        Kind::Answer => {
            let answers = [("", tr("default")), ("true", tr("yes")), ("false", tr("no"))];
            let answers = answers.map(|(value, word)| (value.to_owned(), word.to_owned()));
            select(label().into_any(), path, value.into(), answers.into(), set)
        }
        Kind::Text | Kind::Whole | Kind::Decimal => view! {
            {label()}
            <input class="input w-full" id=path name=path autocomplete="off" aria-describedby=about aria-invalid=wrong bind:value=value />
        }
        .into_any(),
    };
    view! { <div class="fieldset min-w-0">{control} <Mistakes editor field=path /></div> }.into_any()
}

/// A choice, given as values with their words.
pub(super) fn select(
    label: AnyView,
    path: &'static str,
    value: Signal<String>,
    words: Vec<(String, String)>,
    choose: Box<dyn Fn(String) + Send + Sync>,
) -> AnyView {
    let options = options(value, words);
    view! {
        {label}
        <select class="select w-full" id=path name=path aria-describedby=format!("{path}-mistakes") on:change=move |event| choose(event_target_value(&event))>{options}</select>
    }
    .into_any()
}

/// The options of a choice. Each knows whether it is chosen: the value of a `<select>` has no effect before its options exist.
pub(super) fn options(value: Signal<String>, words: Vec<(String, String)>) -> Vec<AnyView> {
    let option = |(word, name): (String, String)| {
        let own = word.clone();
        let is_chosen = Signal::derive(move || value.with(|value| *value == own));
        view! { <option value=word prop:selected=is_chosen>{name}</option> }.into_any()
    };
    words.into_iter().map(option).collect()
}

/// The errors of a field, and of what is in it: `set` also shows those of `set.NAME`, unless that setting has a field of its own.
#[component]
pub(super) fn Mistakes(
    editor: Editor,
    /// The field's path in the specification.
    #[prop(into)]
    field: String,
) -> impl IntoView {
    let id = format!("{field}-mistakes");
    let sentences = Memo::new(move |_| {
        let has_own = |problem: &SpecProblem| {
            let name = problem.field.strip_prefix("set.");
            field == SET && name.is_some_and(|name| editor.has_setting(name))
        };
        editor.problems.with(|all| {
            let about = all
                .iter()
                .filter(|problem| is_about(&field, &problem.field) && !has_own(problem));
            about
                .map(|problem| sentence(&field, problem))
                .collect::<Vec<String>>()
        })
    });
    let shown = dynamic_view(move || {
        let one =
            |sentence| view! { <p class="wrong text-sm" data-testid="mistake">{sentence}</p> }.into_any();
        sentences
            .get()
            .into_iter()
            .map(one)
            .collect::<Vec<AnyView>>()
            .into_any()
    });
    view! { <div id=id aria-live="polite">{shown}</div> }
}

fn is_wrong(editor: Editor, path: &str) -> bool {
    editor
        .problems
        .with(|all| all.iter().any(|problem| is_about(path, &problem.field)))
}

/// Returns true if the field of an error is this one, or in it. An error of a whole table is shown at its first field.
pub(super) fn is_about(path: &str, field: &str) -> bool {
    let inside = field
        .strip_prefix(path)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let is_first = || {
        FIELDS
            .iter()
            .find(|known| known.path.split('.').next() == Some(field))
            .is_some_and(|first| first.path == path)
    };
    inside || is_first()
}

fn sentence(path: &str, problem: &SpecProblem) -> String {
    let name = problem
        .field
        .strip_prefix(path)
        .and_then(|rest| rest.strip_prefix('.'));
    match name {
        Some(name) => format!("{name}: {}", problem.message),
        None => problem.message.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::form::problem;
    use super::*;

    #[test]
    fn each_error_is_shown_at_one_field() {
        for (field, expected) in [
            ("set", "set"),
            ("set.lr", "set"),
            ("git", "git.repository"),
            ("git.revision", "git.revision"),
            ("container.image", "container.image"),
            ("preflight_bandwidth", "preflight_bandwidth.seconds"),
            ("labels.team.name", "labels"),
            ("unknown", ""),
        ] {
            let shown = FIELDS.iter().filter(|known| is_about(known.path, field));
            let shown: Vec<&str> = shown.map(|known| known.path).collect();
            assert_eq!(shown.join(" "), expected, "{field}");
        }
        assert_eq!(
            sentence("set", &problem("set.lr", "is wrong".to_owned())),
            "lr: is wrong"
        );
        assert_eq!(
            sentence("git.repository", &problem("git", "is wrong".to_owned())),
            "is wrong"
        );
    }
}
