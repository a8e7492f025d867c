//! One knob: what it does, its value, and the field for a new value.

use domain::api::runs::KnobView;
use leptos::prelude::*;

use super::super::change_dialog::ChangeDialog;
use super::change::how_words;
use crate::language::{tr, tr_with};
use crate::live::Row;
use crate::ui::{dynamic_view, empty_view, text};

/// The row of a knob.
#[component]
pub(super) fn Knob(row: Row<KnobView>, dialog: ChangeDialog) -> impl IntoView {
    let knob = row.signal();
    let of = move |part: fn(&KnobView) -> String| text(move || knob.with(part));
    let entry = dynamic_view(move || {
        if dialog.may.get() {
            knob.with_untracked(|knob| entry(knob, dialog))
        } else {
            empty_view()
        }
    });
    view! {
        <li class="grid gap-x-4 gap-y-1 sm:grid-cols-[minmax(0,2fr)_minmax(0,1fr)_minmax(0,1.5fr)] py-2 border-b border-base-300" data-testid="knob" data-knob=row.key.clone()>
            <div class="min-w-0">
                <b class="font-mono break-words">{row.key.clone()}</b>
                <p class="text-sm opacity-80 break-words" lang="en">{of(|knob| knob.what.clone())}</p>
            </div>
            <div class="min-w-0">
                <p class="break-words"><span class="text-sm opacity-80">{tr("Now: ")}</span> <b data-testid="knob-value">{of(value)}</b></p>
                <p class="text-sm opacity-80 break-words">{of(way)}</p>
            </div>
            <div class="min-w-0">{entry}</div>
        </li>
    }
}

fn value(knob: &KnobView) -> String {
    let value = knob.value.clone();
    value.unwrap_or_else(|| tr("as in the script").to_owned())
}

/// Returns whether a change needs a new attempt, and through which setting of the script it is made.
fn way(knob: &KnobView) -> String {
    let Some(how) = &knob.how else {
        return tr("cannot be changed").to_owned();
    };
    let way = if knob.live {
        tr("while it trains")
    } else {
        tr("by a new attempt")
    };
    format!("{way} · {}", how_words(how))
}

/// Renders the field, the valid values and the error; or why there is no field.
fn entry(knob: &KnobView, dialog: ChangeDialog) -> AnyView {
    if !knob.problem.is_empty() {
        return view! { <p class="text-sm break-words" lang="en">{knob.problem.clone()}</p> }.into_any();
    }
    let name = StoredValue::new(knob.name.clone());
    let (hint, wrong) = (
        format!("knob-{}-hint", knob.name),
        format!("knob-{}-mistake", knob.name),
    );
    let mistake = text(move || {
        let mistake = name.with_value(|name| dialog.form.mistake(&format!("set.{name}")));
        mistake.unwrap_or_default()
    });
    let invalid = text(move || (!mistake.read().is_empty()).to_string());
    let label = tr_with("New value of {knob}", &[("knob", &knob.name)]);
    let described = format!("{hint} {wrong}");
    let set = move |event| {
        let value = event_target_value(&event);
        dialog.form.forget();
        dialog.drafts.update(|drafts| {
            let name = name.get_value();
            if value.trim().is_empty() {
                drafts.remove(&name);
            } else {
                drafts.insert(name, value);
            }
        });
    };
    let draft = move || {
        let draft = dialog
            .drafts
            .with(|drafts| drafts.get(&name.get_value()).cloned());
        draft.unwrap_or_default()
    };
    let field = if knob.choices.is_empty() {
        let value = text(draft);
        view! { <input class="input input-sm w-full" autocomplete="off" spellcheck="false" placeholder=tr("new value") aria-label=label aria-describedby=described aria-invalid=invalid prop:value=value on:input=set data-testid="knob-field" /> }.into_any()
    } else {
        let option = |value: String, words: String| {
            let own = value.clone();
            let selected = Signal::derive(move || draft() == own);
            view! { <option value=value prop:selected=selected>{words}</option> }.into_any()
        };
        let mut options = vec![option(String::new(), tr("no change").to_owned())];
        options.extend(
            knob.choices
                .iter()
                .map(|choice| option(choice.clone(), choice.clone())),
        );
        view! { <select class="select select-sm w-full" aria-label=label aria-describedby=described aria-invalid=invalid on:change=set data-testid="knob-field">{options}</select> }.into_any()
    };
    view! {
        {field}
        <p class="text-xs opacity-80 break-words" lang="en" id=hint>{knob.values.clone()}</p>
        <div id=wrong aria-live="polite"><p class="wrong text-sm break-words empty:hidden" lang="en" data-testid="mistake">{mistake}</p></div>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use domain::run::knob::How;

    use super::*;

    #[test]
    fn a_knob_says_how_it_is_changed() {
        let flag = How::Flag {
            flag: "--num-workers".to_owned(),
        };
        for (how, live, expected) in [
            (None, false, "cannot be changed"),
            (Some(flag), false, "by a new attempt · --num-workers"),
            (Some(How::Injected), true, "while it trains · injected"),
        ] {
            let knob = KnobView {
                how,
                live,
                ..KnobView::default()
            };
            assert_eq!(way(&knob), expected);
            assert_eq!(value(&knob), "as in the script");
        }
    }
}
