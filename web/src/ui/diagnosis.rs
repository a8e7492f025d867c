//! A diagnosis: summary, culprit, reasons, advice, action and evidence.

use domain::api::alerts::{Diagnosis, Evidence, EvidenceValue};
use domain::metric::Unit;
use leptos::prelude::*;

use super::{
    Ago, diagnosis_href, dynamic_view, english, next_action, number, severity_class, severity_word, show,
    text,
};
use crate::language::{tr, tr_parts};
use crate::live::Row;

/// One diagnosis with folded evidence. Its values change in place; the card stays.
#[component]
pub(crate) fn DiagnosisCard(
    /// The diagnosis.
    row: Row<Diagnosis>,
) -> impl IntoView {
    let diagnosis = row.signal();
    let of = move |part: fn(&Diagnosis) -> &str| {
        text(move || diagnosis.with(|diagnosis| part(diagnosis).to_owned()))
    };
    let severity = Memo::new(move |_| diagnosis.with(|diagnosis| diagnosis.alert.severity));
    let evidence = Memo::new(move |_| diagnosis.with(|diagnosis| diagnosis.alert.evidence.clone()));
    let since_ms = Signal::derive(move || {
        diagnosis.with(|diagnosis| diagnosis.alert.fired_ms.unwrap_or(diagnosis.alert.active_ms))
    });
    let (rule, page) = row.peek(|diagnosis| (diagnosis.alert.rule.clone(), diagnosis_href(diagnosis)));
    let [since, ago] = tr_parts("since {time}");
    view! {
        <article
            class=text(move || format!("card bg-base-200 border-l-4 p-3 {}", severity_class(severity.get())))
            data-testid="diagnosis"
            data-rule=rule.clone()
        >
            <p class="flex flex-wrap gap-2 items-center text-sm">
                <span class=text(move || severity_word(severity.get()).0)>{text(move || severity_word(severity.get()).1)}</span>
                <span class="opacity-80">{rule.clone()}</span>
                <span class="opacity-80" lang="en">{of(|diagnosis| &diagnosis.culprit)}</span>
                <span class="opacity-80">{since} <Ago at_ms=since_ms /> {ago}</span>
            </p>
            <h3 class="font-bold mt-1 break-words"><a class="link" lang="en" href=page.clone()>{of(|diagnosis| &diagnosis.summary)}</a></h3>
            <p class="mt-1"><b>{tr("Why: ")}</b>{english(of(|diagnosis| &diagnosis.cause))}</p>
            <p class="mt-1"><b>{tr("What to do: ")}</b>{english(of(|diagnosis| &diagnosis.advice))}</p>
            <div class="flex flex-wrap gap-x-4 gap-y-2 mt-2 items-start">
                {next_action(Some(row))}
                <a class="btn btn-sm" href=page>{tr("Evidence and actions")}</a>
                <details class="grow min-w-0">
                    <summary class="cursor-pointer">{tr("Evidence: what was measured")}</summary>
                    {dynamic_view(move || {
                        let all: Vec<AnyView> = evidence.get().into_iter().map(|evidence| view! { <MeasuredValues evidence /> }.into_any()).collect();
                        all.into_any()
                    })}
                </details>
            </div>
        </article>
    }
}

/// The result of an evidence query at the start of the diagnosis.
#[component]
pub(crate) fn MeasuredValues(
    /// The query and its values.
    evidence: Evidence,
) -> impl IntoView {
    let common = common(&evidence.values);
    let value = |one: &EvidenceValue| {
        let number = number(&one.value).map_or(one.value.clone(), |value| show(value, Unit::Number));
        view! { <li><b>{number}</b> " " <span class="opacity-70">{different(one, &common)}</span></li> }
    };
    let is_empty = evidence.values.is_empty() && evidence.lines.is_empty();
    let lines = (!evidence.lines.is_empty()).then(|| evidence.lines.join("\n"));
    view! {
        <section class="mt-2" data-testid="evidence">
            <h4 class="font-semibold text-sm" lang="en">{evidence.title}</h4>
            <ul class="flex flex-wrap gap-x-4 text-sm">{evidence.values.iter().map(value).collect_view()}</ul>
            {lines.map(|lines| view! { <pre class="text-xs overflow-x-auto">{lines}</pre> })}
            {is_empty.then(|| view! { <p class="text-sm opacity-70">{tr("no data")}</p> })}
            <code class="text-xs break-all opacity-70">{evidence.query}</code>
        </section>
    }
}

/// Returns the labels that all values of a query share; they do not distinguish the values.
fn common(values: &[EvidenceValue]) -> Vec<String> {
    let Some((first, rest)) = values.split_first() else {
        return vec![];
    };
    let shared = |name: &str, value: &str| rest.iter().all(|other| other.labels.get(name) == Some(value));
    let labels = first
        .labels
        .iter()
        .filter(|label| shared(&label.name, &label.value));
    labels.map(|label| label.name.to_string()).collect()
}

fn different(one: &EvidenceValue, common: &[String]) -> String {
    let own = one
        .labels
        .iter()
        .filter(|label| common.iter().all(|shared| **shared != *label.name));
    own.map(|label| format!("{} {}", label.name, label.value))
        .collect::<Vec<_>>()
        .join(", ")
}
