//! What can be done about the cause: each action says what it costs and how to undo it before it is carried out.

use domain::api::session::Role;
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use super::loaded::Loaded;
use crate::session::Who;
use crate::ui::{Dialog, Question, Trouble, When, Wish, changing};

/// An action that is possible now, as far as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Offered {
    /// What is sent.
    id: String,
    /// For the button.
    title: String,
    /// A sentence.
    #[serde(default)]
    cost: String,
    /// A sentence.
    #[serde(default)]
    undo: String,
    /// What is removed.
    #[serde(default)]
    removes: Vec<Removed>,
    /// What may be unwise about it.
    #[serde(default)]
    warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Removed {
    path: String,
}

/// What is sent.
#[derive(Serialize)]
struct Act {
    action: String,
    dry_run: bool,
}

/// A button per action, the likeliest first; nothing where there is none.
#[component]
pub(super) fn Actions(loaded: Loaded) -> impl IntoView {
    let who = expect_context::<Who>();
    let buttons = move || {
        changing(move || {
            let offered = loaded.actions.get();
            let buttons: Vec<AnyView> = offered
                .into_iter()
                .enumerate()
                .map(|(place, action)| button(loaded, place == 0, action))
                .collect();
            buttons.into_any()
        })
    };
    view! {
        <When on=move || who.may(Role::Operator) && !loaded.actions.read().is_empty()>
            <section class="grid gap-2" aria-label="Actions" data-testid="actions">
                <div class="flex flex-wrap gap-2">{buttons()}</div>
            </section>
        </When>
    }
}

fn button(loaded: Loaded, is_first: bool, action: Offered) -> AnyView {
    let (dialog, wish) = (Dialog::new(), Wish::new());
    let class = if is_first {
        "btn min-h-12 btn-primary"
    } else {
        "btn min-h-12"
    };
    let id = StoredValue::new(action.id.clone());
    let send = move |_| {
        let body = Act {
            action: id.get_value(),
            dry_run: false,
        };
        wish.send(loaded.path("/act"), &body, move |_| {
            dialog.close();
            loaded.again();
        });
    };
    let open = move |_| {
        wish.problem.set(None);
        dialog.open();
    };
    let action = StoredValue::new(action);
    let title = action.with_value(|action| action.title.clone());
    view! {
        <button class=class on:click=open data-testid="action" data-action=id.get_value()>{title.clone()} "…"</button>
        <Question dialog title="Do this?" leave="Leave it">
            {action.with_value(explained)}
            <Trouble what=wish.problem />
            <div class="text-right">
                <button class="btn btn-primary min-h-12" disabled=wish.busy on:click=send data-testid="confirm-action">{title.clone()}</button>
            </div>
        </Question>
    }
    .into_any()
}

/// What will happen.
fn explained(action: &Offered) -> AnyView {
    let line = |text: &String| view! { <li class="break-all">{text.clone()}</li> }.into_any();
    let warnings: Vec<AnyView> = action.warnings.iter().map(line).collect();
    let removes: Vec<AnyView> = action.removes.iter().map(|one| line(&one.path)).collect();
    view! {
        <p class="font-semibold break-words">{action.title.clone()}</p>
        <p class="py-1 break-words" data-testid="action-cost">{action.cost.clone()}</p>
        <ul class="text-sm list-disc ml-5 max-h-60 overflow-y-auto">{removes}</ul>
        <p class="text-sm break-words">"To undo: " {action.undo.clone()}</p>
        <ul class="text-sm list-disc ml-5 wrong">{warnings}</ul>
    }
    .into_any()
}
