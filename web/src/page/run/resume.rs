//! Going on with a run that has ended: from one of its checkpoints, or from its start.

use domain::api::checkpoints::{CheckpointView, ResumeRun};
use leptos::prelude::*;

use super::saved::{Saved, is_usable, is_whole, name};
use super::stop::steps_of;
use crate::ui::{Dialog, Question, Trouble, Wish, bytes, changing, choice};

/// Stands for "from the start" among the paths, none of which is empty.
const START: &str = "";

/// The button and its question.
#[component]
pub(super) fn ResumeButton(
    /// The run's id.
    id: String,
    /// What it has saved.
    saved: Saved,
) -> impl IntoView {
    let dialog = Dialog::new();
    let wish = Wish::new();
    let chosen = RwSignal::new(START.to_owned());
    let path = format!("/api/runs/{id}/resume");
    let resume = move |_| {
        let checkpoint = Some(chosen.get_untracked()).filter(|path| path != START);
        let from_start = checkpoint.is_none();
        wish.send(
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
        chosen.set(untrack(|| furthest(saved)));
        wish.problem.set(None);
        saved.again();
        dialog.open();
    };
    let answers = move || {
        changing(move || {
            let mut answers: Vec<AnyView> = saved.all().iter().map(|one| answer(one, chosen)).collect();
            let words = view! { <b>"From the start"</b> ", as if nothing had been saved" };
            answers.push(choice("resume", START.to_owned(), chosen, true, words.into_any()));
            answers.into_any()
        })
    };
    view! {
        <button class="btn btn-primary btn-sm" data-testid="resume" on:click=open>"Resume"</button>
        <Question dialog title="Go on with this run?" leave="Leave it">
            <p class="text-sm opacity-70">"Another attempt begins, and trains on from:"</p>
            <div class="py-2 max-h-80 overflow-y-auto" data-testid="resume-from">{answers()}</div>
            <Trouble what=wish.problem />
            <div class="text-right">
                <button class="btn btn-primary" data-testid="confirm-resume" disabled=wish.busy on:click=move |event| resume.with_value(|resume| resume(event))>"Resume it"</button>
            </div>
        </Question>
    }
}

/// What is offered first: the furthest that the run saved itself, and that training can go on from.
fn furthest(saved: Saved) -> String {
    let all = saved.all();
    let usable = all.iter().filter(|one| is_usable(one));
    let furthest = usable.max_by_key(|one| (one.step, one.finished_ms));
    furthest.map_or(START.to_owned(), |one| one.path.clone())
}

fn answer(one: &CheckpointView, chosen: RwSignal<String>) -> AnyView {
    let words = view! { <b>{name(one)}</b> ", " {detail(one)} <span class="block text-xs opacity-70 break-all">{one.path.clone()}</span> };
    choice("resume", one.path.clone(), chosen, one.complete, words.into_any())
}

/// Its age and size, or why it cannot be chosen.
fn detail(one: &CheckpointView) -> String {
    if !one.complete {
        let problem = one.problem.as_deref().unwrap_or("something is missing");
        return format!("cannot be used: {problem}");
    }
    let age = match one.age_steps {
        Some(0) => "the last step; ".to_owned(),
        Some(steps) => format!("{} behind the last; ", steps_of(steps)),
        None => String::new(),
    };
    let model = if is_whole(one) {
        ""
    } else {
        "; the model only, so the optimizer begins anew"
    };
    let foreign = if one.foreign {
        "; it was there before the run"
    } else {
        ""
    };
    format!("{age}{}{model}{foreign}", bytes(one.bytes))
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
            "1 step behind the last; 2.0 KiB; it was there before the run"
        );
        assert_eq!(
            detail(&model),
            "2.0 KiB; the model only, so the optimizer begins anew"
        );
        assert_eq!(detail(&torn), "cannot be used: shard 2 of 4 is missing");
    }
}
