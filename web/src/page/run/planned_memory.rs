//! What PyTorch's allocator handed out, beside the plan of the same.

use domain::api::runs::{MemoryComparison, RunMemory};
use domain::run::state::RunState;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::run_signal::RunSignal;
use crate::language::{tr, tr_with};
use crate::live::Live;
use crate::session::UserSession;
use crate::ui::{
    AnswerOrder, Heading, bytes, count_every, dynamic_view, effect, empty_view, percent_change, track,
};

/// Interval between requests. The peaks of minutes change slowly.
const AGAIN_MS: u32 = 30_000;
/// The text for a value that was not measured or not planned.
const NONE: &str = "–";

/// The table; nothing if the run has no plan, or if it was not measured.
#[component]
pub(super) fn PlannedMemory(
    /// The run's id.
    id: String,
    /// The run.
    run: RunSignal,
) -> impl IntoView {
    let compared = compared(&id, run);
    dynamic_view(move || compared.with(|compared| compared.as_ref().map_or_else(empty_view, shown)))
}

fn shown(compared: &MemoryComparison) -> AnyView {
    let worst = tr_with(
        "Measured: rank {rank} on {node}, which has the highest peak of {ranks} ranks. Planned: the peak {when}.",
        &[
            ("rank", &compared.rank),
            ("node", &compared.node),
            ("ranks", &compared.ranks),
            ("when", &compared.peak_at),
        ],
    );
    let left_out = compared.left_out.iter().cloned();
    let left_out: Vec<AnyView> = left_out
        .map(|sentence| view! { <li>{sentence}</li> }.into_any())
        .collect();
    view! {
        <section class="min-w-0" data-testid="planned-memory">
            <Heading text=tr("Plan and measurement") hint=tr("Peaks of PyTorch's allocator since the ranks started, and the plan of a step with the same settings. The parts of the plan are not measured one by one.") />
            <p class="text-sm mb-2">{worst}</p>
            <div class="overflow-x-auto" tabindex="0" role="region" aria-label=tr("Plan and measurement")>
                <table class="rows narrow">
                    <thead><tr><th>{tr("Value")}</th><th>{tr("Planned")}</th><th>{tr("Measured")}</th><th>{tr("Difference")}</th></tr></thead>
                    <tbody>{rows(compared)}</tbody>
                </table>
            </div>
            <ul class="text-sm list-disc ml-5 mt-1" lang="en">{left_out}</ul>
        </section>
    }
    .into_any()
}

fn rows(compared: &MemoryComparison) -> Vec<AnyView> {
    let parts = compared.parts.iter().map(|part| {
        let name = if part.is_estimate {
            tr_with("{part} (estimate)", &[("part", &part.name)])
        } else {
            part.name.clone()
        };
        row(name, Some(part.bytes), None)
    });
    let (planned, allocated) = (compared.planned_bytes, compared.allocated_bytes);
    let mut rows: Vec<AnyView> = parts.collect();
    rows.push(row(
        tr("Allocated, peak").to_owned(),
        Some(planned),
        Some(allocated),
    ));
    if let Some(reserved) = compared.reserved_bytes {
        rows.push(row(tr("Reserved, peak").to_owned(), None, Some(reserved)));
        let rest = reserved.saturating_sub(allocated);
        rows.push(row(
            tr("Fragmentation: reserved − allocated").to_owned(),
            None,
            Some(rest),
        ));
    }
    if let Some(saved) = &compared.saved {
        rows.push(row(
            tr("Kept for the backward pass, highest of any rank").to_owned(),
            Some(saved.planned_bytes),
            Some(saved.measured_bytes),
        ));
    }
    rows
}

fn row(name: String, planned: Option<u64>, measured: Option<u64>) -> AnyView {
    let size = |size: Option<u64>| size.map_or_else(|| NONE.to_owned(), bytes);
    let difference = planned
        .zip(measured)
        .and_then(|(planned, measured)| difference(planned, measured));
    view! { <tr><th>{name}</th><td>{size(planned)}</td><td>{size(measured)}</td><td>{difference}</td></tr> }
        .into_any()
}

/// Returns how far the measured size is from the planned one; `None` if nothing is planned, because no share of 0 is known.
#[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
fn difference(planned: u64, measured: u64) -> Option<String> {
    (planned > 0).then(|| percent_change(measured as f64 / planned as f64))
}

/// Requests the comparison while the page is open and the run can change.
fn compared(id: &str, run: RunSignal) -> RwSignal<Option<MemoryComparison>> {
    let compared = RwSignal::new(None::<MemoryComparison>);
    let (answers, request_count) = (AnswerOrder::new(), RwSignal::new(0_u32));
    let session = expect_context::<UserSession>();
    let live = expect_context::<Live>();
    let state = Memo::new(move |_| run.with(|run| run.as_ref().map(|run| run.summary.state)));
    let attempt = Memo::new(move |_| run.with(|run| run.as_ref().map(|run| run.summary.attempt)));
    let path = format!("/api/runs/{id}/memory");
    effect(move || {
        request_count.track();
        track(state);
        track(attempt);
        live.connected.track();
        let (path, number) = (path.clone(), answers.begin());
        spawn_local(async move {
            // Another part of the page shows when the collector does not respond.
            if let Ok(answer) = session.get::<RunMemory>(&path).await
                && answers.accept(number)
                && compared.with_untracked(|shown| *shown != answer.compared)
            {
                compared.set(answer.compared);
            }
        });
    });
    count_every(AGAIN_MS, request_count, move || {
        live.paused.get_untracked() || state.get_untracked().is_some_and(RunState::is_final)
    });
    compared
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_relative_to_the_plan() {
        for (planned, measured, expected) in [
            (100, 103, Some("+3.0 %")),
            (1_000, 985, Some("−1.5 %")),
            (100, 100, Some("0.0 %")),
            (0, 1 << 30, None),
        ] {
            assert_eq!(difference(planned, measured).as_deref(), expected);
        }
    }
}
