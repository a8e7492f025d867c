//! The stacks of the ranks of a run that hangs, grouped by place: the summary that was stored when the run stalled, and the answers of the
//! ranks now.

use domain::api::alerts::RankState;
use domain::api::diagnoses::DiagnosisView;
use domain::api::inspect::AskRanks;
use domain::api::session::Role;
use domain::event::Event;
use domain::ident::{AttemptNo, Rank};
use domain::incident::NamedCulprit;
use domain::run::inspect::{StackGroup, rank_list};
use domain::time::TimestampMs;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::Deserialize;
use wasm_bindgen::JsValue;

use super::diagnosis_state::DiagnosisState;
use crate::api::unreadable;
use crate::json;
use crate::language::{tr, tr_with};
use crate::session::UserSession;
use crate::ui::{
    ErrorMessage, Heading, PendingRequest, When, clock, dynamic_view, effect, empty_view, sorted,
};

/// How long before the diagnosis the run may have stalled. The supervision of runs and the analysers decide separately.
const BEFORE_MS: i64 = 15 * 60_000;

/// The fields of [`StacksView`](domain::api::inspect::StacksView) that are shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
struct Answer {
    attempt: AttemptNo,
    at_ms: TimestampMs,
    groups: Vec<StackGroup>,
}

/// The section; nothing if the diagnosis is not about a rank or a run that makes no progress.
#[component]
pub(super) fn RankStacks(state: DiagnosisState) -> AnyView {
    let run = state
        .view
        .with_untracked(|view| view.as_ref().and_then(stuck_run));
    let Some(run) = run else { return empty_view() };
    let session = expect_context::<UserSession>();
    let path = StoredValue::new(format!("/api/runs/{run}/stacks"));
    let stored = stored_summary(state, run);
    let request = PendingRequest::new();
    let answer = RwSignal::new(None::<Answer>);
    let take = move |value: JsValue| match json::read::<Answer>(&value) {
        Ok(found) => answer.set(Some(found)),
        Err(error) => request.problem.set(Some(unreadable(&error).message)),
    };
    let ask = move |_| request.send(path.get_value(), &AskRanks::default(), take);
    let is_firing = move || {
        state.view.with(|view| {
            view.as_ref()
                .is_some_and(|view| view.diagnosis.alert.resolved_ms.is_none())
        })
    };
    let has_nothing = move || stored.with(Option::is_none) && answer.with(Option::is_none);
    view! {
        <section class="min-w-0" aria-label=tr("Stacks of the ranks") data-testid="rank-stacks">
            <Heading text=tr("Stacks of the ranks") hint=tr("Where each rank is in the code. Ranks at the same place are one group.") />
            <When on=has_nothing><p class="opacity-70">{tr("No stacks were read when the run stalled.")}</p></When>
            {dynamic_view(move || stored.with(|event| event.as_ref().map_or_else(empty_view, summary)))}
            <When on=move || is_firing() && session.may(Role::Operator)>
                <button class="btn min-h-12 mt-2" disabled=request.busy on:click=ask data-testid="read-stacks">{tr("Read the stacks now")}</button>
            </When>
            <When on=move || is_firing() && !session.may(Role::Operator)>
                <p class="text-sm opacity-80">{tr("You need the operator role to read the current stacks.")}</p>
            </When>
            <div role="status">
                <When on=request.busy><p class="opacity-70">{tr("Reading stacks. A rank may take up to 5 seconds to answer…")}</p></When>
            </div>
            <ErrorMessage what=request.problem />
            {dynamic_view(move || answer.with(|answer| {
                let culprit = state.view.with_untracked(|view| view.as_ref().map(|view| view.diagnosis.who.clone()));
                answer.as_ref().map_or_else(empty_view, |answer| groups(answer, &culprit.unwrap_or_default()))
            }))}
        </section>
    }
    .into_any()
}

/// Returns the run of a diagnosis about a rank or a run that makes no progress.
fn stuck_run(view: &DiagnosisView) -> Option<String> {
    let is_stuck = view.diagnosis.alert.rank_state() == Some(RankState::Stuck);
    view.diagnosis.run.clone().filter(|_| is_stuck)
}

/// Requests the event with the stacks of the ranks at the stall, until there is one.
fn stored_summary(state: DiagnosisState, run: String) -> RwSignal<Option<Event>> {
    let session = expect_context::<UserSession>();
    let stored = RwSignal::new(None::<Event>);
    effect(move || {
        let path = state.view.with(|view| Some(events_path(&run, view.as_ref()?)));
        let Some(path) = path.filter(|_| stored.with_untracked(Option::is_none)) else {
            return;
        };
        spawn_local(async move {
            if let Ok(events) = session.get::<Vec<Event>>(&path).await
                && let Some(event) = events.into_iter().next()
            {
                // The user may have left the page.
                let _gone = stored.try_set(Some(event));
            }
        });
    });
    stored
}

/// Returns the request for the last stall of the run during the diagnosis or shortly before.
fn events_path(run: &str, view: &DiagnosisView) -> String {
    let alert = &view.diagnosis.alert;
    let since_ms = alert.active_ms - BEFORE_MS;
    let before = alert
        .resolved_ms
        .map_or_else(String::new, |at_ms| format!("&before_ms={at_ms}"));
    format!("/api/events?run={run}&kind=rank_stacks&limit=1&since_ms={since_ms}{before}")
}

/// Renders the stored summary, one line per group.
fn summary(event: &Event) -> AnyView {
    let lines: Vec<AnyView> = event
        .message
        .split("; ")
        .map(|line| view! { <li class="break-words">{line.to_owned()}</li> }.into_any())
        .collect();
    view! {
        <p class="text-sm opacity-80">{tr_with("Read at {time}, when the run stalled:", &[("time", &clock(event.at_ms))])}</p>
        <ul class="text-xs font-mono grid gap-1 py-1" lang="en" data-testid="stored-stacks">{lines}</ul>
    }
    .into_any()
}

/// Renders the current groups, those of the culprit first.
fn groups(answer: &Answer, culprit: &NamedCulprit) -> AnyView {
    let of_culprit = |group: &StackGroup| is_of(culprit, &group.ranks);
    let ordered = culprit_first(answer.groups.clone(), culprit);
    let shown = ordered.iter().map(|group| shown(group, of_culprit(group)));
    let words = tr_with(
        "Read at {time} from attempt {attempt}:",
        &[("time", &clock(answer.at_ms)), ("attempt", &answer.attempt)],
    );
    view! {
        <p class="text-sm opacity-80">{words}</p>
        <div class="grid grid-cols-1 gap-2 py-1" data-testid="stack-groups">{shown.collect::<Vec<AnyView>>()}</div>
    }
    .into_any()
}

/// Renders a group. The stack of the culprit is open.
fn shown(group: &StackGroup, is_culprit: bool) -> AnyView {
    let badge = is_culprit.then(|| view! { <span class="state state-critical">{tr("culprit")}</span> " " });
    let ranks = rank_list(&group.ranks);
    let label = ranks.clone();
    let line = view! { {badge} <span class="break-words" lang="en"><b>{ranks}</b> ": " {group.doing.clone()}</span> };
    if group.frames.is_empty() {
        return view! { <p class="bg-base-200 rounded px-3 py-2" data-testid="stack-group">{line}</p> }
            .into_any();
    }
    let stack: Vec<String> = group.frames.iter().map(ToString::to_string).collect();
    view! {
        <details class="bg-base-200 rounded px-3 py-2 min-w-0" open=is_culprit data-testid="stack-group">
            <summary class="cursor-pointer">{line}</summary>
            <pre class="text-xs overflow-x-auto p-2" tabindex="0" role="region" aria-label=label>{stack.join("\n")}</pre>
        </details>
    }
    .into_any()
}

/// Returns the groups with ranks of the culprit first. Otherwise, they keep their order: the largest first.
fn culprit_first(groups: Vec<StackGroup>, culprit: &NamedCulprit) -> Vec<StackGroup> {
    let place = |group: &StackGroup| !is_of(culprit, &group.ranks);
    sorted(groups, |a, b| place(a).cmp(&place(b)))
}

fn is_of(culprit: &NamedCulprit, ranks: &[Rank]) -> bool {
    let is_named = |rank: &Rank| {
        culprit.rank == Some(*rank) || culprit.ranks.as_ref().is_some_and(|ranks| ranks.contains(*rank))
    };
    ranks.iter().any(is_named)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(ranks: &[u32]) -> StackGroup {
        StackGroup {
            ranks: ranks.iter().map(|rank| Rank(*rank)).collect(),
            ..StackGroup::default()
        }
    }

    #[test]
    fn the_group_of_the_culprit_comes_first() {
        let groups = || vec![group(&[0, 1, 4]), group(&[3, 5]), group(&[2])];
        let one = NamedCulprit {
            rank: Some(Rank(2)),
            ..NamedCulprit::default()
        };
        let several = NamedCulprit {
            ranks: Some([Rank(2), Rank(3)].into_iter().collect()),
            ..NamedCulprit::default()
        };
        for (culprit, first) in [(one, 2), (several, 3), (NamedCulprit::default(), 0)] {
            let ordered = culprit_first(groups(), &culprit);
            assert_eq!(ordered[0].ranks[0], Rank(first), "{culprit:?}");
            assert_eq!(ordered.len(), 3);
        }
    }
}
