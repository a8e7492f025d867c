//! Prunes checkpoints: first a dry run shows what would be removed and kept, with reasons; then, on confirmation, the prune runs.

use domain::api::checkpoints::{PruneAnswer, PruneCheckpoints, PruneLine};
use leptos::prelude::*;

use super::super::checkpoint_list::CheckpointList;
use crate::json;
use crate::language::{tr, tr_with};
use crate::ui::{Dialog, ErrorMessage, Modal, PendingRequest, bytes, dynamic_view, effect, empty_view, text};

/// The button, and the dialog that shows a dry run before anything is removed.
#[component]
pub(super) fn PruneButton(
    /// The run's id.
    id: String,
    /// The checkpoints of the run.
    checkpoints: CheckpointList,
) -> impl IntoView {
    let dialog = Dialog::new();
    let (dry_run, removal) = (PendingRequest::new(), PendingRequest::new());
    let keep = RwSignal::new(String::new());
    let answer = RwSignal::new(None::<PruneAnswer>);
    let path = StoredValue::new(format!("/api/runs/{id}/checkpoints/prune"));
    let asked = move |dry_run: bool| PruneCheckpoints {
        dry_run,
        keep_last: keep.get_untracked().trim().parse().ok(),
        ..PruneCheckpoints::default()
    };
    let look = move || {
        answer.set(None);
        let kept = keep.get_untracked();
        dry_run.send(path.get_value(), &asked(true), move |said| {
            // Another number may have been entered since.
            if keep.get_untracked() == kept {
                answer.set(json::read(&said).ok());
            }
        });
    };
    let look_again = move || {
        removal.problem.set(None);
        look();
    };
    // The collector refuses a list that has changed: the dialog shows the new one.
    effect(move || {
        if removal.problem.with(Option::is_some) {
            look();
        }
    });
    let open = move |_| {
        keep.set(String::new());
        dialog.open();
        look_again();
    };
    let remove = move |_| {
        let shown = answer.get_untracked().unwrap_or_default();
        let body = PruneCheckpoints {
            removes: PruneLine::paths(&shown.removed),
            ..asked(false)
        };
        removal.send(path.get_value(), &body, move |_| {
            dialog.close();
            checkpoints.again();
        });
    };
    let shown = move || dynamic_view(move || answer.get().map_or_else(empty_view, |answer| preview(&answer)));
    let count =
        Memo::new(move |_| answer.with(|answer| answer.as_ref().map_or(0, |answer| answer.removed.len())));
    view! {
        <button class="btn btn-sm" data-testid="prune" on:click=open>{tr("Prune…")}</button>
        <Modal dialog title=tr("Remove checkpoints?") leave=tr("Cancel")>
            <label class="flex flex-wrap gap-2 items-center text-sm py-2">{tr("Keep the last")}
                <input class="input input-sm w-20" inputmode="numeric" name="keep-last" placeholder=tr("as set") bind:value=keep on:change=move |_| look_again() />
            </label>
            <div class="max-h-80 overflow-y-auto" aria-live="polite" data-testid="prune-preview">{shown()}</div>
            <ErrorMessage what=dry_run.problem />
            <ErrorMessage what=removal.problem />
            <div class="text-right mt-2">
                <button class="btn btn-error" data-testid="confirm-prune" disabled=move || removal.busy.get() || count.get() == 0 on:click=remove>
                    {text(move || tr_with("Remove {count}", &[("count", &count.get())]))}
                </button>
            </div>
        </Modal>
    }
}

fn preview(answer: &PruneAnswer) -> AnyView {
    let freed = answer.removed.iter().map(|line| line.own_bytes).sum();
    let (gone, stays) = (lines(&answer.removed), lines(&answer.kept));
    let to_remove = tr_with(
        "To remove: {count}, which frees {size}",
        &[("count", &answer.removed.len()), ("size", &bytes(freed))],
    );
    let to_keep = tr_with("To keep: {count}", &[("count", &answer.kept.len())]);
    view! {
        <h3 class="font-semibold">{to_remove}</h3>
        <ul class="text-sm">{gone}</ul>
        <h3 class="font-semibold mt-2">{to_keep}</h3>
        <ul class="text-sm">{stays}</ul>
    }
    .into_any()
}

fn lines(all: &[PruneLine]) -> Vec<AnyView> {
    let one = |line: &PruneLine| {
        view! { <li class="break-all">{line.path.clone()} <span class="opacity-70">{format!(" – {}", line.reason)}</span></li> }.into_any()
    };
    all.iter().map(one).collect()
}
