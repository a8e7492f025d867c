//! Provenance of an attempt, folded: enough to reproduce it.

use domain::api::runs::Provenance;
use leptos::prelude::*;

use crate::language::tr;

/// Renders the provenance as a disclosure.
pub(super) fn shown(provenance: &Provenance) -> AnyView {
    let facts = [
        (tr("Commit"), &provenance.commit),
        (tr("Image"), &provenance.image_digest),
        (tr("Seed"), &provenance.seed),
    ];
    let facts = facts
        .iter()
        .filter_map(|(name, value)| Some(fact(name, value.as_deref()?)));
    let facts: Vec<AnyView> = facts.collect();
    let env: Vec<String> = provenance
        .env
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let lists = [
        (tr("Environment"), env.join("\n")),
        (tr("Packages"), provenance.packages.join("\n")),
    ];
    let lists = lists.into_iter().filter(|(_, lines)| !lines.is_empty());
    let lists: Vec<AnyView> = lists.map(|(name, lines)| list(name, lines)).collect();
    view! {
        <details class="mt-2" data-testid="provenance">
            <summary class="cursor-pointer text-sm">{tr("Provenance: commit, packages, environment")}</summary>
            {facts}
            {lists}
        </details>
    }
    .into_any()
}

fn fact(name: &'static str, value: &str) -> AnyView {
    view! { <p class="text-sm break-all"><b>{name} ": "</b>{value.to_owned()}</p> }.into_any()
}

fn list(name: &'static str, lines: String) -> AnyView {
    view! {
        <h4 class="text-sm font-semibold mt-1">{name}</h4>
        <pre class="bg-base-300 rounded p-2 text-xs max-h-40 overflow-auto" tabindex="0" role="region" aria-label=name>{lines}</pre>
    }
    .into_any()
}
