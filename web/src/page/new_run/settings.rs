//! One field for each setting and knob that the program has. The fields and the text of all settings are views of the same lines.

use domain::api::runs::SettingView;
use leptos::prelude::*;

use super::editor::Editor;
use super::field::{Mistakes, options};
use super::fields::SET;
use super::lines::{value_in, with_value};
use crate::language::{tr, tr_with};
use crate::ui::{dynamic_view, text};

/// The settings of the program, or its knobs.
#[component]
pub(super) fn SettingFields(editor: Editor, knobs: bool) -> impl IntoView {
    let views = Memo::new(move |_| {
        let all = editor.check.answer.with(|answer| answer.settings.clone());
        all.into_iter()
            .filter(|setting| setting.is_knob == knobs)
            .collect::<Vec<_>>()
    });
    dynamic_view(move || {
        let rows: Vec<AnyView> = views
            .get()
            .into_iter()
            .map(|setting| row(editor, setting))
            .collect();
        view! { <div class="grid grid-cols-1 sm:grid-cols-2 gap-x-3 gap-y-2 fields">{rows}</div> }.into_any()
    })
}

fn row(editor: Editor, setting: SettingView) -> AnyView {
    let SettingView {
        name,
        help,
        default,
        choices,
        values,
        ..
    } = setting;
    let lines = editor.form.text(SET);
    let field = format!("{SET}.{name}");
    let about = format!("{field}-mistakes");
    let of = field.clone();
    let is_wrong = text(move || {
        let is_wrong = editor
            .problems
            .with(|all| all.iter().any(|problem| problem.field == of));
        is_wrong.to_string()
    });
    let of = name.clone();
    let value = text(move || lines.with(|lines| value_in(lines, &of)).unwrap_or_default());
    let of = name.clone();
    let change =
        move |event| lines.update(|lines| *lines = with_value(lines, &of, event_target_value(&event).trim()));
    let placeholder = default
        .map(|default| tr_with("default: {value}", &[("value", &default)]))
        .unwrap_or_default();
    let control = if choices.is_empty() {
        view! {
            <input class="input w-full" id=field.clone() autocomplete="off" placeholder=placeholder aria-describedby=about aria-invalid=is_wrong
                prop:value=value on:input=change />
        }
        .into_any()
    } else {
        let first = if placeholder.is_empty() {
            tr("not set").to_owned()
        } else {
            placeholder
        };
        let words = choices.into_iter().map(|word| (word.clone(), word));
        let words = std::iter::once((String::new(), first)).chain(words).collect();
        let options = options(value, words);
        view! {
            <select class="select w-full" id=field.clone() aria-describedby=about aria-invalid=is_wrong on:input=change>{options}</select>
        }
        .into_any()
    };
    let hint = if values.is_empty() {
        help
    } else {
        format!("{help} ({values})")
    };
    view! {
        <div class="fieldset min-w-0">
            <label class="label flex-wrap gap-x-2 whitespace-normal" for=field.clone()><code>{name}</code> <span>{hint}</span></label>
            {control}
            <Mistakes editor field />
        </div>
    }
    .into_any()
}
