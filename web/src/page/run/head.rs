//! Name, state and outcome of a run, and the button that stops it.

use domain::api::session::Role;
use domain::run::state::RunState;
use leptos::prelude::*;

use super::Known;
use super::stop::StopButton;
use crate::session::Who;
use crate::ui::{Ago, StateBadge, When, text};

/// The head of the page.
#[component]
pub(super) fn Head(
    /// The run's id.
    id: String,
    /// The run.
    run: Known,
) -> impl IntoView {
    let who = expect_context::<Who>();
    let state =
        Memo::new(move |_| run.with(|run| run.as_ref().map_or(RunState::Draft, |run| run.summary.state)));
    let why = Memo::new(move |_| {
        run.with(|run| {
            run.as_ref()?
                .summary
                .outcome
                .as_ref()
                .map(|outcome| outcome.message.clone())
        })
    });
    let submitted_ms =
        Signal::derive(move || run.with(|run| run.as_ref().map_or(0, |run| run.summary.submitted_ms)));
    let can_stop = Memo::new(move |_| {
        who.may(Role::Operator) && !state.get().is_final() && state.get() != RunState::Stopping
    });
    let stopped = id.clone();
    view! {
        <section class="flex flex-wrap gap-x-3 gap-y-1 items-center">
            <h1 class="text-2xl font-bold break-all">{id}</h1>
            <StateBadge state />
            <When on=move || can_stop.get()><StopButton id=stopped.clone() /></When>
            <p class="w-full text-sm opacity-80">{text(move || detail(run).unwrap_or_default())} "submitted " <Ago at_ms=submitted_ms /></p>
            <When on=move || why.with(Option::is_some)><p class="w-full break-words" data-testid="run-outcome">{text(move || why.get().unwrap_or_default())}</p></When>
        </section>
    }
}

fn detail(run: Known) -> Option<String> {
    run.with(|run| {
        let summary = &run.as_ref()?.summary;
        let ranks = match summary.world_size {
            0 => "ranks not placed yet".to_owned(),
            1 => "1 rank".to_owned(),
            many => format!("{many} ranks"),
        };
        let nodes = if summary.nodes.is_empty() {
            String::new()
        } else {
            format!(" on {}", summary.nodes.join(", "))
        };
        Some(format!(
            "{} · attempt {} · {ranks}{nodes} · ",
            summary.program, summary.attempt
        ))
    })
}
