//! The knobs of a run with fields for new values, and the changes that were made, each with its verdict.

pub(super) mod change;
mod figures;
mod knob;
mod knob_list;

use std::collections::BTreeMap;

use domain::api::runs::{ApplyKnobs, PreviewChange};
use leptos::prelude::*;

use super::change_dialog::ChangeDialog;
use super::followed::followed;
use super::run_signal::RunSignal;
use crate::language::{tr, tr_with};
use crate::live::{Row, each};
use crate::ui::{ErrorMessage, Heading, When, dynamic_view, text};
use change::MadeChange;
use knob::Knob;
use knob_list::KnobList;

/// Both sections.
#[component]
pub(super) fn Knobs(
    /// The run's id.
    id: String,
    /// The run.
    run: RunSignal,
    /// The dialog that makes changes.
    dialog: ChangeDialog,
) -> impl IntoView {
    let knobs = KnobList::of(&id, run, dialog);
    let is_loading = move || !knobs.list.is_known() && knobs.problem.with(Option::is_none);
    view! {
        <section class="min-w-0 mb-4" data-testid="knobs">
            <Heading text=tr("Knobs") hint=tr("Settings that Lockstep can change. A knob that cannot be changed while it trains starts a new attempt from the last complete checkpoint.") />
            <ErrorMessage what=knobs.problem />
            <When on=is_loading><p class="opacity-70">{tr("Loading…")}</p></When>
            <Form knobs dialog />
        </section>
        <Changes run knobs dialog />
    }
}

/// The list of knobs, and the button that shows what the entered values would do.
#[component]
fn Form(knobs: KnobList, dialog: ChangeDialog) -> impl IntoView {
    let count = Memo::new(move |_| dialog.drafts.with(BTreeMap::len));
    let has_drafts = move || count.get() > 0;
    let review = move |event: leptos::ev::SubmitEvent| {
        event.prevent_default();
        let set = dialog.drafts.get_untracked();
        if !set.is_empty() {
            dialog.open(PreviewChange::Apply(ApplyKnobs {
                set,
                expected: dialog.expected(),
                ..ApplyKnobs::default()
            }));
        }
    };
    let discard = move |_| {
        dialog.form.forget();
        dialog.drafts.set(BTreeMap::new());
    };
    let words = text(move || match count.get() {
        0 => tr("Review changes…").to_owned(),
        1 => tr("Review 1 change…").to_owned(),
        count => tr_with("Review {count} changes…", &[("count", &count)]),
    });
    let is_idle = move || !has_drafts() || dialog.form.busy.get();
    view! {
        <form method="post" novalidate on:submit=review>
            <ul>{each(move || knobs.list.rows(), move |row| view! { <Knob row dialog /> }.into_any())}</ul>
            <When on=move || dialog.may.get()>
                <div class="flex flex-wrap gap-2 mt-2">
                    <button type="submit" class="btn btn-primary btn-sm" disabled=is_idle data-testid="review-changes">{words}</button>
                    <When on=has_drafts><button type="button" class="btn btn-ghost btn-sm" on:click=discard>{tr("Discard")}</button></When>
                </div>
            </When>
            <ErrorMessage what=dialog.form.problem />
        </form>
    }
}

/// The changes, newest first.
#[component]
fn Changes(run: RunSignal, knobs: KnobList, dialog: ChangeDialog) -> impl IntoView {
    let made = followed(move || {
        run.with(|run| {
            run.as_ref()
                .map(|run| MadeChange::all(&run.more.attempts))
                .unwrap_or_default()
        })
    });
    view! {
        <section class="min-w-0 mb-4" data-testid="knob-changes">
            <Heading text=tr("Changes") hint=tr("Newest first. The verdict compares the attempts before a change with those since; it needs 20 steps of each.") />
            <When on=move || made.is_empty()><p class="opacity-70">{tr("No changes yet.")}</p></When>
            <ul class="grid grid-cols-1 gap-2">{each(move || made.rows(), move |row| view! { <OneChange row knobs dialog /> }.into_any())}</ul>
        </section>
    }
}

#[component]
fn OneChange(row: Row<MadeChange>, knobs: KnobList, dialog: ChangeDialog) -> impl IntoView {
    let made = row.signal();
    let (id, words) = row.peek(|made| (made.id, made.words()));
    let can_revert = move || dialog.may.get() && knobs.revertible.with(|ids| ids.contains(&id));
    let label = tr_with("Revert… {change}", &[("change", &words)]);
    view! {
        <li class="card bg-base-200 p-3 min-w-0" data-testid="change">
            {dynamic_view(move || made.with(change::shown))}
            <When on=can_revert><p class="mt-2"><button class="btn btn-sm" aria-label=label.clone() on:click=move |_| dialog.open_revert(id) data-testid="revert">{tr("Revert…")}</button></p></When>
        </li>
    }
}
