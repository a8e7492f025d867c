//! The checkpoints of a run: step, size and state; pin one, or prune them.

mod prune;

use domain::api::checkpoints::{CheckpointView, PinCheckpoint, PruneAnswer};
use domain::api::session::Role;
use leptos::prelude::*;

use super::checkpoint_list::{CheckpointList, name};
use super::run_signal::RunSignal;
use crate::language::{marked, tr, tr_with};
use crate::live::{Row, each};
use crate::session::UserSession;
use crate::ui::{Ago, ErrorMessage, Heading, PendingRequest, When, bytes, dynamic_view, empty_view, text};
use prune::PruneButton;

/// The section with the checkpoints.
#[component]
pub(super) fn Checkpoints(
    /// The run's id.
    id: String,
    /// The run.
    run: RunSignal,
    /// The checkpoints of the run.
    checkpoints: CheckpointList,
) -> impl IntoView {
    let session = expect_context::<UserSession>();
    let may = Memo::new(move |_| session.may(Role::Operator) && !is_watched(run));
    let pin = PendingRequest::new();
    let folder = text(move || match checkpoints.folder.get() {
        Some((folder, Some(free))) => tr_with(
            "In {folder}; {free} free.",
            &[("folder", &folder), ("free", &bytes(free))],
        ),
        Some((folder, None)) => tr_with("In {folder}.", &[("folder", &folder)]),
        None => String::new(),
    });
    let problem = text(move || {
        let problem = checkpoints.problem.get();
        problem.map_or(String::new(), |problem| {
            tr_with("Problem: {problem}", &[("problem", &problem)])
        })
    });
    let has_problem = move || checkpoints.problem.with(Option::is_some);
    let there = Memo::new(move |_| checkpoints.list.is_known() && !checkpoints.list.is_empty());
    let path = StoredValue::new(id);
    let row = move |row| {
        view! { <Saving row checkpoints may pin path=format!("/api/runs/{}/checkpoints/pin", path.get_value()) /> }
            .into_any()
    };
    view! {
        <section class="min-w-0" data-testid="checkpoints">
            <Heading text=tr("Checkpoints") hint=tr("Latest step first. A run resumes automatically only from its own complete checkpoints. Only checkpoints that it provably wrote are removed.")>
                <When on=move || may.get() && there.get()><PruneButton id=path.get_value() checkpoints /></When>
            </Heading>
            <p class="text-sm break-all" data-testid="checkpoint-folder">{folder}</p>
            <ErrorMessage what=pin.problem />
            <When on=move || checkpoints.list.is_empty()><p class="opacity-70">{tr("No checkpoints yet.")}</p></When>
            <When on=has_problem><p class="text-sm break-words" data-testid="checkpoint-trouble"><span class="state state-warning">{tr("warning")}</span> " " {problem}</p></When>
            <When on=move || !checkpoints.list.is_known() && !has_problem()><p class="opacity-70">{tr("Loading…")}</p></When>
            <When on=move || there.get()>
                <div class="overflow-x-auto" tabindex="0" role="region" aria-label=tr("Table of checkpoints")>
                    <table class="rows">
                        <thead><tr><th>{tr("Checkpoint")}</th><th>{tr("Content")}</th><th>{tr("Size")}</th><th>{tr("Took")}</th><th>{tr("Saved")}</th><th>{tr("State")}</th><th>{tr("On prune")}</th><th>{tr("Keep")}</th></tr></thead>
                        <tbody>{each(move || checkpoints.list.rows(), row)}</tbody>
                    </table>
                </div>
            </When>
        </section>
    }
}

fn is_watched(run: RunSignal) -> bool {
    run.with(|run| run.as_ref().is_some_and(|run| run.more.watched))
}

#[component]
fn Saving(
    row: Row<CheckpointView>,
    checkpoints: CheckpointList,
    may: Memo<bool>,
    pin: PendingRequest,
    path: String,
) -> impl IntoView {
    let one = row.signal();
    let of = move |part: fn(&CheckpointView) -> String| text(move || one.with(part));
    let finished = dynamic_view(move || match one.with(|one| one.finished_ms) {
        Some(at_ms) => view! { <Ago at_ms /> }.into_any(),
        None => "–".into_any(),
    });
    let problem = dynamic_view(move || match one.with(|one| one.problem.clone()) {
        Some(problem) => view! { <p class="text-xs break-words max-w-sm">{problem}</p> }.into_any(),
        None => empty_view(),
    });
    let not_removed = text(move || one.with(not_removed));
    let pinned = Signal::derive(move || one.with(|one| one.pinned));
    let listed = row.key.clone();
    let retention = text(move || {
        checkpoints
            .retention
            .with(|retention| on_prune(&listed, retention))
    });
    let key = row.key.clone();
    let keep = move |event| {
        let body = PinCheckpoint {
            path: key.clone(),
            pinned: event_target_checked(&event),
        };
        pin.send(path.clone(), &body, move |_| checkpoints.again());
    };
    let label = text(move || tr_with("Keep {checkpoint}", &[("checkpoint", &one.with(name))]));
    view! {
        <tr data-testid="checkpoint">
            <td title=row.key.clone()>{of(name)} " " <span class="state state-info" hidden=move || !one.with(|one| one.in_use)>{tr("in use")}</span></td>
            <td>{of(content)}</td>
            <td class="whitespace-nowrap">{of(size)}</td>
            <td>{of(|one| one.duration_ms.map_or("–".to_owned(), took))}</td>
            <td>{finished}</td>
            <td><span class=of(|one| badge(one).to_owned())>{of(state)}</span>{problem}</td>
            <td class="text-xs break-words max-w-xs" data-testid="on-prune">{retention}<p class="empty:hidden" data-testid="not-removed">{not_removed}</p></td>
            <td><input type="checkbox" aria-label=label prop:checked=pinned disabled=move || !may.get() || pin.busy.get() on:change=keep /></td>
        </tr>
    }
}

/// Returns what a prune by the run's own rules would do with a checkpoint now, from a dry run.
fn on_prune(path: &str, retention: &PruneAnswer) -> String {
    let removed = retention.removed.iter();
    let removed = removed.map(|line| (marked("Remove: {reason}"), line));
    let kept = retention.kept.iter().map(|line| (marked("Keep: {reason}"), line));
    let found = removed.chain(kept).find(|(_, line)| line.path == path);
    found.map_or_else(String::new, |(words, line)| {
        tr_with(words, &[("reason", &line.reason)])
    })
}

/// Returns why the last request to remove a checkpoint had no effect.
fn not_removed(one: &CheckpointView) -> String {
    let reason = one.not_removed.as_ref();
    reason.map_or_else(String::new, |reason| {
        tr_with("Not removed: {reason}", &[("reason", reason)])
    })
}

fn content(one: &CheckpointView) -> String {
    let words = match (one.content == "model", one.best) {
        (true, true) => tr("model only, best"),
        (true, false) => tr("model only"),
        (false, true) => tr("full, best"),
        (false, false) => tr("full"),
    };
    words.to_owned()
}

/// Returns the size of the files. If a checkpoint shares files, also the size of those that it does not share.
fn size(one: &CheckpointView) -> String {
    if one.own_bytes < one.bytes {
        tr_with(
            "{size}, {own} unshared",
            &[("size", &bytes(one.bytes)), ("own", &bytes(one.own_bytes))],
        )
    } else {
        bytes(one.bytes)
    }
}

fn took(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        _ => format!("{} min {} s", ms / 60_000, ms / 1_000 % 60),
    }
}

fn state(one: &CheckpointView) -> String {
    let words = match (one.complete, one.writing) {
        (true, _) => tr("complete"),
        (false, true) => tr("being written"),
        (false, false) => tr("incomplete"),
    };
    words.to_owned()
}

fn badge(one: &CheckpointView) -> &'static str {
    match (one.complete, one.writing) {
        (true, _) => "state state-ok",
        (false, true) => "state state-info",
        (false, false) => "state state-warning",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_says_what_a_prune_would_do() {
        let line = |path: &str, reason: &str| domain::api::checkpoints::PruneLine {
            path: path.into(),
            reason: reason.into(),
            ..Default::default()
        };
        let retention = PruneAnswer {
            removed: vec![line("/c/1", "older than the last 1")],
            kept: vec![line("/c/2", "not proven to be this run's")],
        };
        assert_eq!(on_prune("/c/1", &retention), "Remove: older than the last 1");
        assert_eq!(on_prune("/c/2", &retention), "Keep: not proven to be this run's");
        assert_eq!(on_prune("/c/3", &retention), "");
    }

    #[test]
    fn a_checkpoint_says_what_it_is() {
        let shared = CheckpointView {
            content: "model".into(),
            best: true,
            bytes: 4_096,
            own_bytes: 1_024,
            ..CheckpointView::default()
        };
        assert_eq!(content(&shared), "model only, best");
        assert_eq!(size(&shared), "4.0 KiB, 1.0 KiB unshared");
        let alone = CheckpointView {
            own_bytes: 4_096,
            ..shared
        };
        assert_eq!(size(&alone), "4.0 KiB");
        for (complete, writing, expected) in [
            (true, false, "complete"),
            (false, true, "being written"),
            (false, false, "incomplete"),
        ] {
            let one = CheckpointView {
                complete,
                writing,
                ..CheckpointView::default()
            };
            assert_eq!(state(&one), expected);
        }
        for (ms, expected) in [(12, "12 ms"), (1_250, "1.2 s"), (125_000, "2 min 5 s")] {
            assert_eq!(took(ms), expected);
        }
    }
}
