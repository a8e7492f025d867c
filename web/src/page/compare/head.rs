//! The heads of both sides, with the choice of the attempt.

use domain::run::state::RunState;
use leptos::prelude::*;

use super::side::Side;
use super::state::State;
use crate::language::tr_with;
use crate::ui::{StateBadge, dynamic_view, text};

/// The colours of the lines of both sides, as the charts have them.
const COLOURS: [&str; 2] = ["var(--series-1)", "var(--series-2)"];

/// Both heads side by side.
#[component]
pub(super) fn Heads(state: State) -> impl IntoView {
    let heads: Vec<AnyView> = (0..COLOURS.len()).map(|place| head(state, place)).collect();
    view! { <div class="grid grid-cols-1 gap-3 sm:grid-cols-2">{heads}</div> }
}

fn head(state: State, place: usize) -> AnyView {
    let of = move |say: fn(&Side) -> String| text(move || state.side(place, say).unwrap_or_default());
    let badge = Signal::derive(move || {
        let of_run = state.side(place, |side| side.run.state);
        of_run.unwrap_or(RunState::Draft)
    });
    let attempts = Memo::new(move |_| {
        state
            .side(place, |side| (side.attempts.clone(), side.attempt))
            .unwrap_or_default()
    });
    let options = dynamic_view(move || {
        let (all, chosen) = attempts.get();
        let option = |attempt: u32| {
            let words = tr_with("attempt {attempt}", &[("attempt", &attempt)]);
            view! { <option value=attempt.to_string() selected=attempt == chosen>{words}</option> }.into_any()
        };
        let options: Vec<AnyView> = all.into_iter().map(option).collect();
        options.into_any()
    });
    let choose = move |event| {
        if let Ok(attempt) = event_target_value(&event).parse() {
            state.choose_attempt(place, attempt);
        }
    };
    let label = text(move || {
        let run = state.side(place, |side| side.run.id.clone());
        tr_with("Attempt of {run}", &[("run", &run.unwrap_or_default())])
    });
    view! {
        <section class="card bg-base-200 p-3 min-w-0" data-testid="side">
            <div class="flex flex-wrap gap-x-3 gap-y-1 items-center">
                <h2 class="font-bold break-all">
                    <span class="chart-swatch" style:background=COLOURS[place]></span>
                    <a class="link font-mono" href=of(|side| format!("/runs/{}", side.run.id))>{of(|side| side.run.id.clone())}</a>
                </h2>
                <StateBadge state=badge />
                <select class="select select-sm w-auto ml-auto" aria-label=label on:change=choose data-testid="side-attempt">{options}</select>
            </div>
            <p class="text-sm text-muted break-words">{of(facts)}</p>
        </section>
    }
    .into_any()
}

/// Returns program, owner, ranks and labels of the run.
fn facts(side: &Side) -> String {
    let run = &side.run;
    let mut facts = vec![run.program.clone()];
    facts.extend(run.owner.clone());
    if run.world_size > 0 {
        facts.push(tr_with("{count} ranks", &[("count", &run.world_size)]));
    }
    facts.extend(run.labels.iter().map(|(key, value)| format!("{key}={value}")));
    facts.join(" · ")
}
