//! Actions against the cause. Each shows its cost and how to undo it before it is run.

use domain::api::session::Role;
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use super::diagnosis_state::DiagnosisState;
use crate::language::tr;
use crate::live::{Keyed, Row, each};
use crate::session::UserSession;
use crate::ui::{Dialog, ErrorMessage, Modal, PendingRequest, When, dynamic_view, effect, empty_view, text};

/// An action that is possible now; only the fields that are shown.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct OfferedAction {
    /// The id to send.
    id: String,
    /// The text of the button.
    title: String,
    /// One sentence.
    #[serde(default)]
    cost: String,
    /// One sentence.
    #[serde(default)]
    undo: String,
    /// What is removed.
    #[serde(default)]
    removes: Vec<Removed>,
    /// Possible risks.
    #[serde(default)]
    warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Removed {
    path: String,
}

/// The request body.
#[derive(Serialize)]
struct ActionRequest {
    action: String,
    dry_run: bool,
    /// The checkpoints that the dialog lists: the collector removes no others.
    removes: Vec<String>,
}

/// The dialog that runs the chosen action. It is beside the buttons, so it stays open when its action disappears. Cheap to copy.
#[derive(Clone, Copy)]
struct Confirmation {
    dialog: Dialog,
    request: PendingRequest,
    /// The id of the chosen action.
    chosen: RwSignal<String>,
    /// What it removed when the dialog was opened, so that the list does not change just before it is confirmed. The collector refuses a
    /// list that is no longer right.
    removes: RwSignal<Vec<Removed>>,
}

impl Keyed for OfferedAction {
    fn key(&self) -> String {
        self.id.clone()
    }
}

impl Confirmation {
    fn new() -> Self {
        Self {
            dialog: Dialog::new(),
            request: PendingRequest::new(),
            chosen: RwSignal::new(String::new()),
            removes: RwSignal::new(Vec::new()),
        }
    }

    /// Opens the dialog for an action. While another action is being carried out, opens it for that one.
    fn open(self, action: OfferedAction) {
        if !self.request.busy.get_untracked() {
            self.removes.set(action.removes);
            self.chosen.set(action.id);
            self.request.problem.set(None);
        }
        self.dialog.open();
    }

    fn body(self) -> ActionRequest {
        let removes = self.removes.get_untracked();
        ActionRequest {
            action: self.chosen.get_untracked(),
            dry_run: false,
            removes: removes.into_iter().map(|one| one.path).collect(),
        }
    }
}

/// One button per action, the most likely to help first. Nothing if there are no actions.
#[component]
pub(super) fn Actions(state: DiagnosisState) -> impl IntoView {
    let session = expect_context::<UserSession>();
    let confirmation = Confirmation::new();
    let offered = move || state.actions.rows();
    view! {
        <When on=move || session.may(Role::Operator) && !offered().is_empty()>
            <section class="grid gap-2 min-w-0" aria-label=tr("Actions") data-testid="actions">
                <div class="flex flex-wrap gap-2">{each(offered, move |row| button(state, confirmation, &row))}</div>
            </section>
        </When>
        <Confirm state confirmation />
    }
}

fn button(state: DiagnosisState, confirmation: Confirmation, row: &Row<OfferedAction>) -> AnyView {
    let action = row.signal();
    let id = StoredValue::new(row.key.clone());
    let class = text(move || {
        let offered = state.actions.rows();
        let is_first = offered.first().is_some_and(|first| first.key == id.get_value());
        if is_first {
            "btn min-h-12 h-auto max-w-full btn-primary"
        } else {
            "btn min-h-12 h-auto max-w-full"
        }
    });
    let title = text(move || action.with(|action| action.title.clone()));
    view! {
        <button class=class lang="en" on:click=move |_| confirmation.open(action.get_untracked()) data-testid="action" data-action=id.get_value()>{title} "…"</button>
    }
    .into_any()
}

/// The dialog. Its text follows the action, whose cost may change while the dialog is open.
#[component]
fn Confirm(state: DiagnosisState, confirmation: Confirmation) -> impl IntoView {
    let Confirmation {
        dialog,
        request,
        chosen,
        removes,
    } = confirmation;
    let offered = move || {
        let id = chosen.get();
        let row = state.actions.rows().into_iter().find(|row| row.key == id);
        row.map(|row| row.get())
    };
    // An action that is no longer possible stays as it was shown.
    let action = Memo::new(move |before: Option<&Option<OfferedAction>>| {
        offered().or_else(|| {
            let before = before.cloned().flatten();
            before.filter(|before| before.id == chosen.get())
        })
    });
    let is_possible = Memo::new(move |_| offered().is_some());
    // After a refusal, the dialog shows what the action would remove now.
    effect(move || {
        if request.problem.with(Option::is_some) {
            state.again();
        }
    });
    effect(move || {
        if let (true, Some(now)) = (request.problem.with(Option::is_some), offered()) {
            removes.set(now.removes);
        }
    });
    let send = move |_| {
        request.send(state.path("/act"), &confirmation.body(), move |_| {
            dialog.close();
            state.again();
        });
    };
    let title = text(move || {
        action.with(|action| {
            action
                .as_ref()
                .map_or_else(String::new, |action| action.title.clone())
        })
    });
    // An action that is being carried out may no longer be possible a second time.
    let is_gone = move || !is_possible.get() && !request.busy.get();
    view! {
        <Modal dialog title=tr("Run action?") leave=tr("Cancel")>
            {dynamic_view(move || action.with(|action| action.as_ref().map_or_else(empty_view, |action| explained(action, &removes.read()))))}
            <ErrorMessage what=request.problem />
            <When on=is_gone>
                <p class="text-sm wrong" role="alert" data-testid="action-gone">{tr("This action is no longer possible: the diagnosis has ended, or its run has changed.")}</p>
            </When>
            <div class="mt-3 text-right">
                <button class="btn btn-primary min-h-12 h-auto max-w-full" lang="en" disabled=move || request.busy.get() || !is_possible.get() on:click=send data-testid="confirm-action">{title}</button>
            </div>
        </Modal>
    }
}

/// Renders what the action will do.
fn explained(action: &OfferedAction, removes: &[Removed]) -> AnyView {
    let line = |text: &String| view! { <li class="break-all">{text.clone()}</li> }.into_any();
    let warnings: Vec<AnyView> = action.warnings.iter().map(line).collect();
    let removes: Vec<AnyView> = removes.iter().map(|one| line(&one.path)).collect();
    view! {
        <p class="font-semibold break-words" lang="en">{action.title.clone()}</p>
        <p class="py-1 break-words" lang="en" data-testid="action-cost">{action.cost.clone()}</p>
        <ul class="text-sm list-disc ml-5 max-h-60 overflow-y-auto">{removes}</ul>
        <p class="text-sm break-words">{tr("Undo: ")} <span lang="en">{action.undo.clone()}</span></p>
        <ul class="text-sm list-disc ml-5 wrong" lang="en">{warnings}</ul>
    }
    .into_any()
}
