//! The charts of a run.

use domain::api::alerts::Diagnosis;
use domain::metric::Unit;
use domain::series::Labels;
use leptos::prelude::*;

use super::logged::Logged;
use super::view::{ChooseMarks, ChooseSpan, View};
use crate::chart::{Chart, Naming, STEP};
use crate::language::{marked, tr};
use crate::live::{Live, Row};
use crate::ui::Heading;

/// Parts of a step for one query: `(series, name of the part)`.
const PARTS: [(&str, &str); 7] = [
    ("train_data_seconds", marked("data")),
    ("train_forward_seconds", marked("forward")),
    ("train_backward_seconds", marked("backward")),
    ("train_sync_seconds", marked("exposed sync")),
    ("train_bubble_seconds", marked("pipeline wait")),
    ("train_optimizer_seconds", marked("optimizer")),
    ("train_host_seconds", marked("other")),
];

/// The line over the parts: the longest step of the slowest rank. The mean over ranks would hide it.
const SLOWEST: &str = marked("slowest rank");

/// The parts are stacked.
const STACK: Naming = Naming::by("part")
    .ordered(&[
        PARTS[0].1, PARTS[1].1, PARTS[2].1, PARTS[3].1, PARTS[4].1, PARTS[5].1, PARTS[6].1, SLOWEST,
    ])
    .stacked()
    .with_rank_over(SLOWEST);

/// Charts of one series per rank that are hidden if a run does not have it: `(title, hint, unit, series)`.
const OPTIONAL: [(&str, &str, Unit, &str); 7] = [
    (
        marked("Learning rate"),
        marked("Used by the optimizer; the highest of its parameter groups."),
        Unit::Number,
        "train_learning_rate",
    ),
    (
        marked("MFU"),
        marked("Model FLOPs utilization: the share of the GPU's peak that trains the model."),
        Unit::Ratio,
        "train_mfu_ratio",
    ),
    (
        marked("RPC latency"),
        marked("Time of a remote call as the script measures it: the median in a step."),
        Unit::Seconds,
        "train_rpc_seconds",
    ),
    (
        marked("Longest RPC"),
        marked(
            "The longest remote call in a step. One rank far above the others has a slow connection or a slow peer.",
        ),
        Unit::Seconds,
        "train_rpc_seconds_max",
    ),
    (
        marked("Buffer depth"),
        marked("Gradients that wait on the parameter server: the maximum in a step."),
        Unit::Count,
        "train_rpc_buffer_depth",
    ),
    (
        marked("Gradient staleness"),
        marked(
            "Updates of the weights between the computation of a gradient and its use, mean over the gradients of a step.",
        ),
        Unit::Count,
        "train_gradient_staleness_steps",
    ),
    (
        marked("Pipeline bubble"),
        marked("Share of a step in which the rank's stage computes neither forward nor backward."),
        Unit::Ratio,
        "train_pipeline_bubble_ratio",
    ),
];

/// One line per rank.
const RANKS: Naming = Naming::by("rank");

/// The charts of the summary, with a common time axis.
#[component]
pub(super) fn Charts(
    /// The run's id.
    id: String,
    /// The period shown.
    view: View,
) -> impl IntoView {
    let View { window, marks, .. } = view;
    let bold: Signal<Vec<Labels>> = named_ranks(id.clone()).into();
    let of = |metric: &str| format!("{metric}{{run=\"{id}\"}}");
    let part = |(metric, name): (&str, &str)| {
        format!(
            "label_replace(avg({}), \"part\", \"{name}\", \"\", \"\")",
            of(metric)
        )
    };
    let longest = of("train_step_seconds_max");
    // Steps may be longer than the distance of points: then a rank has its last one, unless its node is lost.
    let longest =
        format!("(max_over_time({longest}[{STEP}]) or ({longest} + 0)) unless on (node) node_up == 0");
    let slowest = format!("label_replace(topk(1, {longest}), \"part\", \"{SLOWEST}\", \"\", \"\")");
    let split = format!("{} or {slowest}", PARTS.map(part).join(" or "));
    let sync = format!("{} / {}", of("train_sync_seconds"), of("train_step_seconds"));
    let none = Signal::stored(Vec::new());
    let before = [
        (
            marked("Step time"),
            marked(
                "Time per step by phase, mean over ranks. The line is the longest step of the slowest rank.",
            ),
            Unit::Seconds,
            split,
            STACK,
            none,
        ),
        (
            marked("Throughput"),
            marked("Samples per second. Ranks of one run should agree."),
            Unit::PerSecond,
            of("train_samples_per_second"),
            RANKS,
            bold,
        ),
        (
            marked("Loss"),
            marked("Falls while the model learns. A red triangle: NaN or infinite."),
            Unit::Number,
            of("train_loss"),
            RANKS,
            bold,
        ),
        (
            marked("Gradient norm"),
            marked("Before clipping. A tenfold increase or more is an explosion."),
            Unit::Number,
            of("train_grad_norm"),
            RANKS,
            bold,
        ),
    ];
    let optional = OPTIONAL.map(|(title, hint, unit, series)| (title, hint, unit, of(series), RANKS, bold));
    let after = [
        (
            marked("Waiting for gradient sync"),
            marked("Share of a step. The rank that waits less than the others is the straggler."),
            Unit::Ratio,
            sync,
            RANKS,
            bold,
        ),
        (
            marked("Compute share"),
            marked("Share of a step in forward, backward and optimizer."),
            Unit::Ratio,
            of("train_compute_ratio"),
            RANKS,
            bold,
        ),
    ];
    let chart = |(title, hint, unit, query, naming, bold): (
        &'static str,
        &'static str,
        Unit,
        String,
        Naming,
        Signal<Vec<Labels>>,
    )| {
        view! { <Chart window marks bold title=tr(title) hint=tr(hint) unit query naming if_any={OPTIONAL.iter().any(|(known, ..)| *known == title)} /> }
            .into_any()
    };
    let charts = before.into_iter().chain(optional).chain(after);
    let charts: Vec<AnyView> = charts.map(chart).collect();
    view! {
        <section class="min-w-0">
            <Heading text=tr("Charts") hint=tr("One line per rank; over 16 ranks: the median, a band with 80 % of them, and the ranks that a diagnosis names. Drag to zoom in; double-click to reset.")>
                <div class="flex flex-wrap gap-x-4 gap-y-2 items-center"><ChooseMarks view /> <ChooseSpan view /></div>
            </Heading>
            <div class="grid grid-cols-1 gap-3 lg:grid-cols-2">{charts}</div>
            <Logged id=id.clone() window marks />
        </section>
    }
}

/// Returns the labels of the ranks that a diagnosis of this run names.
fn named_ranks(id: String) -> Memo<Vec<Labels>> {
    let all = expect_context::<Live>().diagnoses;
    Memo::new(move |_| {
        let rank = |row: Row<Diagnosis>| {
            row.peek(|diagnosis| {
                let labels = &diagnosis.alert.labels;
                let rank = labels.get("rank").filter(|_| labels.get("run") == Some(&id))?;
                Labels::new([("rank", rank)]).ok()
            })
        };
        all.rows().into_iter().filter_map(rank).collect()
    })
}
