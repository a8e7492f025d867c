//! When the rank of a trace computed and communicated, and how much of the communication is exposed.

use domain::metric::Unit;
use domain::run::inspect::{LaneKind, LaneSource};
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::Deserialize;

use crate::api::unreadable;
use crate::json;
use crate::language::{tr, tr_with};
use crate::session::UserSession;
use crate::ui::{ErrorMessage, dynamic_view, empty_view, fixed, show};

/// The fields of [`LanesView`](domain::api::inspect::LanesView) that are read.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Answer {
    lanes: Option<Lanes>,
    problem: String,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Lanes {
    source: LaneSource,
    steps: Vec<Step>,
    #[serde(default)]
    steps_left_out: u32,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Step {
    #[serde(default)]
    whole_trace: bool,
    duration_ns: f64,
    communication_ns: f64,
    exposed_ns: f64,
    exposed_ratio: Option<f64>,
    lanes: Vec<Lane>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Lane {
    kind: LaneKind,
    busy_ns: f64,
    spans: Vec<[f64; 2]>,
}

/// Returns a button that requests the lanes of a trace file from `path`, and the lanes below it.
pub(super) fn lanes_of(path: String, file: &str) -> AnyView {
    let session = expect_context::<UserSession>();
    let busy = RwSignal::new(false);
    let answer = RwSignal::new(None::<Answer>);
    let problem = RwSignal::new(None::<String>);
    // Each file has such a button.
    let label = format!("{} {file}", tr("Lanes"));
    let request = move |_| {
        let path = path.clone();
        busy.set(true);
        problem.set(None);
        spawn_local(async move {
            let read = session.fetch(&path).await;
            let read = read.and_then(|read| json::read(&read).map_err(|error| unreadable(&error)));
            // The list of files may be gone when the response arrives.
            if busy.try_set(false).is_none() {
                match read {
                    Ok(read) => answer.set(Some(read)),
                    Err(error) => problem.set(Some(error.message)),
                }
            }
        });
    };
    let shown = dynamic_view(move || {
        answer.with(|answer| match answer {
            None => empty_view(),
            Some(Answer {
                lanes: Some(lanes), ..
            }) => all_steps(lanes),
            Some(Answer { problem, .. }) => view! { <p lang="en">{problem.clone()}</p> }.into_any(),
        })
    });
    view! {
        <button class="btn btn-sm" aria-label=label disabled=busy on:click=request data-testid="trace-lanes">{tr("Lanes")}</button>
        <ErrorMessage what=problem />
        <div class="grid gap-2" data-testid="lanes">{shown}</div>
    }
    .into_any()
}

fn all_steps(lanes: &Lanes) -> AnyView {
    let source = match lanes.source {
        LaneSource::GpuKernels => tr("Kernels on the GPU"),
        LaneSource::CpuRanges => tr("Ranges on the CPU"),
    };
    let steps: Vec<AnyView> = (1_u32..)
        .zip(&lanes.steps)
        .map(|(number, of)| step(number, of))
        .collect();
    let more = match lanes.steps_left_out {
        0 => String::new(),
        count => tr_with("Steps not shown: {count}", &[("count", &count)]),
    };
    view! { <p>{source}</p> {steps} <p>{more}</p> }.into_any()
}

fn step(number: u32, of: &Step) -> AnyView {
    let duration = time(of.duration_ns);
    let title = if of.whole_trace {
        tr_with(
            "No complete step, whole trace: {duration}",
            &[("duration", &duration)],
        )
    } else {
        tr_with(
            "Step {number}: {duration}",
            &[("number", &number), ("duration", &duration)],
        )
    };
    let exposed = of.exposed_ratio.map_or_else(
        || tr("no communication").to_owned(),
        |ratio| {
            tr_with(
                "exposed communication {exposed} of {communication} ({share})",
                &[
                    ("exposed", &time(of.exposed_ns)),
                    ("communication", &time(of.communication_ns)),
                    ("share", &show(ratio, Unit::Ratio)),
                ],
            )
        },
    );
    let lanes: Vec<AnyView> = of
        .lanes
        .iter()
        .map(|of_kind| lane(of_kind, of.duration_ns))
        .collect();
    view! { <div class="grid gap-1"><p>{title} ", " {exposed}</p> {lanes}</div> }.into_any()
}

fn lane(of: &Lane, duration_ns: f64) -> AnyView {
    let name = match of.kind {
        LaneKind::AllGather => tr("All-gather"),
        LaneKind::Compute => tr("Compute"),
        LaneKind::ReduceScatter => tr("Reduce-scatter"),
        LaneKind::OtherCommunication => tr("Other communication"),
    };
    view! {
        <div class="flex gap-2 items-center text-xs">
            <span class="w-28">{name} " " {time(of.busy_ns)}</span>
            <span class="grow h-3 bg-base-200" style:background-image=bar(&of.spans, duration_ns)></span>
        </div>
    }
    .into_any()
}

fn time(nanoseconds: f64) -> String {
    show(nanoseconds / 1e9, Unit::Seconds)
}

/// Returns the intervals of a lane as the background of one element. A short interval is widened to a fifth of a percent, to be visible.
fn bar(spans: &[[f64; 2]], duration_ns: f64) -> String {
    let mut bar = "linear-gradient(90deg,#0000 0".to_owned();
    for [start, end] in spans {
        let percent = |at_ns: f64| fixed((100.0 * at_ns / duration_ns).min(100.0), 2);
        let start_percent = percent(*start);
        let end_percent = percent(end.max(start + duration_ns / 500.0));
        bar.push_str(&format!(
            " {start_percent}%,var(--series-1) {start_percent}% {end_percent}%,#0000 {end_percent}%"
        ));
    }
    bar.push_str(" 100%)");
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_drawn_at_their_place_and_short_ones_stay_visible() {
        assert_eq!(bar(&[], 100.0), "linear-gradient(90deg,#0000 0 100%)");
        assert_eq!(
            bar(&[[10.0, 30.0], [99.99, 100.0]], 100.0),
            "linear-gradient(90deg,#0000 0 10.00%,var(--series-1) 10.00% 30.00%,#0000 30.00% 99.99%,\
             var(--series-1) 99.99% 100.00%,#0000 100.00% 100%)"
        );
    }
}
