//! What happened to the run and the node in the hour before.

use domain::api::diagnoses::ChangeBefore;
use leptos::prelude::*;

use super::loaded::Loaded;
use crate::ui::{Heading, clock, severity_word};

/// The newest first; a sentence where nothing is known to have changed.
#[component]
pub(super) fn ChangedBefore(loaded: Loaded) -> AnyView {
    loaded.shown(|view| {
        let changes: Vec<AnyView> = view.changed_before.iter().map(change).collect();
        let nothing = changes
            .is_empty()
            .then(|| view! { <p class="opacity-70">"Nothing that is known."</p> });
        view! {
            <section class="min-w-0" data-testid="changed-before">
                <Heading text="What changed before" hint="Events of its run and node, and what people did, in the hour before it began." />
                {nothing}
                <ul class="grid gap-1 text-sm">{changes}</ul>
            </section>
        }
        .into_any()
    })
}

fn change(change: &ChangeBefore) -> AnyView {
    let severity = change.severity.map(severity_word);
    let where_it_was = change.node.as_ref().map(|node| format!(" on {node}"));
    let who = change.who.as_ref().map(|who| format!(" by {who}"));
    view! {
        <li class="break-words">
            <span class="font-mono opacity-80">{clock(change.at_ms)}</span> " "
            {severity.map(|(class, word)| view! { <span class=class>{word}</span> " " })}
            {change.text.clone()} <span class="opacity-80">{where_it_was} {who}</span>
        </li>
    }
    .into_any()
}
