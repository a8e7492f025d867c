//! What is wrong, how the five indicators stand, the GPUs, the runs.

mod grid;
mod indicators;
mod runs;

use leptos::prelude::*;

use crate::live::{Live, each};
use crate::ui::{DiagnosisCard, Heading, Title, When};
use grid::GpuGrid;
use indicators::Indicators;
use runs::Runs;

/// The first page.
#[component]
pub(crate) fn Overview() -> impl IntoView {
    view! {
        <Title of="Overview" />
        <h1 class="sr-only">"Overview"</h1>
        <div class="grid gap-8">
            <Indicators />
            <Diagnoses />
            <GpuGrid />
            <Runs />
        </div>
    }
}

#[component]
fn Diagnoses() -> impl IntoView {
    let all = expect_context::<Live>().diagnoses;
    view! {
        <section class="min-w-0">
            <Heading text="Diagnoses" hint="What is wrong right now, who or what causes it, and what to do about it. Each comes with the measurements it rests on." />
            <div class="grid gap-3" data-testid="diagnoses">
                <When on=move || !all.is_known()><p class="opacity-70">"Loading…"</p></When>
                <When on=move || all.is_empty()><p class="opacity-70">"Nothing is wrong that a rule knows of."</p></When>
                {each(move || all.rows(), |row| view! { <DiagnosisCard row linked=true /> }.into_any())}
            </div>
        </section>
    }
}
