//! Memory of the run's ranks by component.

use domain::metric::Unit;
use leptos::prelude::*;

use crate::chart::{Chart, Marks, Naming, Window};
use crate::language::{marked, tr};
use crate::ui::Heading;

/// Names of the parts of a GPU's memory.
const PARTS: [&str; 4] = [
    marked("allocated"),
    marked("reserved, not allocated"),
    marked("others on the GPU"),
    marked("free"),
];
/// The parts are stacked.
const STACK: Naming = Naming::by("part").ordered(&PARTS).stacked();
/// One line per rank.
const RANKS: Naming = Naming::by("rank");
/// The text if there is no data.
const NO_CUDA: &str = marked("No rank of this run uses CUDA memory.");

/// The charts of memory.
#[component]
pub(super) fn Memory(
    /// The run's id.
    id: String,
    /// The period shown.
    window: Memo<Window>,
    /// The starts of attempts.
    marks: Memo<Marks>,
) -> impl IntoView {
    let of = |metric: &str| format!("{metric}{{run=\"{id}\"}}");
    let charts = [
        (
            tr("GPU memory by component"),
            tr(
                "Of the rank with the most in use, at its peaks since it started. The sum is the size of its GPU.",
            ),
            components(&id),
            STACK,
        ),
        (
            tr("Allocated"),
            tr("In use by tensors: the peak since the rank started."),
            of("train_memory_allocated_bytes"),
            RANKS,
        ),
        (
            tr("Reserved"),
            tr("Held by the allocator: the peak since the rank started."),
            of("train_memory_reserved_bytes"),
            RANKS,
        ),
        (
            tr("Fragmentation"),
            tr("Reserved, but unusable: the rest of its block is in use."),
            of("train_memory_split_bytes"),
            RANKS,
        ),
        (
            tr("Kept for the backward pass"),
            tr("Activations: what activation checkpointing saves."),
            of("train_saved_tensor_bytes"),
            RANKS,
        ),
        (
            tr("Host memory"),
            tr("Resident memory of the rank's process."),
            of("train_host_memory_bytes"),
            RANKS,
        ),
    ];
    let chart = |(title, hint, query, naming): (&'static str, &'static str, String, Naming)| {
        view! { <Chart window marks title hint unit=Unit::Bytes query naming empty=tr(NO_CUDA) /> }.into_any()
    };
    let charts: Vec<AnyView> = charts.into_iter().map(chart).collect();
    view! {
        <section class="min-w-0" data-testid="memory">
            <Heading text=tr("Memory") hint=tr("Allocated memory is in use by tensors. Reserved memory is held by PyTorch's allocator. The difference is its cache and fragments.") />
            <div class="grid grid-cols-1 gap-3 lg:grid-cols-2">{charts}</div>
        </section>
    }
}

/// Returns the query for allocated, cached, other and free memory of the fullest GPU of the run, each with its name.
fn components(id: &str) -> String {
    let of = |metric: &str| format!("max({metric}{{run=\"{id}\"}})");
    let (allocated, reserved) = (
        of("train_memory_allocated_bytes"),
        of("train_memory_reserved_bytes"),
    );
    let on_gpus =
        |metric: &str| format!("max({metric} and on (node, gpu) gpu_assignment_info{{run=\"{id}\"}})");
    let (used, total) = (
        on_gpus("gpu_memory_used_bytes"),
        on_gpus("gpu_memory_total_bytes"),
    );
    let parts = [
        (allocated.clone(), PARTS[0]),
        (format!("({reserved} - {allocated})"), PARTS[1]),
        (format!("clamp_min({used} - {reserved}, 0)"), PARTS[2]),
        // The peak of the reserved memory can be above what is used now.
        (
            format!("clamp_min({total} - ({used} > {reserved} or {reserved} or {used}), 0)"),
            PARTS[3],
        ),
    ];
    let named =
        parts.map(|(query, name)| format!("label_replace({query}, \"part\", \"{name}\", \"\", \"\")"));
    named.join(" or ")
}
