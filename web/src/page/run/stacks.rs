//! Where the ranks are in their code: asked for when the dialog is opened, ranks in the same place together.

use domain::api::inspect::AskRanks;
use domain::run::inspect::{Frame, StackGroup, rank_list};
use leptos::prelude::*;

use crate::api::unreadable;
use crate::json;
use crate::ui::{Dialog, Question, Trouble, When, Wish, changing};

/// The button and what it shows.
#[component]
pub(super) fn StacksButton(
    /// The run's id.
    id: String,
) -> impl IntoView {
    let dialog = Dialog::new();
    let wish = Wish::new();
    let groups = RwSignal::new(Vec::<StackGroup>::new());
    let path = format!("/api/runs/{id}/stacks");
    let ask = StoredValue::new(move || {
        groups.set(Vec::new());
        wish.send(
            path.clone(),
            &AskRanks::default(),
            move |answer| match json::read_field::<Vec<StackGroup>>(&answer, "groups") {
                Ok(found) => groups.set(found),
                Err(error) => wish.problem.set(Some(unreadable(&error).message)),
            },
        );
    });
    let again = move |_| ask.with_value(|ask| ask());
    let open = move |_| {
        dialog.open();
        ask.with_value(|ask| ask());
    };
    view! {
        <button class="btn btn-sm" data-testid="stacks" on:click=open>"Stacks"</button>
        <Question dialog title="Where the ranks are" leave="Close">
            <div class="py-2 grid gap-2" role="status" data-testid="stack-groups">
                <When on=wish.busy><p class="opacity-70">"Asking the ranks; one that does not answer is waited for 5 seconds…"</p></When>
                {changing(move || groups.with(|groups| groups.iter().map(shown).collect_view().into_any()))}
            </div>
            <Trouble what=wish.problem />
            <div class="text-right"><button class="btn btn-sm" disabled=wish.busy on:click=again>"Ask again"</button></div>
        </Question>
    }
}

/// A line for the group; its stack behind it, where there is one.
fn shown(group: &StackGroup) -> AnyView {
    let line = view! { <b>{rank_list(&group.ranks)}</b> ": " <span class="break-words">{group.doing.clone()}</span> };
    if group.frames.is_empty() {
        return view! { <p>{line}</p> }.into_any();
    }
    let stack: Vec<String> = group.frames.iter().map(frame_line).collect();
    view! { <details><summary class="cursor-pointer">{line}</summary><pre class="text-xs overflow-x-auto p-2">{stack.join("\n")}</pre></details> }.into_any()
}

fn frame_line(frame: &Frame) -> String {
    format!("{} ({}:{})", frame.function, frame.file, frame.line)
}
