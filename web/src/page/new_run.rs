//! A new run: one specification, shown as a form or as text. The collector checks it while the user types.
//!
//! ```text
//! fields ─ kind ─▶ form ──┐                 ┌▶ problems ▶ field, summary
//!                         ├ editor ─ check ─┼▶ settings of the program ▶ settings
//!            text_view ───┘   │             ├▶ memory plan ▶ memory
//!                             │             └▶ placement now ▶ placement
//!      secrets ───────────────┴▶ POST /api/runs
//! ```

mod check;
mod copied;
mod document;
mod editor;
mod field;
mod fields;
mod form;
mod kind;
mod lines;
mod memory;
mod placement;
mod secrets;
mod sections;
mod settings;
mod summary;
mod text_view;

use domain::api::session::Role;
use leptos::prelude::*;
use leptos::task::spawn_local;

use crate::language::tr;
use crate::route::Route;
use crate::session::UserSession;
use crate::ui::{ErrorMessage, Title, When, dynamic_view, text};
use copied::CopyNotice;
use editor::Editor;
use memory::MemoryPlan;
use placement::Placement;
use sections::Sections;
use summary::Summary;
use text_view::{TextPreview, TextView, Views};

/// The page with the form and the text.
#[component]
pub(crate) fn NewRun() -> impl IntoView {
    let session = expect_context::<UserSession>();
    let route = expect_context::<Route>();
    let editor = Editor::new();
    let submit = move |event: leptos::ev::SubmitEvent| {
        event.prevent_default();
        spawn_local(async move { editor.submit(session, route).await });
    };
    let (refused, busy, is_text) = (editor.refused, editor.busy, editor.is_text);
    let allowed = move || session.may(Role::Operator);
    view! {
        <Title of=tr("New run") />
        <form class="new-run grid grid-cols-1 gap-4 items-start max-w-3xl" method="post" on:submit=submit novalidate data-testid="new-run">
            <div class="grid grid-cols-1 gap-4 min-w-0">
                <div>
                    <h1 class="text-2xl font-bold">{tr("New run")}</h1>
                    <p class="text-sm opacity-70">{tr("Starts a training run with torchrun, one process per GPU. Your script needs no changes. A recipe is a small built-in training program.")}</p>
                </div>
                <CopyNotice copy=editor.copy />
                <Views editor />
                <When on=move || !is_text.get()><Sections editor /></When>
                <When on=is_text><TextView editor /></When>
            </div>
            <div class="grid grid-cols-1 gap-4 min-w-0">
                <MemoryPlan editor />
                <Placement editor />
                <TextPreview editor />
                <Hints editor />
                <ErrorMessage what=editor.check.failure />
                <Summary editor />
                <When on=move || refused.with(Option::is_some)>
                    <p class="alert alert-error" role="alert">{text(move || refused.get().map(|error| error.message).unwrap_or_default())}</p>
                </When>
                <When on=move || !allowed()><p class="alert alert-warning">{tr("You need the operator role to start runs.")}</p></When>
                <button class="btn btn-primary justify-self-start" type="submit" data-testid="submit-run"
                    disabled=move || busy.get() || editor.copy.is_loading.get() || !allowed() || editor.problems.with(|problems| !problems.is_empty())>
                    {text(move || if busy.get() { tr("Starting…") } else { tr("Start") })}
                </button>
            </div>
        </form>
    }
}

/// Recommendations about things that are not errors.
#[component]
fn Hints(editor: Editor) -> impl IntoView {
    let hints = Memo::new(move |_| editor.check.answer.with(|answer| answer.hints.clone()));
    dynamic_view(move || {
        let one = |hint| view! { <p class="alert alert-warning text-sm" role="status">{hint}</p> }.into_any();
        hints
            .get()
            .into_iter()
            .map(one)
            .collect::<Vec<AnyView>>()
            .into_any()
    })
}
