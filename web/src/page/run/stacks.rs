//! The stacks of the ranks, requested when the dialog opens. Ranks with the same stack are grouped.

use domain::api::inspect::AskRanks;
use domain::run::inspect::{StackGroup, rank_list};
use leptos::prelude::*;

use crate::api::unreadable;
use crate::json;
use crate::language::tr;
use crate::ui::{Dialog, ErrorMessage, Modal, PendingRequest, When, dynamic_view};

/// The button and the dialog.
#[component]
pub(super) fn StacksButton(
    /// The run's id.
    id: String,
) -> impl IntoView {
    let dialog = Dialog::new();
    let request = PendingRequest::new();
    let groups = RwSignal::new(Vec::<StackGroup>::new());
    let path = format!("/api/runs/{id}/stacks");
    let ask = StoredValue::new(move || {
        groups.set(Vec::new());
        request.send(
            path.clone(),
            &AskRanks::default(),
            move |answer| match json::read_field::<Vec<StackGroup>>(&answer, "groups") {
                Ok(found) => groups.set(found),
                Err(error) => request.problem.set(Some(unreadable(&error).message)),
            },
        );
    });
    let again = move |_| ask.with_value(|ask| ask());
    let open = move |_| {
        dialog.open();
        ask.with_value(|ask| ask());
    };
    view! {
        <button class="btn btn-sm" data-testid="stacks" on:click=open>{tr("Stacks")}</button>
        <Modal dialog title=tr("Stacks of the ranks") leave=tr("Close")>
            <div class="py-2 grid gap-2" role="status" data-testid="stack-groups">
                <When on=request.busy><p class="opacity-70">{tr("Reading stacks. A rank may take up to 5 seconds to answer…")}</p></When>
                {dynamic_view(move || groups.with(|groups| groups.iter().map(shown).collect_view().into_any()))}
            </div>
            <ErrorMessage what=request.problem />
            <div class="text-right"><button class="btn btn-sm" disabled=request.busy on:click=again>{tr("Query again")}</button></div>
        </Modal>
    }
}

/// Renders one line per group, with its stack if there is one.
fn shown(group: &StackGroup) -> AnyView {
    let line = view! { <b>{rank_list(&group.ranks)}</b> ": " <span class="break-words">{group.doing.clone()}</span> };
    if group.frames.is_empty() {
        return view! { <p>{line}</p> }.into_any();
    }
    let stack: Vec<String> = group.frames.iter().map(ToString::to_string).collect();
    view! { <details><summary class="cursor-pointer">{line}</summary><pre class="text-xs overflow-x-auto p-2">{stack.join("\n")}</pre></details> }.into_any()
}
