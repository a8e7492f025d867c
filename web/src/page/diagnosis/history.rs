//! Earlier diagnoses of the same rule with their handling, and the timeline of this diagnosis.

use domain::api::diagnoses::{SimilarDiagnosis, TimelineEntry};
use leptos::prelude::*;

use super::diagnosis_state::DiagnosisState;
use super::text::timeline_verb;
use crate::language::{tr, tr_parts, tr_with};
use crate::ui::{Heading, clock, empty_view, english};

/// Earlier diagnoses; nothing if there were none in the last 30 days.
#[component]
pub(super) fn Similar(state: DiagnosisState) -> AnyView {
    state.shown(|view| {
        let lines: Vec<AnyView> = view.similar.iter().map(one).collect();
        let hint = tr("Diagnoses of the same rule in the 30 days before, with their handling.");
        section(tr("Similar"), hint, "similar", lines)
    })
}

/// The timeline; nothing if it is empty.
#[component]
pub(super) fn Timeline(state: DiagnosisState) -> AnyView {
    state.shown(|view| {
        let lines: Vec<AnyView> = view.timeline.iter().map(entry).collect();
        let hint = tr("What people did, oldest first.");
        section(tr("Timeline"), hint, "timeline", lines)
    })
}

fn section(title: &'static str, hint: &'static str, id: &'static str, lines: Vec<AnyView>) -> AnyView {
    if lines.is_empty() {
        return empty_view();
    }
    view! {
        <section class="min-w-0" data-testid=id>
            <Heading text=title hint=hint />
            <ul class="grid grid-cols-1 gap-1 text-sm">{lines}</ul>
        </section>
    }
    .into_any()
}

fn one(similar: &SimilarDiagnosis) -> AnyView {
    let ended = match similar.resolved_ms {
        Some(at_ms) => tr_with(", ended {time}", &[("time", &clock(at_ms))]),
        None => tr(", still firing").to_owned(),
    };
    let helped = similar.helped.as_ref().map(|helped| format!(" · {helped}"));
    let wrong = similar.not_a_problem.then(|| tr(" · was not a problem"));
    view! {
        <li class="break-words">
            <span class="font-mono opacity-80">{clock(similar.fired_ms)}</span> " "
            <a class="link" lang="en" href=format!("/diagnoses/{}", similar.id)>{similar.summary.clone()}</a>
            <span class="opacity-80">{ended} {wrong} {helped}</span>
        </li>
    }
    .into_any()
}

fn entry(entry: &TimelineEntry) -> AnyView {
    let until = entry.until_ms.map_or_else(String::new, |at_ms| {
        tr_with(" until {time}", &[("time", &clock(at_ms))])
    });
    let colon = if entry.note.is_empty() { "" } else { ": " };
    let words = format!("{} {}{until}{colon}", entry.who, timeline_verb(&entry.kind));
    let note = match entry.kind.as_str() {
        // The title of the action. Other notes are in the language of the person who wrote them.
        "acted" => english(Signal::stored(entry.note.clone())),
        _ => entry.note.clone().into_any(),
    };
    let verdict = entry.verdict.as_ref().map(|verdict| {
        let [before, after] = tr_parts(". Before and after: {summary}");
        view! { {before} {english(Signal::stored(verdict.summary.clone()))} {after} }.into_any()
    });
    view! {
        <li class="break-words"><span class="font-mono opacity-80">{clock(entry.at_ms)}</span> " " {words} {note} {verdict}</li>
    }
    .into_any()
}
