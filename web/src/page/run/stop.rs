//! Stopping a run: now, or where nothing is lost; and how far that is.

use domain::api::runs::{StopAfter, StopRun, StopView};
use leptos::prelude::*;

use super::known::Known;
use super::saved::Saved;
use crate::ui::{Dialog, Question, Trouble, Wish, choice, text};

/// The button and its question.
#[component]
pub(super) fn StopButton(
    /// The run's id.
    id: String,
    /// The run.
    run: Known,
    /// What it has saved.
    saved: Saved,
) -> impl IntoView {
    let dialog = Dialog::new();
    let wish = Wish::new();
    let chosen = RwSignal::new(String::new());
    let path = format!("/api/runs/{id}/stop");
    let stop = move |_| {
        let after = match chosen.get_untracked().as_str() {
            "step" => Some(StopAfter::Step),
            "checkpoint" => Some(StopAfter::Checkpoint),
            _ => None,
        };
        // The run's own page says what follows.
        wish.send(
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
        wish.problem.set(None);
        saved.again();
        dialog.open();
    };
    let lost = text(move || loss(run, saved));
    let answers = move || {
        let now = view! { <b>"Now. "</b> "Its ranks get SIGTERM, and SIGKILL 30 seconds later. " <span data-testid="loss">{lost}</span> };
        let step = view! { <b>"After this step. "</b> "All ranks end behind the same step, which is when a script that knows how saves." };
        let checkpoint = view! { <b>"After the next checkpoint. "</b> "It trains on until one is complete, and nothing is lost." };
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
        <button class="btn btn-error btn-sm" data-testid="stop" on:click=open>"Stop"</button>
        <Question dialog title="Stop this run?" leave="Let it run">
            <div class="py-2">{answers()}</div>
            <Trouble what=wish.problem />
            <div class="text-right">
                <button class="btn btn-error" data-testid="confirm-stop" disabled=wish.busy on:click=move |event| stop.with_value(|stop| stop(event))>"Stop it"</button>
            </div>
        </Question>
    }
}

/// What a stop now costs, in words; tracked.
fn loss(run: Known, saved: Saved) -> String {
    let known = run.with(|run| {
        let more = &run.as_ref()?.more;
        let of_stop = more.stop.as_ref().and_then(|stop| stop.steps_lost);
        of_stop.or(more.steps_since_checkpoint)
    });
    match known.or_else(|| saved.steps_since()) {
        Some(0) => "Nothing is lost: the last step is saved.".to_owned(),
        Some(steps) => format!("{} since the last checkpoint will be lost.", steps_of(steps)),
        None if saved.list.is_empty() => {
            "Nothing has been saved, so everything it learned is lost.".to_owned()
        }
        None => "What was not saved is lost.".to_owned(),
    }
}

/// How a stop that is wished goes on.
pub(super) fn progress(stop: &StopView) -> String {
    let lost = stop.steps_lost.filter(|steps| *steps > 0);
    let lost = lost.map_or(String::new(), |steps| {
        format!(" Lost: {} since the last checkpoint.", steps_of(steps))
    });
    match (stop.after_step, stop.after_checkpoint) {
        (_, true) => "Stops when the next checkpoint is complete.".to_owned(),
        (Some(step), _) => format!("Stops when every rank has finished step {step}."),
        (None, false) => format!("Its ranks are told to end.{lost}"),
    }
}

/// `1 step`, `12 steps`.
pub(super) fn steps_of(steps: u64) -> String {
    match steps {
        1 => "1 step".to_owned(),
        many => format!("{many} steps"),
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
                "Its ranks are told to end. Lost: 1 step since the last checkpoint.",
            ),
            (stop(None, false, None), "Its ranks are told to end."),
        ] {
            assert_eq!(progress(&stop), expected);
        }
    }
}
