//! The overview, in this order: one sentence with the worst diagnosis, the goodput, GPUs that are held but idle, what needs attention, the
//! runs, every GPU, the five indicators.

mod attention;
mod first_steps;
mod goodput;
mod grid;
mod held_idle;
mod indicators;
mod runs;
mod sentence;

use leptos::prelude::*;

use crate::language::tr;
use crate::ui::Title;
use attention::Attention;
use first_steps::FirstSteps;
use goodput::Goodput;
use grid::GpuGrid;
use held_idle::HeldIdle;
use indicators::Indicators;
use runs::Runs;
use sentence::Sentence;

/// The overview, also used as a wall display.
#[component]
pub(crate) fn Overview() -> impl IntoView {
    view! {
        <Title of=tr("Overview") />
        <h1 class="sr-only">{tr("Overview")}</h1>
        <div class="grid grid-cols-1 gap-4">
            <Sentence />
            <Goodput />
            <HeldIdle />
            <Attention />
            <FirstSteps />
            <Runs />
            <GpuGrid />
            <Indicators />
        </div>
    }
}
