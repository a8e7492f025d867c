//! Actions against the cause. Each shows its cost and how to undo it before it is run.

use domain::api::session::Role;
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use super::diagnosis_state::DiagnosisState;
use crate::language::tr;
use crate::session::UserSession;
use crate::ui::{Dialog, ErrorMessage, Modal, PendingRequest, When, dynamic_view};

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

/// One button per action, the most likely to help first. Nothing if there are no actions.
#[component]
pub(super) fn Actions(state: DiagnosisState) -> impl IntoView {
    let session = expect_context::<UserSession>();
    let buttons = move || {
        dynamic_view(move || {
            let offered = state.actions.get();
            let buttons: Vec<AnyView> = offered
                .into_iter()
                .enumerate()
                .map(|(index, action)| button(state, index == 0, action))
                .collect();
            buttons.into_any()
        })
    };
    view! {
        <When on=move || session.may(Role::Operator) && !state.actions.read().is_empty()>
            <section class="grid gap-2" aria-label=tr("Actions") data-testid="actions">
                <div class="flex flex-wrap gap-2">{buttons()}</div>
            </section>
        </When>
    }
}

fn button(state: DiagnosisState, is_first: bool, action: OfferedAction) -> AnyView {
    let (dialog, request) = (Dialog::new(), PendingRequest::new());
    let class = if is_first {
        "btn min-h-12 h-auto max-w-full btn-primary"
    } else {
        "btn min-h-12 h-auto max-w-full"
    };
    let id = StoredValue::new(action.id.clone());
    let title = action.title.clone();
    let action = StoredValue::new(action);
    let send = move |_| {
        let body = ActionRequest {
            action: id.get_value(),
            dry_run: false,
            removes: action.with_value(|action| action.removes.iter().map(|one| one.path.clone()).collect()),
        };
        request.send(state.path("/act"), &body, move |_| {
            dialog.close();
            state.again();
        });
    };
    let open = move |_| {
        request.problem.set(None);
        dialog.open();
    };
    view! {
        <button class=class on:click=open data-testid="action" data-action=id.get_value()>{title.clone()} "…"</button>
        <Modal dialog title=tr("Run action?") leave=tr("Cancel")>
            {action.with_value(explained)}
            <ErrorMessage what=request.problem />
            <div class="mt-3 text-right">
                <button class="btn btn-primary min-h-12 h-auto max-w-full" disabled=request.busy on:click=send data-testid="confirm-action">{title.clone()}</button>
            </div>
        </Modal>
    }
    .into_any()
}

/// Renders what the action will do.
fn explained(action: &OfferedAction) -> AnyView {
    let line = |text: &String| view! { <li class="break-all">{text.clone()}</li> }.into_any();
    let warnings: Vec<AnyView> = action.warnings.iter().map(line).collect();
    let removes: Vec<AnyView> = action.removes.iter().map(|one| line(&one.path)).collect();
    view! {
        <p class="font-semibold break-words">{action.title.clone()}</p>
        <p class="py-1 break-words" data-testid="action-cost">{action.cost.clone()}</p>
        <ul class="text-sm list-disc ml-5 max-h-60 overflow-y-auto">{removes}</ul>
        <p class="text-sm break-words">{tr("Undo: ")} {action.undo.clone()}</p>
        <ul class="text-sm list-disc ml-5 wrong">{warnings}</ul>
    }
    .into_any()
}
