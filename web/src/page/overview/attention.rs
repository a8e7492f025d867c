//! *Needs attention*: one line per active diagnosis, worst first.

use domain::api::alerts::Diagnosis;
use leptos::prelude::*;

use crate::language::tr;
use crate::live::{Live, Row, each};
use crate::ui::{Ago, When, diagnosis_href, english, severity_word, text};

/// The list; hidden if there are no active diagnoses.
#[component]
pub(super) fn Attention() -> impl IntoView {
    let all = expect_context::<Live>().diagnoses;
    view! {
        <When on=move || all.is_known() && !all.is_empty()>
            <section class="min-w-0" aria-label=tr("Needs attention")>
                <h2 class="font-bold mb-1">{tr("Needs attention")}</h2>
                <ul class="border-t border-base-300" data-testid="diagnoses">
                    {each(move || all.rows(), |row| view! { <Line row /> }.into_any())}
                </ul>
            </section>
        </When>
    }
}

/// One diagnosis: culprit and summary; if opened, reasons and advice.
#[component]
fn Line(row: Row<Diagnosis>) -> impl IntoView {
    let diagnosis = row.signal();
    let of = move |part: fn(&Diagnosis) -> &str| {
        text(move || diagnosis.with(|diagnosis| part(diagnosis).to_owned()))
    };
    let severity = move || diagnosis.with(|diagnosis| severity_word(diagnosis.alert.severity));
    let since_ms = Signal::derive(move || {
        diagnosis.with(|diagnosis| diagnosis.alert.fired_ms.unwrap_or(diagnosis.alert.active_ms))
    });
    let (rule, href) = row.peek(|diagnosis| (diagnosis.alert.rule.clone(), diagnosis_href(diagnosis)));
    view! {
        <li class="border-b border-base-300" data-testid="needs-you" data-rule=rule>
            <details>
                <summary class="cursor-pointer flex flex-wrap gap-x-3 items-center min-h-(--row)">
                    <span class=text(move || severity().0)>{text(move || severity().1)}</span>
                    <span class="min-w-0 break-words" lang="en">{of(|diagnosis| &diagnosis.summary)}</span>
                    <span class="text-muted" lang="en">{of(|diagnosis| &diagnosis.culprit)}</span>
                    <span class="text-muted"><Ago at_ms=since_ms /></span>
                </summary>
                <div class="pb-2 grid gap-1">
                    <p><b>{tr("Why: ")}</b>{english(of(|diagnosis| &diagnosis.cause))}</p>
                    <p><b>{tr("What to do: ")}</b>{english(of(|diagnosis| &diagnosis.advice))}</p>
                    <p><a class="link inline-flex items-center min-h-(--row)" href=href>{tr("Evidence and actions")}</a></p>
                </div>
            </details>
        </li>
    }
}
