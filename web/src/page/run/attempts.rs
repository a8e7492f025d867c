//! Attempts of a run: cause, checkpoint, nodes, outcome and the rank that failed first.

mod node;
mod provenance;

use domain::api::runs::{AttemptView, ExcludedNode, ResumedFrom};
use domain::ident::Rank;
use leptos::prelude::*;

use super::cause::cause;
use super::change_dialog::ChangeDialog;
use super::followed::followed;
use super::run_signal::RunSignal;
use crate::language::{tr, tr_parts, tr_with};
use crate::live::{Row, each};
use crate::ui::{Heading, clock, dynamic_view, empty_view, text};
use node::Node;
use provenance::shown as provenance_shown;

/// The list of attempts: the last one is open, earlier ones are folded.
#[component]
pub(super) fn Attempts(
    /// The run.
    run: RunSignal,
    /// The dialog that excludes a node.
    dialog: ChangeDialog,
) -> impl IntoView {
    let attempts = followed(move || {
        run.with(|run| {
            run.as_ref()
                .map(|run| run.more.attempts.clone())
                .unwrap_or_default()
        })
    });
    let newest_first = move || {
        let mut rows = attempts.rows();
        rows.reverse();
        rows
    };
    let is_last = move |key: &str| {
        untrack(|| attempts.rows())
            .last()
            .is_some_and(|last| last.key == key)
    };
    view! {
        <section class="min-w-0">
            <Heading text=tr("Attempts and ranks") hint=tr("Each start of the run, its processes per node, and how they ended. The rank that failed first is marked; ranks that failed because of it are pale.") />
            <div class="grid grid-cols-1 gap-2">{each(newest_first, move |row| view! { <Attempt open=is_last(&row.key) row dialog /> }.into_any())}</div>
        </section>
    }
}

/// `open`: the initial state; afterwards the user decides.
#[component]
fn Attempt(row: Row<AttemptView>, open: bool, dialog: ChangeDialog) -> impl IntoView {
    let attempt = row.signal();
    let of = move |part: fn(&AttemptView) -> String| text(move || attempt.with(part));
    let nodes = followed(move || attempt.with(|attempt| attempt.nodes.clone()));
    let root = Memo::new(move |_| attempt.with(root_cause));
    let excluded = Memo::new(move |_| attempt.with(|attempt| attempt.excluded.clone()));
    let number = attempt.with_untracked(|attempt| attempt.attempt);
    let can_exclude = Memo::new(move |_| dialog.can_exclude(number));
    let warnings = Memo::new(move |_| attempt.with(|attempt| attempt.warnings.clone()));
    let provenance = Memo::new(move |_| attempt.with(|attempt| attempt.provenance.clone()));
    view! {
        <details class="card bg-base-200 p-3" open=open data-testid="attempt">
            <summary class="cursor-pointer break-words">
                <b>{tr_with("Attempt {number}", &[("number", &row.key)])}</b> " (" {of(|attempt| cause(&attempt.cause).to_owned())} "): " {of(outcome)}
            </summary>
            <p class="text-sm opacity-80 mt-1 break-words" data-testid="attempt-facts">{of(facts)}</p>
            <p class="text-sm opacity-80 break-words empty:hidden" data-testid="attempt-knobs">{of(knobs)}</p>
            {dynamic_view(move || warnings.get().iter().map(|words| warning(words)).collect::<Vec<AnyView>>().into_any())}
            {dynamic_view(move || excluded.get().iter().map(not_given).collect::<Vec<AnyView>>().into_any())}
            {each(move || nodes.rows(), move |row| view! { <Node row attempt=number root can_exclude dialog /> }.into_any())}
            {dynamic_view(move || provenance.get().as_ref().map_or_else(empty_view, provenance_shown))}
        </details>
    }
}

fn outcome(attempt: &AttemptView) -> String {
    let message = attempt
        .outcome
        .as_ref()
        .map(|outcome| outcome.message.to_string());
    message.unwrap_or_else(|| tr("active").to_owned())
}

/// Returns the rank that failed first.
fn root_cause(attempt: &AttemptView) -> Option<Rank> {
    attempt.outcome.as_ref().and_then(|outcome| outcome.rank)
}

/// Returns when the attempt ran, its last step, and its checkpoint.
fn facts(attempt: &AttemptView) -> String {
    let started = clock(attempt.started_ms);
    let period = attempt.ended_ms.map_or_else(
        || started.clone(),
        |at_ms| tr_with("{start} to {end}", &[("start", &started), ("end", &clock(at_ms))]),
    );
    let last = attempt
        .last_step
        .map(|step| tr_with("last step {step}", &[("step", &step)]));
    let from = attempt.resumed_from.as_ref().map(resumed);
    let diverged = attempt
        .last_good_step
        .map(|step| tr_with("loss diverged after step {step}", &[("step", &step)]));
    let facts = [Some(period), last, from, diverged].into_iter().flatten();
    facts.collect::<Vec<String>>().join(" · ")
}

/// Returns the knobs that are set; empty if there are none.
fn knobs(attempt: &AttemptView) -> String {
    if attempt.knobs.is_empty() {
        return String::new();
    }
    let knobs = attempt.knobs.iter();
    let knobs: Vec<String> = knobs.map(|(name, value)| format!("{name}={value}")).collect();
    tr_with("Knobs: {knobs}", &[("knobs", &knobs.join(", "))])
}

/// Renders a difference between the nodes, or another possible problem.
fn warning(words: &str) -> AnyView {
    view! { <p class="text-sm break-words" data-testid="attempt-warning"><span class="state state-warning">{tr("warning")}</span> " " {words.to_owned()}</p> }
        .into_any()
}

fn resumed(from: &ResumedFrom) -> String {
    match from.step {
        Some(step) => tr_with(
            "resumed from step {step}, {path}",
            &[("step", &step), ("path", &from.path)],
        ),
        None => tr_with("resumed from {path}", &[("path", &from.path)]),
    }
}

fn not_given(excluded: &ExcludedNode) -> AnyView {
    let [before, between, end] = tr_parts("Excluded {node}: {reason}");
    view! { <p class="text-sm break-words">{before} <span class="font-mono">{excluded.node.clone()}</span> {between} {excluded.reason.clone()} {end}</p> }
        .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knobs_are_listed_by_name() {
        let mut attempt: AttemptView =
            serde_json::from_str(r#"{"attempt":1,"cause":"submitted","started_ms":0,"nodes":[]}"#)
                .expect("an attempt");
        assert_eq!(knobs(&attempt), "");
        for (name, value) in [("num_workers", "4"), ("amp", "bf16")] {
            attempt.knobs.insert(name.to_owned(), value.to_owned());
        }
        assert_eq!(knobs(&attempt), "Knobs: amp=bf16, num_workers=4");
    }
}
