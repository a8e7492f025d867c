//! The rules as a table: condition and state; if opened, what to do when the rule fires.

use domain::api::alerts::RuleView;
use domain::time::DisplayDuration;
use leptos::prelude::*;

use super::filter::{Filter, RULE_STATES, RuleState, SEVERITIES, severity};
use crate::language::{tr, tr_parts, tr_with};
use crate::live::{Row, each};
use crate::page::polled::{Absence, Polled};
use crate::route::Route;
use crate::ui::{Ago, When, dynamic_view, empty_view, fixed, severity_word, text};

/// The table with its filter; the address contains the filter.
#[component]
pub(super) fn Rules() -> impl IntoView {
    let rules = Polled::<RuleView>::of("/api/rules");
    let route = expect_context::<Route>();
    let (words, state, grave) = (route.param("q"), route.param("state"), route.param("severity"));
    let filter = move || Filter {
        words: words.get().unwrap_or_default(),
        state: state.get().unwrap_or_default(),
        severity: grave.get().unwrap_or_default(),
    };
    let shown = move || {
        let filter = filter();
        let mut rows = rules.list.rows();
        rows.retain(|row| filter.takes(&row.get()));
        rows
    };
    let count = text(move || {
        let (shown, all) = (shown().len(), rules.list.rows().len());
        tr_with("{shown} of {all}", &[("shown", &shown), ("all", &all)])
    });
    let states = RULE_STATES.map(|(_, word)| word);
    let severities = SEVERITIES.map(|(_, word)| word);
    view! {
        <section class="min-w-0" aria-label=tr("Rules")>
            <div class="flex flex-wrap gap-x-3 gap-y-1 items-center mb-1">
                <h2 class="font-bold">{tr("Rules")} <span class="font-normal text-muted">" " {count}</span></h2>
                <div class="flex flex-wrap gap-2 ml-auto">
                    <input
                        class="input input-sm w-48"
                        type="search"
                        placeholder=tr("Filter")
                        aria-label=tr("Filter rules")
                        prop:value=move || words.get().unwrap_or_default()
                        on:input=move |event| route.set_param("q", Some(event_target_value(&event).as_str()).filter(|words| !words.is_empty()))
                        data-testid="rules-filter"
                    />
                    {choice(tr("State"), "state", state, tr("any state"), &states)}
                    {choice(tr("Severity"), "severity", grave, tr("any severity"), &severities)}
                </div>
            </div>
            <Absence of=rules empty=tr("No rules loaded.") />
            <table class="rows" data-testid="rules">
                <thead>
                    <tr>
                        <th>{tr("State")}</th>
                        <th>{tr("Rule")}</th>
                        <th class="hidden sm:table-cell">{tr("Severity")}</th>
                        <th class="hidden sm:table-cell" title=tr("How long the condition must hold before the rule fires")>{tr("For")}</th>
                        <th class="hidden sm:table-cell">{tr("Last fired")}</th>
                        <th class="hidden md:table-cell">{tr("Group")}</th>
                        <th class="number hidden lg:table-cell" title=tr("Duration of the last evaluation")>{tr("Took")}</th>
                    </tr>
                </thead>
                {each(shown, |row| view! { <Rule row /> }.into_any())}
            </table>
        </section>
    }
}

/// A select box whose first entry matches everything.
fn choice(
    label: &'static str,
    param: &'static str,
    chosen: Memo<Option<String>>,
    any: &'static str,
    words: &[&'static str],
) -> AnyView {
    let route = expect_context::<Route>();
    let option = |word: &&'static str| {
        let word = *word;
        let selected = Signal::derive(move || chosen.with(|chosen| chosen.as_deref() == Some(word)));
        view! { <option value=word prop:selected=selected>{tr(word)}</option> }.into_any()
    };
    let options: Vec<AnyView> = words.iter().map(option).collect();
    let choose = move |event| {
        route.set_param(
            param,
            Some(event_target_value(&event).as_str()).filter(|word| !word.is_empty()),
        );
    };
    view! {
        <select class="select select-sm w-auto" aria-label=label on:change=choose data-testid=format!("rules-{param}")>
            <option value="">{any}</option>
            {options}
        </select>
    }
    .into_any()
}

/// A row, and the details of the rule below it while it is open.
#[component]
fn Rule(row: Row<RuleView>) -> impl IntoView {
    let rule = row.signal();
    let state = move || rule.with(RuleState::of);
    let firing = Memo::new(move |_| rule.with(|rule| rule.alerts.len()));
    let open = RwSignal::new(false);
    let took = text(move || rule.with(|rule| format!("{} ms", fixed(rule.duration_s * 1_000.0, 1))));
    let (name, group) = row.peek(|rule| (rule.name.clone(), rule.group.clone()));
    let severity = row.peek(severity).map(severity_word);
    let hold = row.peek(|rule| match rule.for_ms {
        0 => "–".to_owned(),
        for_ms => DisplayDuration(for_ms).to_string(),
    });
    let fired_ms = Memo::new(move |_| rule.with(|rule| rule.last_fired_ms));
    let last = dynamic_view(move || match fired_ms.get() {
        Some(at_ms) => view! { <Ago at_ms /> }.into_any(),
        None => "–".into_any(),
    });
    let details = dynamic_view(move || {
        if open.get() {
            view! { <Details rule /> }.into_any()
        } else {
            empty_view()
        }
    });
    view! {
        <tbody data-testid="rule" data-rule=name.clone() data-state=text(move || state().word())>
            <tr>
                <td>
                    <span class=text(move || state().class())>
                        {text(move || tr(state().word()))}
                        <When on=move || { firing.get() > 1 }><span>{firing}</span></When>
                    </span>
                </td>
                <td class="max-w-0 w-full sm:w-auto sm:max-w-none">
                    <button class="link link-hover text-left break-all" aria-expanded=text(move || open.get().to_string()) on:click=move |_| open.update(|open| *open = !*open)>{name.clone()}</button>
                </td>
                <td class="hidden sm:table-cell">{severity.map(|(class, word)| view! { <span class=class>{word}</span> })}</td>
                <td class="hidden sm:table-cell">{hold}</td>
                <td class="hidden sm:table-cell">{last}</td>
                <td class="hidden md:table-cell text-muted">{group}</td>
                <td class="number hidden lg:table-cell">{took}</td>
            </tr>
            {details}
        </tbody>
    }
}

/// Expression and texts of a rule.
#[component]
fn Details(rule: RwSignal<RuleView>) -> impl IntoView {
    let error = text(move || rule.with(|rule| rule.error.clone().unwrap_or_default()));
    let evaluated_ms = Signal::derive(move || rule.with(|rule| rule.evaluated_ms));
    let expr = rule.with_untracked(|rule| rule.expr.trim().to_owned());
    let annotation = |title: &'static str, name: &str| {
        let words = rule.with_untracked(|rule| rule.annotations.get(name).unwrap_or_default().to_owned());
        (!words.is_empty()).then(|| view! { <p><b>{title}</b>{words}</p> }.into_any())
    };
    let [evaluated, ago] = tr_parts("evaluated {time}");
    view! {
        <tr>
            <td colspan="7" class="whitespace-normal">
                <div class="grid grid-cols-1 gap-1 py-2 max-w-5xl" data-testid="rule-details">
                    <p class="wrong empty:hidden">{error}</p>
                    <pre class="bg-base-200 p-2 text-xs whitespace-pre-wrap break-words">{expr}</pre>
                    {annotation(tr("Summary: "), "summary")}
                    {annotation(tr("Cause: "), "cause")}
                    {annotation(tr("What to do: "), "advice")}
                    <p class="text-xs text-muted">{evaluated} <Ago at_ms=evaluated_ms /> {ago}</p>
                </div>
            </td>
        </tr>
    }
}
