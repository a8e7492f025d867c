//! Stops a run: now, or at a point where nothing is lost. Shows what would be lost.

use domain::api::runs::{StopAfter, StopRun, StopView};
use leptos::prelude::*;

use super::checkpoint_list::CheckpointList;
use super::run_signal::RunSignal;
use crate::language::{tr, tr_with};
use crate::ui::{Dialog, ErrorMessage, Modal, PendingRequest, choice, text};

/// The button and its dialog.
#[component]
pub(super) fn StopButton(
    /// The run's id.
    id: String,
    /// The run.
    run: RunSignal,
    /// The checkpoints of the run.
    checkpoints: CheckpointList,
) -> impl IntoView {
    let dialog = Dialog::new();
    let request = PendingRequest::new();
    let chosen = RwSignal::new(String::new());
    let path = format!("/api/runs/{id}/stop");
    let stop = move |_| {
        let after = match chosen.get_untracked().as_str() {
            "step" => Some(StopAfter::Step),
            "checkpoint" => Some(StopAfter::Checkpoint),
            _ => None,
        };
        // The run's page shows the progress.
        request.send(
            path.clone(),
            &StopRun {
                grace_ms: None,
                after,
            },
            move |_| dialog.close(),
        );
    };
    let open = move |_| {
        chosen.set(String::new());
        request.problem.set(None);
        checkpoints.again();
        dialog.open();
    };
    let lost = text(move || loss(run, checkpoints));
    let answers = move || {
        let now = view! { <b>{tr("Now. ")}</b> {tr("Its ranks get SIGTERM, and SIGKILL 30 seconds later. ")} <span data-testid="loss">{lost}</span> };
        let step = view! { <b>{tr("After this step. ")}</b> {tr("All ranks end after the same step. A script that supports it saves then.")} };
        let checkpoint = view! { <b>{tr("After the next checkpoint. ")}</b> {tr("Training continues until one is complete; nothing is lost.")} };
        vec![
            choice("stop", String::new(), chosen, true, now.into_any()),
            choice("stop", "step".to_owned(), chosen, true, step.into_any()),
            choice(
                "stop",
                "checkpoint".to_owned(),
                chosen,
                true,
                checkpoint.into_any(),
            ),
        ]
    };
    let stop = StoredValue::new(stop);
    view! {
        <button class="btn btn-error btn-sm" data-testid="stop" on:click=open>{tr("Stop")}</button>
        <Modal dialog title=tr("Stop this run?") leave=tr("Cancel")>
            <div class="py-2">{answers()}</div>
            <ErrorMessage what=request.problem />
            <div class="text-right">
                <button class="btn btn-error" data-testid="confirm-stop" disabled=request.busy on:click=move |event| stop.with_value(|stop| stop(event))>{tr("Stop it")}</button>
            </div>
        </Modal>
    }
}

/// Returns what a stop would lose now; tracked.
fn loss(run: RunSignal, checkpoints: CheckpointList) -> String {
    let known = run.with(|run| {
        let more = &run.as_ref()?.more;
        let of_stop = more.stop.as_ref().and_then(|stop| stop.steps_lost);
        of_stop.or(more.steps_since_checkpoint)
    });
    match known.or_else(|| checkpoints.steps_since()) {
        Some(0) => tr("Nothing is lost: the last step is saved.").to_owned(),
        Some(steps) => tr_with(
            "{steps} since the last checkpoint will be lost.",
            &[("steps", &steps_of(steps))],
        ),
        None if checkpoints.list.is_empty() => tr("Nothing has been saved: all progress is lost.").to_owned(),
        None => tr("Unsaved progress is lost.").to_owned(),
    }
}

/// Returns the progress of a requested stop.
pub(super) fn progress(stop: &StopView) -> String {
    let lost = stop.steps_lost.filter(|steps| *steps > 0);
    match (stop.after_step, stop.after_checkpoint, lost) {
        (_, true, _) => tr("Stops when the next checkpoint is complete.").to_owned(),
        (Some(step), ..) => tr_with(
            "Stops when every rank has finished step {step}.",
            &[("step", &step)],
        ),
        (None, false, Some(steps)) => tr_with(
            "Its ranks are stopping. Lost: {steps} since the last checkpoint.",
            &[("steps", &steps_of(steps))],
        ),
        (None, false, None) => tr("Its ranks are stopping.").to_owned(),
    }
}

/// Returns `1 step` or `12 steps`.
pub(super) fn steps_of(steps: u64) -> String {
    match steps {
        1 => tr("1 step").to_owned(),
        many => tr_with("{count} steps", &[("count", &many)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_says_what_it_waits_for() {
        let stop = |after_step, after_checkpoint, steps_lost| StopView {
            after_step,
            after_checkpoint,
            steps_lost,
        };
        for (stop, expected) in [
            (
                stop(Some(12), false, None),
                "Stops when every rank has finished step 12.",
            ),
            (
                stop(None, true, Some(3)),
                "Stops when the next checkpoint is complete.",
            ),
            (
                stop(None, false, Some(1)),
                "Its ranks are stopping. Lost: 1 step since the last checkpoint.",
            ),
            (stop(None, false, None), "Its ranks are stopping."),
        ] {
            assert_eq!(progress(&stop), expected);
        }
    }
}
