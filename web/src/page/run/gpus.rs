//! The GPUs of the run's ranks: load, clock, temperature, memory and links.

use domain::metric::{Unit, unit_of};
use leptos::prelude::*;

use crate::chart::{Chart, Marks, Naming, Window};
use crate::language::{marked, tr};
use crate::ui::Heading;

/// One line per rank, which stands for its GPU.
const RANKS: Naming = Naming::by("rank");
/// The text if there is no data.
const NO_GPU: &str = marked("No data: the run uses no GPU, or this GPU model does not report it.");

/// The charts: `(title, hint, metric)`.
const CHARTS: [(&str, &str, &str, Unit); 6] = [
    (
        marked("SM active"),
        marked("Share of time in which the multiprocessors had work."),
        "gpu_sm_active_ratio",
        unit_of("gpu_sm_active_ratio"),
    ),
    (
        marked("Tensor cores active"),
        marked("Share of time in which tensor cores computed."),
        "gpu_tensor_active_ratio",
        unit_of("gpu_tensor_active_ratio"),
    ),
    (
        marked("Power"),
        marked("Board power. It shows the work done better than utilization."),
        "gpu_power_watts",
        unit_of("gpu_power_watts"),
    ),
    (
        marked("SM clock"),
        marked("A GPU with a lower clock than its peers holds all of them back."),
        "gpu_sm_clock_hertz",
        unit_of("gpu_sm_clock_hertz"),
    ),
    (
        marked("Temperature"),
        marked("Of the chip."),
        "gpu_temperature_celsius",
        unit_of("gpu_temperature_celsius"),
    ),
    (
        marked("Memory in use"),
        marked("Of the whole GPU, all processes."),
        "gpu_memory_used_bytes",
        unit_of("gpu_memory_used_bytes"),
    ),
];

/// One line per kind of link.
const LINKS: Naming = Naming::by("link");

/// The charts of the GPUs.
#[component]
pub(super) fn Gpus(
    /// The run's id.
    id: String,
    /// The period shown.
    window: Memo<Window>,
    /// The starts of attempts.
    marks: Memo<Marks>,
) -> impl IntoView {
    let busiest = format!("max by (link) ({})", assigned("link_utilization_ratio", &id));
    let links = (
        marked("Busiest link"),
        marked("Utilization of the run's busiest link of each kind, relative to its maximum."),
        busiest,
        Unit::Ratio,
        LINKS,
    );
    let charts = CHARTS
        .into_iter()
        .map(|(title, hint, metric, unit)| (title, hint, of_ranks(metric, &id), unit, RANKS));
    let chart = |(title, hint, query, unit, naming): (&'static str, &'static str, String, Unit, Naming)| {
        view! { <Chart window marks title=tr(title) hint=tr(hint) unit query naming empty=tr(NO_GPU) /> }
            .into_any()
    };
    let charts: Vec<AnyView> = charts.chain([links]).map(chart).collect();
    view! {
        <section class="min-w-0" data-testid="gpus">
            <Heading text=tr("GPUs of the run") hint=tr("One line per rank, which stands for its GPU.") />
            <div class="grid grid-cols-1 gap-3 lg:grid-cols-2">{charts}</div>
        </section>
    }
}

/// Returns the query of a metric for the GPUs of the run.
fn assigned(metric: &str, id: &str) -> String {
    format!("{metric} and on (node, gpu) gpu_assignment_info{{run=\"{id}\"}}")
}

/// The same, with the rank that uses the GPU in each series.
fn of_ranks(metric: &str, id: &str) -> String {
    format!(
        "{metric} * on (node, gpu) group_left (rank) max by (node, gpu, rank) (gpu_assignment_info{{run=\"{id}\"}})"
    )
}
