//! Resumes a run that has ended: from one of its checkpoints, or from its start.

use domain::api::checkpoints::{CheckpointView, ResumeRun};
use leptos::prelude::*;

use super::checkpoint_list::{CheckpointList, can_resume_exactly, is_usable, name};
use super::stop::steps_of;
use crate::language::{tr, tr_with};
use crate::ui::{Dialog, ErrorMessage, Modal, PendingRequest, bytes, choice, dynamic_view};

/// Means "from the start" among the paths, none of which is empty.
const START: &str = "";

/// The button and its dialog.
#[component]
pub(super) fn ResumeButton(
    /// The run's id.
    id: String,
    /// The checkpoints of the run.
    checkpoints: CheckpointList,
) -> impl IntoView {
    let dialog = Dialog::new();
    let request = PendingRequest::new();
    let chosen = RwSignal::new(START.to_owned());
    let path = format!("/api/runs/{id}/resume");
    let resume = move |_| {
        let checkpoint = Some(chosen.get_untracked()).filter(|path| path != START);
        let from_start = checkpoint.is_none();
        request.send(
            path.clone(),
            &ResumeRun {
                checkpoint,
                from_start,
            },
            move |_| dialog.close(),
        );
    };
    let resume = StoredValue::new(resume);
    let open = move |_| {
        chosen.set(untrack(|| furthest(checkpoints)));
        request.problem.set(None);
        checkpoints.again();
        dialog.open();
    };
    let answers = move || {
        dynamic_view(move || {
            let mut answers: Vec<AnyView> = checkpoints.all().iter().map(|one| answer(one, chosen)).collect();
            let words = view! { <b>{tr("From the start")}</b> {tr(", without a checkpoint")} };
            answers.push(choice("resume", START.to_owned(), chosen, true, words.into_any()));
            answers.into_any()
        })
    };
    view! {
        <button class="btn btn-primary btn-sm" data-testid="resume" on:click=open>{tr("Resume")}</button>
        <Modal dialog title=tr("Resume this run?") leave=tr("Cancel")>
            <p class="text-sm opacity-70">{tr("A new attempt continues from:")}</p>
            <div class="py-2 max-h-80 overflow-y-auto" data-testid="resume-from">{answers()}</div>
            <ErrorMessage what=request.problem />
            <div class="text-right">
                <button class="btn btn-primary" data-testid="confirm-resume" disabled=request.busy on:click=move |event| resume.with_value(|resume| resume(event))>{tr("Resume it")}</button>
            </div>
        </Modal>
    }
}

/// Returns the default: the run's own usable checkpoint with the highest step.
fn furthest(checkpoints: CheckpointList) -> String {
    let all = checkpoints.all();
    let usable = all.iter().filter(|one| is_usable(one));
    let furthest = usable.max_by_key(|one| (one.step, one.finished_ms));
    furthest.map_or(START.to_owned(), |one| one.path.clone())
}

fn answer(one: &CheckpointView, chosen: RwSignal<String>) -> AnyView {
    let words = view! { <b>{name(one)}</b> ", " {detail(one)} <span class="block text-xs opacity-70 break-all">{one.path.clone()}</span> };
    choice("resume", one.path.clone(), chosen, one.complete, words.into_any())
}

/// Returns its age and size, or why it cannot be chosen.
fn detail(one: &CheckpointView) -> String {
    if !one.complete {
        let problem = one.problem.as_deref().unwrap_or_else(|| tr("it is incomplete"));
        return tr_with("cannot be used: {problem}", &[("problem", &problem)]);
    }
    let age = one.age_steps.map(|steps| match steps {
        0 => tr("the last step").to_owned(),
        steps => tr_with("{steps} behind the last", &[("steps", &steps_of(steps))]),
    });
    let model =
        (!can_resume_exactly(one)).then(|| tr("model only, so the optimizer state is lost").to_owned());
    let foreign = one.foreign.then(|| tr("existed before the run").to_owned());
    let facts = [age, Some(bytes(one.bytes)), model, foreign];
    facts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_says_what_it_costs_or_why_it_is_none() {
        let whole = CheckpointView {
            content: "full".into(),
            complete: true,
            bytes: 2_048,
            age_steps: Some(1),
            ..CheckpointView::default()
        };
        let model = CheckpointView {
            content: "model".into(),
            age_steps: None,
            ..whole.clone()
        };
        let torn = CheckpointView {
            complete: false,
            problem: Some("shard 2 of 4 is missing".into()),
            ..whole.clone()
        };
        let foreign = CheckpointView {
            foreign: true,
            ..whole.clone()
        };
        assert_eq!(detail(&whole), "1 step behind the last; 2.0 KiB");
        assert_eq!(
            detail(&foreign),
            "1 step behind the last; 2.0 KiB; existed before the run"
        );
        assert_eq!(
            detail(&model),
            "2.0 KiB; model only, so the optimizer state is lost"
        );
        assert_eq!(detail(&torn), "cannot be used: shard 2 of 4 is missing");
    }
}
