//! The charts of a run.

use leptos::prelude::*;

use crate::chart::Chart;
use crate::ui::Unit;

/// Step time by part, as one query: `(series, name of the line)`.
const PARTS: [(&str, &str); 6] = [
    ("train_step_seconds", "step"),
    ("train_data_seconds", "data"),
    ("train_forward_seconds", "forward"),
    ("train_backward_seconds", "backward"),
    ("train_sync_seconds", "sync"),
    ("train_optimizer_seconds", "optimizer"),
];

/// Six charts on one time axis.
#[component]
pub(super) fn Charts(run: String) -> impl IntoView {
    let of = |metric: &str| format!("{metric}{{run=\"{run}\"}}");
    let part = |(metric, name): (&str, &str)| {
        format!(
            "label_replace(avg({}), \"part\", \"{name}\", \"\", \"\")",
            of(metric)
        )
    };
    let split = PARTS.map(part).join(" or ");
    let sync = format!("{} / {}", of("train_sync_seconds"), of("train_step_seconds"));
    view! {
        <section class="grid gap-3 md:grid-cols-2" aria-label="Charts">
            <Chart title="Step time split" unit=Unit::Seconds query=split by="part" />
            <Chart title="Loss" unit=Unit::Plain query=of("train_loss") by="rank" />
            <Chart title="Gradient norm" unit=Unit::Plain query=of("train_grad_norm") by="rank" />
            <Chart title="Throughput, samples a second" unit=Unit::Plain query=of("train_samples_per_second") by="rank" />
            <Chart title="Share of a step waiting for sync" unit=Unit::Ratio query=sync by="rank" />
            <Chart title="Step" unit=Unit::Plain query=of("train_step") by="rank" />
        </section>
    }
}
