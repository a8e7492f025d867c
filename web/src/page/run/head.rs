//! Name, state, progress and outcome of a run, and the actions on it.

use domain::api::session::Role;
use domain::run::knob::Change;
use domain::run::state::RunState;
use leptos::prelude::*;

use super::address::of_tab;
use super::change_dialog::ChangeDialog;
use super::checkpoint_list::CheckpointList;
use super::progress::Progress;
use super::resume::ResumeButton;
use super::run_signal::RunSignal;
use super::stacks::StacksButton;
use super::stop::{StopButton, progress};
use super::tabs::Tab;
use super::trace::TraceButton;
use crate::language::{tr, tr_parts, tr_with};
use crate::live::Run;
use crate::session::UserSession;
use crate::ui::{Ago, StateBadge, UnknownAttempts, When, text};

/// Maximum number of nodes that are named; the part *Attempts and settings* names all.
const NAMED_NODES_MAX: usize = 4;
/// Number of digits of a commit.
const COMMIT_CHARS: usize = 10;

/// The head of the page.
#[component]
pub(super) fn Head(
    /// The run's id.
    id: String,
    /// The run.
    run: RunSignal,
    /// The checkpoints of the run.
    checkpoints: CheckpointList,
    /// The dialog that changes the run.
    dialog: ChangeDialog,
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
    let may = dialog.may;
    let can_stop = move || may.get() && !state.get().is_final() && state.get() != RunState::Stopping;
    let can_resume = move || may.get() && state.get().is_final();
    let can_ask = move || session.may(Role::Operator) && state.get() == RunState::Running;
    let since_ms = move || run.with(|run| run.as_ref()?.more.state_since_ms);
    let is_since_known = move || since_ms().is_some();
    let since_ms = Signal::derive(move || since_ms().unwrap_or_default());
    let (stopped, resumed, inspected, copied) = (id.clone(), id.clone(), id.clone(), id.clone());
    let (traced, knobs) = (id.clone(), of_tab(&id, Tab::Attempts));
    let pending = words(run, |run| run.more.pending.as_ref().map(waiting));
    let requested = text(move || {
        dialog
            .requested
            .with(|requested| requested.as_deref().map_or_else(String::new, done))
    });
    let (progress_of, [since, since_end]) = (id.clone(), tr_parts("since {time}"));
    let [submitted, ago] = tr_parts("submitted {time}");
    view! {
        <section class="flex flex-wrap gap-x-3 gap-y-1 items-center">
            <h1 class="text-2xl font-bold break-all">{id}</h1>
            <span><StateBadge state /> <When on=is_since_known><span class="text-muted" data-testid="state-since">" " {since} <Ago at_ms=since_ms /> {since_end}</span></When></span>
            <When on=can_stop><StopButton id=stopped.clone() run checkpoints /></When>
            <When on=can_ask><StacksButton id=inspected.clone() /></When>
            <When on=can_ask><TraceButton id=traced.clone() run /></When>
            <When on=can_resume><ResumeButton id=resumed.clone() checkpoints /></When>
            <When on=move || may.get()><a class="btn btn-sm" href=format!("/runs/new?from={copied}") data-testid="clone">{tr("Clone")}</a></When>
            <When on=move || may.get()><a class="btn btn-sm" href=knobs.clone() data-testid="change-knobs">{tr("Change knobs")}</a></When>
            <Progress id=progress_of run />
            <p class="w-full text-sm opacity-80" data-testid="run-detail">{words(run, |run| Some(detail(run)))} {submitted} <Ago at_ms=submitted_ms /> {ago}</p>
            <p class="w-full break-words empty:hidden" lang="en" data-testid="run-outcome">{why}</p>
            <p class="w-full break-words empty:hidden" role="status" data-testid="stop-progress">{stopping}</p>
            <p class="w-full break-words empty:hidden" role="status" data-testid="change-requested">{requested}</p>
            <p class="w-full break-words empty:hidden" role="status" data-testid="change-pending">{pending}</p>
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

/// Returns what was requested, and where its result is.
fn done(change: &str) -> String {
    tr_with(
        "Requested: {change}. Attempts and settings lists its progress and its verdict.",
        &[("change", &change)],
    )
}

/// Returns what happens when the current attempt has ended.
fn waiting(change: &Change) -> String {
    tr_with(
        "The current attempt ends. The next one begins with: {change}.",
        &[("change", &change.words())],
    )
}

fn detail(run: &Run) -> String {
    let summary = &run.summary;
    let owner = summary.owner.as_ref();
    let owner = owner.map(|owner| tr_with("owner {owner}", &[("owner", owner)]));
    let attempt = run.more.attempts.last();
    let commit = attempt.and_then(|attempt| attempt.provenance.as_ref()?.commit.as_deref());
    let commit = commit.map(|commit| tr_with("commit {commit}", &[("commit", &short(commit))]));
    let parts = [
        Some(summary.program.clone()),
        Some(tr_with("attempt {number}", &[("number", &summary.attempt)])),
        Some(placed(summary.world_size, &summary.nodes)),
        owner,
        commit,
        // The time of the submission follows.
        Some(String::new()),
    ];
    parts.into_iter().flatten().collect::<Vec<String>>().join(" · ")
}

/// Returns the number of ranks and their nodes.
fn placed(world_size: u32, nodes: &[String]) -> String {
    let ranks = match world_size {
        0 => tr("ranks not placed yet").to_owned(),
        1 => tr("1 rank").to_owned(),
        many => tr_with("{count} ranks", &[("count", &many)]),
    };
    match nodes.len() {
        0 => ranks,
        1..=NAMED_NODES_MAX => tr_with(
            "{ranks} on {nodes}",
            &[("ranks", &ranks), ("nodes", &nodes.join(", "))],
        ),
        count => tr_with(
            "{ranks} on {count} nodes",
            &[("ranks", &ranks), ("count", &count)],
        ),
    }
}

/// Shortens a commit; whether files differ from it stays.
fn short(commit: &str) -> String {
    let (hash, changes) = commit.split_at(commit.find('+').unwrap_or(commit.len()));
    format!("{}{changes}", hash.get(..COMMIT_CHARS).unwrap_or(hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_nodes_are_named_and_many_are_counted() {
        let nodes: Vec<String> = (0..8).map(|n| format!("node-{n}")).collect();
        for (world_size, nodes, expected) in [
            (0, &nodes[..0], "ranks not placed yet"),
            (1, &nodes[..1], "1 rank on node-0"),
            (32, &nodes[..4], "32 ranks on node-0, node-1, node-2, node-3"),
            (64, &nodes[..], "64 ranks on 8 nodes"),
        ] {
            assert_eq!(placed(world_size, nodes), expected);
        }
    }

    #[test]
    fn a_commit_is_short() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(short(commit), "0123456789");
        assert_eq!(short(&format!("{commit}+changes")), "0123456789+changes");
        assert_eq!(short("abc123+changes"), "abc123+changes");
    }
}
