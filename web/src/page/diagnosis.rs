//! One diagnosis as an incident: what, who, since when, how sure, why, what to do, what changed before; then the evidence.

mod act;
mod changed;
mod evidence;
mod facts;
mod handle;
mod history;
mod loaded;
mod words;

use leptos::prelude::*;

use crate::ui::{Title, Trouble, When};
use act::Actions;
use changed::ChangedBefore;
use evidence::EvidenceCharts;
use facts::Facts;
use handle::Handle;
use history::{Similar, Timeline};
use loaded::Loaded;

/// The page.
#[component]
pub(crate) fn OneDiagnosis(
    /// The diagnosis' id.
    id: String,
) -> impl IntoView {
    let loaded = Loaded::of(id);
    let is_known = Memo::new(move |_| loaded.view.with(Option::is_some));
    view! {
        <Title of="Diagnosis" />
        <div class="grid grid-cols-1 gap-6 max-w-7xl">
            <Trouble what=loaded.problem><a href="/diagnoses" class="link">"All diagnoses"</a></Trouble>
            <When on=move || !is_known.get() && loaded.problem.with(Option::is_none)><p class="opacity-70">"Loading…"</p></When>
            <When on=move || is_known.get()>
                <Facts loaded />
                <Actions loaded />
                <Handle loaded />
                <ChangedBefore loaded />
                <EvidenceCharts loaded />
                <Similar loaded />
                <Timeline loaded />
            </When>
        </div>
    }
}
