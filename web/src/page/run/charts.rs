//! The charts of a run.

use domain::api::runs::AttemptView;
use domain::metric::{Unit, unit_of};
use leptos::prelude::*;

use super::known::Known;
use super::logged::Logged;
use super::span::SPANS;
use crate::chart::{Chart, Marks, Window};
use crate::live::Live;
use crate::ui::Heading;

/// Step time by part, as one query: `(series, name of the line)`.
const PARTS: [(&str, &str); 6] = [
    ("train_step_seconds", "whole step"),
    ("train_data_seconds", "data"),
    ("train_forward_seconds", "forward"),
    ("train_backward_seconds", "backward"),
    ("train_sync_seconds", "sync"),
    ("train_optimizer_seconds", "optimizer"),
];

/// The lines of that chart, the sum first.
const ORDER: [&str; 6] = [
    PARTS[0].1, PARTS[1].1, PARTS[2].1, PARTS[3].1, PARTS[4].1, PARTS[5].1,
];

/// Six charts on one time axis.
#[component]
pub(super) fn Charts(
    /// The run's id.
    id: String,
    /// The run.
    run: Known,
) -> impl IntoView {
    let chosen = RwSignal::new(0_usize);
    let options = SPANS.iter().enumerate();
    let options = options
        .map(|(n, (_, words))| view! { <option value=n.to_string()>{*words}</option> })
        .collect_view();
    let choose = move |event| chosen.set(event_target_value(&event).parse().unwrap_or(0));
    let window = shown(run, chosen);
    let marks = Memo::new(move |_| {
        run.with(|run| {
            run.as_ref()
                .map(|run| beginnings(&run.more.attempts))
                .unwrap_or_default()
        })
    });
    let of = |metric: &str| format!("{metric}{{run=\"{id}\"}}");
    let part = |(metric, name): (&str, &str)| {
        format!(
            "label_replace(avg({}), \"part\", \"{name}\", \"\", \"\")",
            of(metric)
        )
    };
    let split = PARTS.map(part).join(" or ");
    let sync = format!("{} / {}", of("train_sync_seconds"), of("train_step_seconds"));
    view! {
        <section class="min-w-0">
            <Heading text="Charts" hint="A line a rank. A dashed line is where another attempt began. Drag over a stretch of time to look closer, in all charts at once; double-click to go back.">
                <label class="text-sm flex gap-2 items-center">"Show"
                    <select class="select select-sm w-auto" on:change=choose data-testid="span">{options}</select>
                </label>
            </Heading>
            <div class="grid grid-cols-1 gap-3 lg:grid-cols-2">
                <Chart window marks title="Loss" hint="Falls while the model learns." unit=const { unit_of("train_loss") } query=of("train_loss") by="rank" />
                <Chart window marks title="Gradient norm" hint="Before clipping. A leap of ten times and more is an explosion." unit=const { unit_of("train_grad_norm") } query=of("train_grad_norm") by="rank" />
                <Chart window marks title="Step time" hint="What a step is spent on, mean over the ranks." unit=const { unit_of(PARTS[0].0) } query=split by="part" order=&ORDER />
                <Chart window marks title="Throughput" hint="Samples a second. Ranks of one run should agree." unit=const { unit_of("train_samples_per_second") } query=of("train_samples_per_second") by="rank" />
                <Chart window marks title="Waiting for gradient sync" hint="Share of a step. Who waits less than the others is the late one." unit=Unit::Ratio query=sync by="rank" />
                <Chart window marks title="Compute share" hint="Share of a step in forward, backward and optimizer." unit=const { unit_of("train_compute_ratio") } query=of("train_compute_ratio") by="rank" />
            </div>
            <Logged id=id.clone() window marks />
        </section>
    }
}

/// Where another attempt began: what is left of it was an earlier one's.
fn beginnings(attempts: &[AttemptView]) -> Marks {
    let later = attempts.iter().skip(1);
    later
        .map(|attempt| (attempt.started_ms, format!("attempt {}", attempt.attempt)))
        .collect()
}

/// The window as the run and the choice ask for it.
fn shown(run: Known, chosen: RwSignal<usize>) -> Memo<Window> {
    let now_ms = expect_context::<Live>().now_ms;
    Memo::new(move |_| {
        let (span, _) = SPANS[chosen.get().min(SPANS.len() - 1)];
        run.with(|run| match run {
            Some(run) => span.window(&run.summary, now_ms.get()),
            None => Window::Last { range_ms: 600_000 },
        })
    })
}
