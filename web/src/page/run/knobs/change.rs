//! One change of the run: what it changed, how far it has come in each rank, and the verdict with its figures.

use std::collections::BTreeSet;

use domain::api::runs::AttemptView;
use domain::ident::Rank;
use domain::run::inspect::rank_list;
use domain::run::knob::{
    Change, ChangeId, Decision, How, InPlaceChange, InPlaceState, KnobAnswer, KnobDiff, Verdict,
};
use leptos::prelude::*;

use super::super::cause::cause;
use super::figures;
use crate::language::{tr, tr_with};
use crate::live::Keyed;
use crate::ui::empty_view;

/// A change that was made, by an attempt or while it ran.
#[derive(Clone, PartialEq)]
pub(super) struct MadeChange {
    pub(super) id: ChangeId,
    change: Change,
    answers: Vec<KnobAnswer>,
    /// Its progress, if the ranks apply it while they train.
    in_place: Option<InPlaceChange>,
    /// The ranks of the attempt that have not ended.
    ranks: Vec<Rank>,
    is_reverted: bool,
}

impl Keyed for MadeChange {
    fn key(&self) -> String {
        self.id.to_string()
    }
}

impl MadeChange {
    /// Returns the changes of all attempts, newest first.
    pub(super) fn all(attempts: &[AttemptView]) -> Vec<Self> {
        let mut all = Vec::new();
        for attempt in attempts {
            let made = |live, change: &Change, answers: &[KnobAnswer]| Self {
                id: ChangeId {
                    attempt: attempt.attempt,
                    live,
                },
                change: change.clone(),
                answers: answers.to_vec(),
                in_place: None,
                ranks: running(attempt),
                is_reverted: false,
            };
            let own = attempt.change.iter();
            all.extend(own.map(|change| made(0, change, &attempt.answers)));
            all.extend(attempt.live.iter().map(|live| Self {
                in_place: Some(live.clone()),
                ..made(live.no, &live.change, &live.answers)
            }));
        }
        let is_made = |made: &&Self| made.in_place.as_ref().is_none_or(InPlaceChange::is_made);
        let reverted = all
            .iter()
            .filter(is_made)
            .filter_map(|made| made.change.reverted_change());
        let reverted: Vec<ChangeId> = reverted.collect();
        for made in &mut all {
            made.is_reverted = reverted.contains(&made.id);
        }
        all.reverse();
        all
    }

    /// Returns the change in words: `num_workers=4`.
    pub(super) fn words(&self) -> String {
        self.change.words()
    }
}

fn running(attempt: &AttemptView) -> Vec<Rank> {
    let ranks = attempt.nodes.iter().flat_map(|node| &node.ranks);
    let running = ranks.filter(|rank| rank.exit.is_none());
    running.map(|rank| rank.rank).collect()
}

/// Renders a change.
pub(super) fn shown(made: &MadeChange) -> AnyView {
    let change = &made.change;
    let lines: Vec<AnyView> = change.set.iter().map(line).collect();
    let answers: Vec<AnyView> = made.answers.iter().map(answer).collect();
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
    let nodes = change.without.join(", ");
    let without = (!nodes.is_empty()).then(|| note(&tr_with("Without {nodes}", &[("nodes", &nodes)])));
    let reverted = made
        .is_reverted
        .then(|| view! { <span class="badge badge-sm badge-neutral">{tr("reverted")}</span> }.into_any());
    let title = tr_with("Attempt {number}", &[("number", &made.id.attempt)]);
    view! {
        <p><b>{title}</b> " (" {cause(change.cause()).to_owned()} ") " {reverted}</p>
        {lines}
        {without}
        {made.in_place.as_ref().map(|live| in_place(live, &made.ranks))}
        {notes}
        {answers}
        {change.verdict.as_ref().map_or_else(empty_view, verdict)}
    }
    .into_any()
}

/// Renders how far the ranks have applied a change in place.
fn in_place(live: &InPlaceChange, ranks: &[Rank]) -> AnyView {
    let class = match live.state {
        InPlaceState::Taken => "state state-ok",
        InPlaceState::Refused => "state state-critical",
        InPlaceState::Asked | InPlaceState::Left => "state state-unknown",
    };
    let at = live.step.map_or(String::new(), |step| {
        tr_with(" after step {step}", &[("step", &step)])
    });
    view! {
        <p class="text-sm break-words">
            <span class=class>{tr("in place")}</span> {at} ": " <span lang="en">{live.words()}</span>
        </p>
        <p class="text-sm break-words empty:hidden" data-testid="change-ranks">{by_rank(live, ranks)}</p>
    }
    .into_any()
}

/// Returns which ranks have applied a change, and which have not answered yet; empty if no rank is waited for.
fn by_rank(live: &InPlaceChange, ranks: &[Rank]) -> String {
    if live.state != InPlaceState::Asked {
        return String::new();
    }
    let list = |ranks: &[Rank]| match ranks {
        [] => tr("none").to_owned(),
        some => rank_list(some),
    };
    let (applied, waiting) = split(&live.ranks, ranks);
    tr_with(
        "Applied: {applied}. Not yet: {waiting}.",
        &[("applied", &list(&applied)), ("waiting", &list(&waiting))],
    )
}

fn split(applied: &BTreeSet<Rank>, ranks: &[Rank]) -> (Vec<Rank>, Vec<Rank>) {
    ranks.iter().copied().partition(|rank| applied.contains(rank))
}

/// Renders the old and the new value of a knob.
pub(in crate::page::run) fn line(diff: &KnobDiff) -> AnyView {
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
pub(super) fn how_words(how: &How) -> String {
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
    let rank = tr_with("rank {rank}", &[("rank", &answer.rank)]);
    note(&format!(
        "{rank}: {}={} {state}: {}",
        answer.knob, answer.value, answer.detail
    ))
}

fn verdict(verdict: &Verdict) -> AnyView {
    let class = match verdict.decision {
        Decision::Kept | Decision::Better | Decision::Recovered => "state state-ok",
        Decision::Rejected | Decision::Worse | Decision::NotApplied | Decision::NotRecovered => {
            "state state-critical"
        }
        _ => "state state-unknown",
    };
    view! {
        <p class="text-sm break-words" data-testid="verdict">
            <span class=class>{decision_words(verdict.decision)}</span> " " <span lang="en">{verdict.summary.clone()}</span>
        </p>
        {figures::shown(verdict)}
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
    use domain::ident::AttemptNo;

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

    #[test]
    fn changes_are_listed_newest_first_and_the_reverted_one_is_marked() {
        let attempts = r#"[
            {"attempt":1,"cause":"submitted","started_ms":0,"nodes":[],
             "live":[{"no":1,"asked_ms":1,"change":{"set":[]},"state":"taken"}]},
            {"attempt":2,"cause":"knob applied","started_ms":0,"nodes":[],"change":{"set":[]}},
            {"attempt":3,"cause":"knob reverted","started_ms":0,"nodes":[],"change":{"set":[],"reverts":2}}]"#;
        let attempts: Vec<AttemptView> = serde_json::from_str(attempts).expect("attempts");
        let all = MadeChange::all(&attempts);
        let ids: Vec<String> = all.iter().map(Keyed::key).collect();
        assert_eq!(
            ids,
            ["attempt 3", "attempt 2", "attempt 1 in place, its change 1"]
        );
        let reverted: Vec<bool> = all.iter().map(|made| made.is_reverted).collect();
        assert_eq!(reverted, [false, true, false]);
        assert_eq!(all[1].id, ChangeId::of(AttemptNo(2)));
    }

    #[test]
    fn ranks_that_have_not_answered_are_named() {
        let mut live = InPlaceChange::default();
        live.ranks.extend([Rank(0), Rank(1)]);
        let ranks = [0, 1, 2, 3].map(Rank);
        assert_eq!(
            by_rank(&live, &ranks),
            format!(
                "Applied: {}. Not yet: {}.",
                rank_list(&ranks[..2]),
                rank_list(&ranks[2..])
            )
        );
        live.state = InPlaceState::Taken;
        assert_eq!(by_rank(&live, &ranks), "");
    }
}
