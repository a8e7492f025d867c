//! The open diagnoses of the run: a card for the first one, and one line for each of the others.

use domain::api::alerts::Diagnosis;
use leptos::prelude::*;

use super::run_signal::RunSignal;
use super::unobserved;
use crate::language::tr;
use crate::live::{Live, Row, each};
use crate::ui::{DiagnosisCard, diagnosis_href, dynamic_view, severity_word, text};

/// The section; empty if there are none. The order is that of the collector: the most severe first, then the oldest first.
#[component]
pub(super) fn RunDiagnoses(
    /// The run's id.
    id: String,
    /// The run.
    run: RunSignal,
) -> impl IntoView {
    let all = expect_context::<Live>().diagnoses;
    let unobserved = unobserved::lines(run);
    let ours = move || {
        let mut rows = all.rows();
        // Unobserved actions have their own section, unless the nodes are too old to report them for it.
        let has_section = unobserved.with(|lines| !lines.is_empty());
        rows.retain(|row| {
            row.peek(|diagnosis| {
                let alert = &diagnosis.alert;
                alert.labels.get("run") == Some(id.as_str()) && !(has_section && alert.is_shown_as_notes())
            })
        });
        rows
    };
    let listed = ours.clone();
    let first = Memo::new(move |_| listed().into_iter().next().map(|row| row.key));
    let card_or_line = move |row: Row<Diagnosis>| {
        dynamic_view(move || {
            if first.with(|first| first.as_ref() == Some(&row.key)) {
                view! { <DiagnosisCard row=row.clone() /> }.into_any()
            } else {
                line(&row)
            }
        })
    };
    view! { <section class="grid gap-3 empty:hidden" aria-label=tr("Diagnoses of this run")>{each(ours, card_or_line)}</section> }
}

/// Renders a diagnosis as one line with a link to its page.
fn line(row: &Row<Diagnosis>) -> AnyView {
    let diagnosis = row.signal();
    // The severity is one of the labels, so an alert with another severity is another row.
    let (rule, href, (class, word)) = row.peek(|diagnosis| {
        let alert = &diagnosis.alert;
        (
            alert.rule.clone(),
            diagnosis_href(diagnosis),
            severity_word(alert.severity),
        )
    });
    let summary = text(move || diagnosis.with(|diagnosis| diagnosis.summary.clone()));
    view! {
        <p class="min-w-0 break-words" data-testid="also" data-rule=rule>
            {tr("Also: ")} <span class=class>{word}</span> " "
            <a class="link" lang="en" href=href>{summary}</a>
        </p>
    }
    .into_any()
}
