//! The page of one diagnosis: summary, culprit, start, confidence, reasons, advice, what people did, changes before it; then the evidence, with
//! the stacks of a hang, similar diagnoses, and a file with all of it.

mod actions;
mod bundle;
mod changed;
mod diagnosis_state;
mod evidence;
mod facts;
mod handling;
mod history;
mod stacks;
mod text;

use leptos::prelude::*;

use crate::language::tr;
use crate::ui::{ErrorMessage, Title, When};
use actions::Actions;
use bundle::Bundle;
use changed::ChangedBefore;
use diagnosis_state::DiagnosisState;
use evidence::EvidenceCharts;
use facts::Facts;
use handling::HandlingButtons;
use history::{Similar, Timeline};
use stacks::RankStacks;

/// The page of one diagnosis.
#[component]
pub(crate) fn OneDiagnosis(
    /// The id of the diagnosis.
    id: String,
) -> impl IntoView {
    let state = DiagnosisState::of(id);
    let is_known = Memo::new(move |_| state.view.with(Option::is_some));
    view! {
        <Title of=tr("Diagnosis") />
        <div class="grid grid-cols-1 gap-6 max-w-7xl">
            <ErrorMessage what=state.problem><a href="/diagnoses" class="link">{tr("All diagnoses")}</a></ErrorMessage>
            <When on=move || !is_known.get() && state.problem.with(Option::is_none)><p class="opacity-70">{tr("Loading…")}</p></When>
            <When on=move || is_known.get()>
                <Facts state />
                <div class="flex flex-wrap gap-2 items-start">
                    <Actions state />
                    <HandlingButtons state />
                </div>
                <Timeline state />
                <ChangedBefore state />
                <EvidenceCharts state />
                <RankStacks state />
                <Similar state />
                <Bundle state />
            </When>
        </div>
    }
}
