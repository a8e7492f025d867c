//! A diagnosis in the list: one line on a desktop, a few on a phone.

use domain::api::alerts::Diagnosis;
use domain::time::DisplayDuration;
use leptos::prelude::*;

use crate::language::{tr, tr_parts, tr_with};
use crate::live::Row;
use crate::ui::{Ago, diagnosis_href, dynamic_view, severity_class, severity_word};

/// Renders the line; again when the diagnosis changes.
pub(super) fn row(row: &Row<Diagnosis>) -> AnyView {
    let diagnosis = row.signal();
    let rule = row.peek(|diagnosis| diagnosis.alert.rule.clone());
    view! { <li data-testid="diagnosis-row" data-rule=rule>{dynamic_view(move || diagnosis.with(line))}</li> }
        .into_any()
}

fn line(diagnosis: &Diagnosis) -> AnyView {
    let severity = diagnosis.alert.severity;
    let (class, word) = severity_word(severity);
    let run = diagnosis.run.clone().map(|run| {
        view! { <a class="link font-mono" href=format!("/runs/{run}")>{run.clone()}</a> }.into_any()
    });
    let frame = format!(
        "bg-base-200 border-l-4 rounded px-3 py-2 grid grid-cols-1 break-words gap-x-4 gap-y-1 sm:grid-cols-[minmax(0,1fr)_auto] {}",
        severity_class(severity)
    );
    let [since_text, ago] = tr_parts("since {time}");
    view! {
        <div class=frame>
            <p class="min-w-0">
                <span class=class>{word}</span> " "
                <a href=diagnosis_href(diagnosis) class="font-semibold link break-words" lang="en">{diagnosis.summary.clone()}</a>
            </p>
            <p class="text-sm flex flex-wrap gap-x-3 sm:justify-end">
                <span lang="en">{diagnosis.culprit.clone()}</span>
                {run}
                <span class="opacity-80">{since_text} <Ago at_ms=Signal::stored(since(diagnosis)) /> {ago} {lasted(diagnosis)}</span>
            </p>
            <p class="text-xs opacity-80 sm:col-span-2">{diagnosis.alert.rule.clone()} {handling(diagnosis)}</p>
        </div>
    }
    .into_any()
}

/// Returns true if the text of the line contains all of `words`, which are in lower case.
pub(super) fn matches(diagnosis: &Diagnosis, words: &str) -> bool {
    let labels = diagnosis.alert.labels.to_string();
    let texts = [
        &diagnosis.summary,
        &diagnosis.culprit,
        &diagnosis.alert.rule,
        &labels,
    ];
    words
        .split_whitespace()
        .all(|word| texts.iter().any(|text| text.to_lowercase().contains(word)))
}

fn since(diagnosis: &Diagnosis) -> i64 {
    diagnosis.alert.fired_ms.unwrap_or(diagnosis.alert.active_ms)
}

/// Returns `, lasted 4m` for a diagnosis that has ended.
fn lasted(diagnosis: &Diagnosis) -> Option<String> {
    let ended_ms = diagnosis.alert.resolved_ms?;
    let whole_seconds_ms = (ended_ms - since(diagnosis)).max(0) / 1_000 * 1_000;
    Some(tr_with(
        ", lasted {duration}",
        &[("duration", &DisplayDuration(whole_seconds_ms))],
    ))
}

/// Returns the handling, shown after the rule's name.
fn handling(diagnosis: &Diagnosis) -> String {
    let handling = &diagnosis.handling;
    let mut words = String::new();
    let mut add = |part: &str| {
        words += " · ";
        words += part;
    };
    if let Some(mark) = &handling.acknowledged {
        add(&tr_with("acknowledged by {who}", &[("who", &mark.who)]));
    }
    if handling.not_a_problem.is_some() {
        add(tr("marked as not a problem"));
    }
    if handling.silenced_until_ms.is_some() {
        add(tr("silenced"));
    }
    match handling.notes {
        0 => {}
        1 => add(tr("1 note")),
        many => add(&tr_with("{count} notes", &[("count", &many)])),
    }
    words
}
