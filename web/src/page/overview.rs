//! Who is to blame, what needs you, the runs, every GPU, and the five indicators, in this order.

mod attention;
mod first_steps;
mod grid;
mod indicators;
mod newest;
mod runs;
mod sentence;

use leptos::prelude::*;

use crate::ui::Title;
use attention::Attention;
use first_steps::FirstSteps;
use grid::GpuGrid;
use indicators::Indicators;
use runs::Runs;
use sentence::Sentence;

/// The first page, also the one on the wall.
#[component]
pub(crate) fn Overview() -> impl IntoView {
    view! {
        <Title of="Overview" />
        <h1 class="sr-only">"Overview"</h1>
        <div class="grid grid-cols-1 gap-4">
            <Sentence />
            <FirstSteps />
            <Attention />
            <Runs />
            <GpuGrid />
            <Indicators />
        </div>
    }
}
