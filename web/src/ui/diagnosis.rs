//! A diagnosis: what is wrong, who, why, what to do, and what was measured.

use domain::api::alerts::{Diagnosis, Evidence};
use leptos::prelude::*;

use super::{ago, severity_class};

/// One diagnosis, its evidence folded.
#[component]
pub(crate) fn DiagnosisCard(diagnosis: Diagnosis) -> impl IntoView {
    let alert = diagnosis.alert;
    let evidence = alert.evidence.clone();
    view! {
        <article class=format!("{} block", severity_class(alert.severity)) data-testid="diagnosis" data-rule=alert.rule.clone()>
            <h3 class="font-bold">{diagnosis.summary}</h3>
            <p class="text-sm opacity-80">
                {alert.rule.clone()} " · " {format!("{:?}", alert.severity).to_lowercase()} " · " {diagnosis.culprit} " · since " {ago(alert.active_ms)}
            </p>
            <p class="mt-2"><b>"Why: "</b>{diagnosis.cause}</p>
            <p><b>"What to do: "</b>{diagnosis.advice}</p>
            <details class="mt-2">
                <summary class="cursor-pointer">"Evidence"</summary>
                <EvidenceList evidence />
            </details>
        </article>
    }
}

#[component]
fn EvidenceList(evidence: Vec<Evidence>) -> impl IntoView {
    let one = |evidence: Evidence| {
        let values = evidence.values.into_iter().map(
            |value| view! { <li><code>{value.labels.to_string()}</code> " = " <b>{value.value}</b></li> },
        );
        view! {
            <section class="mt-2" data-testid="evidence">
                <h4 class="font-semibold">{evidence.title}</h4>
                <code class="text-xs break-all">{evidence.query}</code>
                <ul class="list-disc ml-5 text-sm break-all">{values.collect_view()}</ul>
            </section>
        }
    };
    evidence.into_iter().map(one).collect_view()
}
