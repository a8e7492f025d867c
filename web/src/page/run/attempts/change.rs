//! What an attempt changed against the one before it, what its ranks said of that, and whether it was worth it.

use domain::api::runs::AttemptView;
use domain::run::knob::{Change, Decision, How, KnobAnswer, KnobDiff, Verdict};
use leptos::prelude::*;

use crate::ui::nothing;

/// Nothing for an attempt that changed nothing.
pub(super) fn shown((change, answers): &(Option<Change>, Vec<KnobAnswer>)) -> AnyView {
    let Some(change) = change else {
        return nothing();
    };
    let lines: Vec<AnyView> = change.set.iter().map(line).collect();
    let answers: Vec<AnyView> = answers.iter().map(answer).collect();
    let notes: Vec<AnyView> = change
        .reason
        .iter()
        .chain(&change.warnings)
        .map(|text| note(text))
        .collect();
    view! {
        <div class="mt-2" data-testid="change">
            {lines}
            {notes}
            {answers}
            {change.verdict.as_ref().map_or_else(nothing, verdict)}
        </div>
    }
    .into_any()
}

/// The parts of an attempt that this shows.
pub(super) fn of(attempt: &AttemptView) -> (Option<Change>, Vec<KnobAnswer>) {
    (attempt.change.clone(), attempt.answers.clone())
}

fn line(diff: &KnobDiff) -> AnyView {
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "as the script has it".into());
    let class = if diff.how == How::Injected {
        "badge badge-sm badge-warning"
    } else {
        "badge badge-sm badge-neutral"
    };
    view! {
        <p class="text-sm break-words">
            <b class="font-mono">{diff.knob.clone()}</b> ": " {value(&diff.old)} " → " <b>{value(&diff.new)}</b> " "
            <span class=class>{diff.how.words()}</span>
        </p>
    }
    .into_any()
}

fn note(text: &str) -> AnyView {
    view! { <p class="text-sm break-words">{text.to_owned()}</p> }.into_any()
}

fn answer(answer: &KnobAnswer) -> AnyView {
    let state = if answer.applied {
        "in the script"
    } else {
        "not turned"
    };
    note(&format!(
        "{}={} {state}: {}",
        answer.knob, answer.value, answer.detail
    ))
}

fn verdict(verdict: &Verdict) -> AnyView {
    let class = match verdict.decision {
        Decision::Kept | Decision::Better => "badge badge-sm badge-success",
        Decision::Rejected | Decision::Worse | Decision::NotApplied => "badge badge-sm badge-error",
        _ => "badge badge-sm badge-neutral",
    };
    view! {
        <p class="text-sm break-words" data-testid="verdict">
            <span class=class>{verdict.decision.words()}</span> " " {verdict.summary.clone()}
        </p>
    }
    .into_any()
}
