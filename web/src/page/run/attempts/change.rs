//! What an attempt changed compared with the previous one, the answers of its ranks, and the verdict.

use domain::api::runs::AttemptView;
use domain::run::knob::{Change, Decision, How, InPlaceChange, InPlaceState, KnobAnswer, KnobDiff, Verdict};
use leptos::prelude::*;

use crate::language::{tr, tr_with};
use crate::ui::empty_view;

/// The fields of an attempt that this shows.
#[derive(Clone, PartialEq)]
pub(super) struct Changes {
    own: Option<Change>,
    answers: Vec<KnobAnswer>,
    live: Vec<InPlaceChange>,
}

/// Renders the changes; nothing if the attempt changed nothing.
pub(super) fn shown(changes: &Changes) -> AnyView {
    let own = changes
        .own
        .as_ref()
        .map(|own| one(own, &changes.answers, empty_view()));
    let live: Vec<AnyView> = changes.live.iter().map(in_place).collect();
    view! { {own} {live} }.into_any()
}

pub(super) fn of(attempt: &AttemptView) -> Changes {
    Changes {
        own: attempt.change.clone(),
        answers: attempt.answers.clone(),
        live: attempt.live.clone(),
    }
}

fn one(change: &Change, answers: &[KnobAnswer], how: AnyView) -> AnyView {
    let lines: Vec<AnyView> = change.set.iter().map(line).collect();
    let answers: Vec<AnyView> = answers.iter().map(answer).collect();
    let untried = change
        .no_larger_batch
        .as_ref()
        .map(|why| tr_with("no larger micro_batch is tried: {why}", &[("why", why)]));
    let notes: Vec<AnyView> = change
        .reason
        .iter()
        .chain(&change.warnings)
        .chain(&untried)
        .map(|text| note(text))
        .collect();
    view! {
        <div class="mt-2" data-testid="change">
            {lines}
            {how}
            {notes}
            {answers}
            {change.verdict.as_ref().map_or_else(empty_view, verdict)}
        </div>
    }
    .into_any()
}

/// Renders changes that the ranks applied in place.
fn in_place(live: &InPlaceChange) -> AnyView {
    let class = match live.state {
        InPlaceState::Taken => "badge badge-sm badge-success",
        InPlaceState::Refused => "badge badge-sm badge-error",
        InPlaceState::Asked | InPlaceState::Left => "badge badge-sm badge-neutral",
    };
    let at = live.step.map_or(String::new(), |step| {
        tr_with(" after step {step}", &[("step", &step)])
    });
    let how = view! {
        <p class="text-sm break-words">
            <span class=class>{tr("in place")}</span> {at} ": " {live.words()}
        </p>
    };
    one(&live.change, &live.answers, how.into_any())
}

fn line(diff: &KnobDiff) -> AnyView {
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| tr("as in the script").into());
    let class = if diff.how == How::Injected {
        "badge badge-sm badge-warning"
    } else {
        "badge badge-sm badge-neutral"
    };
    view! {
        <p class="text-sm break-words">
            <b class="font-mono">{diff.knob.clone()}</b> ": " {value(&diff.old)} " → " <b>{value(&diff.new)}</b> " "
            <span class=class>{how_words(&diff.how)}</span>
        </p>
    }
    .into_any()
}

/// Returns how a knob is applied; flags and variables have no other language.
fn how_words(how: &How) -> String {
    match how {
        How::Injected => tr("injected").to_owned(),
        by_name => by_name.words(),
    }
}

fn note(text: &str) -> AnyView {
    view! { <p class="text-sm break-words">{text.to_owned()}</p> }.into_any()
}

fn answer(answer: &KnobAnswer) -> AnyView {
    let state = if answer.applied {
        tr("in the script")
    } else {
        tr("not applied")
    };
    note(&format!(
        "{}={} {state}: {}",
        answer.knob, answer.value, answer.detail
    ))
}

fn verdict(verdict: &Verdict) -> AnyView {
    let class = match verdict.decision {
        Decision::Kept | Decision::Better | Decision::Recovered => "badge badge-sm badge-success",
        Decision::Rejected | Decision::Worse | Decision::NotApplied | Decision::NotRecovered => {
            "badge badge-sm badge-error"
        }
        _ => "badge badge-sm badge-neutral",
    };
    view! {
        <p class="text-sm break-words" data-testid="verdict">
            <span class=class>{decision_words(verdict.decision)}</span> " " <span lang="en">{verdict.summary.clone()}</span>
        </p>
    }
    .into_any()
}

fn decision_words(decision: Decision) -> &'static str {
    match decision {
        Decision::NotYet => tr("not yet"),
        Decision::Undecided => tr("undecided"),
        Decision::NotApplied => tr("not applied"),
        Decision::Kept => tr("kept"),
        Decision::Rejected => tr("rejected"),
        Decision::Better => tr("better"),
        Decision::Worse => tr("worse"),
        Decision::Mixed => tr("mixed"),
        Decision::NoDifference => tr("no difference"),
        Decision::Recovered => tr("recovered"),
        Decision::NotRecovered => tr("not recovered"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_have_the_words_of_the_command_line() {
        for decision in [
            Decision::NotYet,
            Decision::Undecided,
            Decision::NotApplied,
            Decision::Kept,
            Decision::Rejected,
            Decision::Better,
            Decision::Worse,
            Decision::Mixed,
            Decision::NoDifference,
            Decision::Recovered,
            Decision::NotRecovered,
        ] {
            assert_eq!(decision_words(decision), decision.words());
        }
        assert_eq!(how_words(&How::Injected), How::Injected.words());
    }
}
