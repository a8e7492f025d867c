//! Name, state and outcome of a run, and the actions on it.

use domain::api::session::Role;
use domain::run::state::RunState;
use leptos::prelude::*;

use super::checkpoint_list::CheckpointList;
use super::resume::ResumeButton;
use super::run_signal::RunSignal;
use super::stacks::StacksButton;
use super::stop::{StopButton, progress};
use crate::language::{tr, tr_parts, tr_with};
use crate::live::Run;
use crate::session::UserSession;
use crate::ui::{Ago, StateBadge, UnknownAttempts, When, text};

/// The head of the page.
#[component]
pub(super) fn Head(
    /// The run's id.
    id: String,
    /// The run.
    run: RunSignal,
    /// The checkpoints of the run.
    checkpoints: CheckpointList,
) -> impl IntoView {
    let session = expect_context::<UserSession>();
    let state =
        Memo::new(move |_| run.with(|run| run.as_ref().map_or(RunState::Draft, |run| run.summary.state)));
    let why = words(run, |run| {
        run.summary
            .outcome
            .as_ref()
            .map(|outcome| outcome.message.to_string())
    });
    let stopping = words(run, |run| {
        let stop = run.more.stop.as_ref().filter(|_| !run.summary.state.is_final());
        stop.map(progress)
    });
    let submitted_ms =
        Signal::derive(move || run.with(|run| run.as_ref().map_or(0, |run| run.summary.submitted_ms)));
    let watched = Memo::new(move |_| run.with(|run| run.as_ref().is_some_and(|run| run.more.watched)));
    let unknown = Signal::derive(move || {
        run.with(|run| {
            run.as_ref()
                .map_or_else(Vec::new, |run| run.more.unknown_attempts.clone())
        })
    });
    let may = Memo::new(move |_| session.may(Role::Operator) && !watched.get());
    let can_stop = move || may.get() && !state.get().is_final() && state.get() != RunState::Stopping;
    let can_resume = move || may.get() && state.get().is_final();
    let can_ask = move || session.may(Role::Operator) && state.get() == RunState::Running;
    let (stopped, resumed, inspected, copied) = (id.clone(), id.clone(), id.clone(), id.clone());
    let [submitted, ago] = tr_parts("submitted {time}");
    view! {
        <section class="flex flex-wrap gap-x-3 gap-y-1 items-center">
            <h1 class="text-2xl font-bold break-all">{id}</h1>
            <StateBadge state />
            <When on=can_stop><StopButton id=stopped.clone() run checkpoints /></When>
            <When on=can_ask><StacksButton id=inspected.clone() /></When>
            <When on=can_resume><ResumeButton id=resumed.clone() checkpoints /></When>
            <When on=move || may.get()><a class="btn btn-sm" href=format!("/runs/new?from={copied}") data-testid="clone">{tr("Clone")}</a></When>
            <p class="w-full text-sm opacity-80">{words(run, |run| Some(detail(run)))} {submitted} <Ago at_ms=submitted_ms /> {ago}</p>
            <p class="w-full break-words empty:hidden" data-testid="run-outcome">{why}</p>
            <p class="w-full break-words empty:hidden" role="status" data-testid="stop-progress">{stopping}</p>
            <UnknownAttempts of=unknown />
            <When on=move || watched.get()>
                <p class="w-full text-sm" data-testid="watched">{tr("Watched run: it was started by lockstep exec, Slurm or by hand, so it cannot be stopped or resumed here.")}</p>
            </When>
        </section>
    }
}

/// Returns a text about a run; empty if there is none.
fn words(run: RunSignal, say: fn(&Run) -> Option<String>) -> Signal<String> {
    text(move || run.with(|run| run.as_ref().and_then(say)).unwrap_or_default())
}

fn detail(run: &Run) -> String {
    let summary = &run.summary;
    let ranks = match summary.world_size {
        0 => tr("ranks not placed yet").to_owned(),
        1 => tr("1 rank").to_owned(),
        many => tr_with("{count} ranks", &[("count", &many)]),
    };
    let placed = if summary.nodes.is_empty() {
        ranks
    } else {
        let nodes = summary.nodes.join(", ");
        tr_with("{ranks} on {nodes}", &[("ranks", &ranks), ("nodes", &nodes)])
    };
    let attempt = tr_with("attempt {number}", &[("number", &summary.attempt)]);
    format!("{} · {attempt} · {placed} · ", summary.program)
}
