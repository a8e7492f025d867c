//! The first screen: summary, culprit, start, confidence, reasons, advice.

use domain::api::diagnoses::DiagnosisView;
use domain::ident::{AttemptNo, Rank};
use domain::time::TimestampMs;
use leptos::prelude::*;

use super::diagnosis_state::DiagnosisState;
use super::text::{confidence, culprit, duration, since_ms};
use crate::language::{tr, tr_parts, tr_with};
use crate::live::without_backticks;
use crate::ui::{Ago, alert_badge, clock, severity_class, severity_word};

/// How long before the start of a diagnosis its log begins.
const BEFORE_MS: TimestampMs = 10_000;

/// The facts, in the order in which users need them.
#[component]
pub(super) fn Facts(state: DiagnosisState) -> AnyView {
    state.shown(facts)
}

fn facts(view: &DiagnosisView) -> AnyView {
    let diagnosis = &view.diagnosis;
    let alert = &diagnosis.alert;
    let (severity_colour, severity) = severity_word(alert.severity);
    let (state_class, state) = alert_badge(alert.state);
    let state = tr(state);
    let class = format!(
        "border-l-4 pl-3 grid grid-cols-1 gap-3 min-w-0 break-words {}",
        severity_class(alert.severity)
    );
    let log = diagnosis.who.rank.zip(diagnosis.run.as_deref());
    let log = log.map(|(rank, run)| {
        let (href, words) = (
            address_of_log(run, diagnosis.attempt, rank),
            tr_with("Log of rank {rank}", &[("rank", &rank)]),
        );
        view! { " · " <a class="link" href=href data-testid="culprit-log">{words}</a> }.into_any()
    });
    let lines = diagnosis.run.as_deref().map(|run| {
        let href = address_of_lines(run, diagnosis.attempt, since_ms(diagnosis));
        view! { " · " <a class="link" href=href data-testid="log-then">{tr("Log of all ranks at that time")}</a> }.into_any()
    });
    let run = diagnosis.run.clone().map(|run| {
        let [of_run, end] = tr_parts(" of run {run}");
        view! { {of_run} <a class="link font-mono" href=format!("/runs/{run}")>{run.clone()}</a> {end} }
            .into_any()
    });
    let attempt = diagnosis
        .attempt
        .map(|attempt| tr_with(", attempt {attempt}", &[("attempt", &attempt)]));
    let reason = |sentence: &String| {
        view! { <li class="break-words">{without_backticks(sentence.clone())}</li> }.into_any()
    };
    let reasons: Vec<AnyView> = view.why.iter().map(reason).collect();
    view! {
        <article class=class data-testid="incident">
            <p class="flex flex-wrap gap-x-3 text-sm">
                <span class=severity_colour>{severity}</span>
                <span class=state_class data-testid="incident-state">{state}</span>
                <span class="opacity-80">{alert.rule.clone()}</span>
            </p>
            <h1 class="text-xl font-bold break-words" lang="en" data-testid="what">{diagnosis.summary.clone()}</h1>
            <dl class="grid grid-cols-1 gap-x-4 gap-y-2 sm:grid-cols-[8rem_minmax(0,1fr)]">
                <dt class="font-semibold">{tr("Culprit")}</dt>
                <dd data-testid="who">{culprit(&diagnosis.who)} {run} {attempt} {log} {lines}</dd>
                <dt class="font-semibold">{tr("Since")}</dt>
                <dd data-testid="since">{since(view)}</dd>
                <dt class="font-semibold">{tr("Confidence")}</dt>
                <dd data-testid="how-sure">{confidence(&diagnosis.confidence)}</dd>
                <dt class="font-semibold">{tr("Why")}</dt>
                <dd data-testid="why"><ul class="list-disc ml-5" lang="en">{reasons}</ul></dd>
                <dt class="font-semibold">{tr("What to do")}</dt>
                <dd class="break-words" lang="en" data-testid="what-to-do">{diagnosis.advice.clone()}</dd>
            </dl>
        </article>
    }
    .into_any()
}

/// Returns the address of the log of a rank in an attempt; in the last attempt if it is unknown.
fn address_of_log(run: &str, attempt: Option<AttemptNo>, rank: Rank) -> String {
    let attempt = attempt.map_or_else(String::new, |attempt| format!("&attempt={attempt}"));
    format!("/runs/{run}?tab=log{attempt}&rank={rank}")
}

/// Returns the address of the lines of all ranks shortly before a diagnosis begins.
fn address_of_lines(run: &str, attempt: Option<AttemptNo>, since_ms: TimestampMs) -> String {
    let attempt = attempt.map_or_else(String::new, |attempt| format!("&attempt={attempt}"));
    format!("/runs/{run}?tab=log{attempt}&at={}", since_ms - BEFORE_MS)
}

/// Renders the start of the diagnosis and, once it has ended, its end and duration.
fn since(view: &DiagnosisView) -> AnyView {
    let begun_ms = since_ms(&view.diagnosis);
    let ended = view.diagnosis.alert.resolved_ms.map(|at_ms| {
        tr_with(
            "; ended {time} after {duration}",
            &[("time", &clock(at_ms)), ("duration", &duration(begun_ms, at_ms))],
        )
    });
    view! { {clock(begun_ms)} ", " <Ago at_ms=Signal::stored(begun_ms) /> {ended} }.into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_culprits_log_is_that_of_the_attempt() {
        for (attempt, expected) in [
            (Some(AttemptNo(2)), "/runs/llama-1?tab=log&attempt=2&rank=17"),
            (None, "/runs/llama-1?tab=log&rank=17"),
        ] {
            assert_eq!(address_of_log("llama-1", attempt, Rank(17)), expected);
        }
    }

    #[test]
    fn the_log_of_all_ranks_begins_before_the_diagnosis() {
        assert_eq!(
            address_of_lines("llama-1", Some(AttemptNo(2)), 70_000),
            "/runs/llama-1?tab=log&attempt=2&at=60000"
        );
    }
}
