//! The filter and the grouping of the table.

use std::collections::BTreeSet;

use domain::api::runs::RunSummary;
use domain::run::state::RunState;
use leptos::prelude::*;

use super::all::AllRuns;
use super::arrange::{ACTIVE, label_text};
use super::choices::Choices;
use crate::language::{tr, tr_with};
use crate::ui::{dynamic_view, run_state_word};

/// The states to which the sentence of the overview links.
const FAILED_OR_LOST: &str = "failed,lost";
/// The states of a submitted run, in the order of its life.
const STATES: [RunState; 10] = [
    RunState::Queued,
    RunState::Preparing,
    RunState::Starting,
    RunState::Running,
    RunState::Lost,
    RunState::Restarting,
    RunState::Stopping,
    RunState::Succeeded,
    RunState::Failed,
    RunState::Stopped,
];

/// An entry of a select box: its value in the address, and its text.
type Entry = (String, String);

/// The controls above the table.
#[component]
pub(super) fn Filter(all: AllRuns, choices: Choices) -> impl IntoView {
    let of_runs = move |of: fn(&RunSummary) -> Vec<String>| {
        Memo::new(move |_| {
            let mut found = BTreeSet::new();
            for row in all.list.rows() {
                found.extend(of(&row.get()));
            }
            found.into_iter().collect::<Vec<String>>()
        })
    };
    let owners = of_runs(|run| run.owner.iter().cloned().collect());
    let labels = of_runs(|run| {
        let labels = run.labels.iter();
        labels.map(|(key, value)| label_text(key, value)).collect()
    });
    let keys = of_runs(|run| run.labels.keys().cloned().collect());
    let same = |word: String| (word.clone(), word);
    let owners = move || owners.get().into_iter().map(same).collect::<Vec<Entry>>();
    let labels = move || labels.get().into_iter().map(same).collect::<Vec<Entry>>();
    let groups = move || {
        let fixed = [("owner", tr("by owner")), ("program", tr("by program"))];
        let fixed = fixed.map(|(value, words)| (value.to_owned(), words.to_owned()));
        let label = |key: String| {
            (
                format!("label:{key}"),
                tr_with("by label {key}", &[("key", &key)]),
            )
        };
        let labels = keys.get().into_iter().map(label);
        fixed.into_iter().chain(labels).collect::<Vec<Entry>>()
    };
    let words = choices.words;
    view! {
        <div class="flex flex-wrap gap-2 mb-1">
            <input
                class="input input-sm w-48"
                type="search"
                placeholder=tr("Filter")
                aria-label=tr("Filter runs")
                prop:value=move || words.get().unwrap_or_default()
                on:input=move |event| choices.set("q", &event_target_value(&event))
                data-testid="runs-filter"
            />
            {select(choices, ("state", tr("State"), tr("any state")), choices.state, states)}
            {select(choices, ("owner", tr("Owner"), tr("any owner")), choices.owner, owners)}
            {select(choices, ("label", tr("Label"), tr("any label")), choices.label, labels)}
            {select(choices, ("group", tr("Group"), tr("no groups")), choices.group, groups)}
        </div>
    }
}

/// Returns the choices of the state.
fn states() -> Vec<Entry> {
    let groups = [(ACTIVE, tr("active")), (FAILED_OR_LOST, tr("failed or lost"))];
    let states = STATES.map(|state| (state.as_str(), run_state_word(state)));
    let entry = |(value, words): (&str, &str)| (value.to_owned(), words.to_owned());
    groups.into_iter().chain(states).map(entry).collect()
}

/// A select box for a parameter: its name in the address, its name for the reader, and the text of the entry without a value.
fn select(
    choices: Choices,
    (param, label, none): (&'static str, &'static str, &'static str),
    chosen: Memo<Option<String>>,
    entries: impl Fn() -> Vec<Entry> + Send + 'static,
) -> AnyView {
    let options = dynamic_view(move || {
        let (mut entries, chosen) = (entries(), chosen.get().unwrap_or_default());
        // A shared address may contain a value that no run has any more.
        if !chosen.is_empty() && entries.iter().all(|(value, _)| *value != chosen) {
            entries.push((chosen.clone(), chosen.clone()));
        }
        let option = |(value, words): Entry| {
            let selected = value == chosen;
            view! { <option value=value selected=selected>{words}</option> }.into_any()
        };
        let options: Vec<AnyView> = entries.into_iter().map(option).collect();
        options.into_any()
    });
    let choose = move |event| choices.set(param, &event_target_value(&event));
    view! {
        <select class="select select-sm w-auto max-w-48" aria-label=label on:change=choose data-testid=format!("runs-{param}")>
            <option value="">{none}</option>
            {options}
        </select>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::states;

    #[test]
    fn the_states_to_which_the_overview_links_are_a_choice() {
        let shown: Vec<_> = states().into_iter().take(4).collect();
        let expected = [
            ("active", "active"),
            ("failed,lost", "failed or lost"),
            ("queued", "queued"),
            ("preparing", "preparing"),
        ];
        assert_eq!(
            shown,
            expected.map(|(value, words)| (value.to_owned(), words.to_owned()))
        );
    }
}
