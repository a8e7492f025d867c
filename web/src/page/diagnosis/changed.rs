//! Changes to the run and the node in the hour before the diagnosis.

use domain::api::diagnoses::ChangeBefore;
use leptos::prelude::*;

use super::diagnosis_state::DiagnosisState;
use crate::language::{tr, tr_with};
use crate::ui::{Heading, clock, severity_word};

/// The changes, in the order of the answer; a sentence if none are known.
#[component]
pub(super) fn ChangedBefore(state: DiagnosisState) -> AnyView {
    state.shown(|view| {
        let changes: Vec<AnyView> = view.changed_before.iter().map(change).collect();
        let empty = changes
            .is_empty()
            .then(|| view! { <p class="opacity-70">{tr("No known changes.")}</p> });
        view! {
            <section class="min-w-0" data-testid="changed-before">
                <Heading text=tr("What changed before") hint=tr("Events and user actions on its run and node in the hour before it began.") />
                {empty}
                <ul class="grid grid-cols-1 gap-1 text-sm">{changes}</ul>
            </section>
        }
        .into_any()
    })
}

fn change(change: &ChangeBefore) -> AnyView {
    let severity = change.severity.map(severity_word);
    let where_it_was = change
        .node
        .as_ref()
        .map(|node| tr_with(" on {node}", &[("node", node)]));
    let who = change
        .who
        .as_ref()
        .map(|who| tr_with(" by {who}", &[("who", who)]));
    view! {
        <li class="break-words">
            <span class="font-mono opacity-80">{clock(change.at_ms)}</span> " "
            {severity.map(|(class, word)| view! { <span class=class>{word}</span> " " })}
            <span lang="en">{change.text.clone()}</span> <span class="opacity-80">{where_it_was} {who}</span>
        </li>
    }
    .into_any()
}
