//! The first steps of a new installation. Each is marked as done automatically; the list disappears when all are done.

use domain::api::session::Role;
use leptos::prelude::*;
use serde::Serialize;
use wasm_bindgen::prelude::*;

use crate::api::unreadable;
use crate::json::read_field;
use crate::language::{tr, tr_parts, tr_with};
use crate::live::Live;
use crate::session::UserSession;
use crate::ui::{ErrorMessage, PendingRequest, When, keep, recall, text};

#[wasm_bindgen]
extern "C" {
    /// Copies text to the clipboard. Returns false if the browser refuses.
    #[wasm_bindgen(js_name = lockstepCopy)]
    fn copy(text: &str) -> bool;
}

/// The request for a join token; the collector sets the other fields.
#[derive(Serialize)]
struct CreateJoin {
    note: &'static str,
}

/// The key in the browser's storage for a hidden list.
const KEY: &str = "lockstep-first-steps";

/// Three steps, shown until all are done or the user hides them.
#[component]
pub(super) fn FirstSteps() -> impl IntoView {
    let live = expect_context::<Live>();
    let known = move || live.nodes.is_known() && live.runs.is_known();
    let nodes = Memo::new(move |_| live.nodes.rows().len());
    let runs = Memo::new(move |_| live.runs.rows().len());
    let hidden = RwSignal::new(recall(KEY).is_some());
    let hide = move |_| {
        keep(KEY, "hidden");
        hidden.set(true);
    };
    let connected = text(move || match nodes.get() {
        0 => tr("Connect a node").to_owned(),
        1 => tr("1 node is connected").to_owned(),
        many => tr_with("{count} nodes are connected", &[("count", &many)]),
    });
    let [before, or, after] = tr_parts("{form}, or type {command}. The recipe needs only PyTorch.");
    view! {
        <When on=move || { known() && !hidden.get() && (nodes.get() == 0 || runs.get() == 0) }>
            <section class="off-wall border border-base-300 rounded p-3 max-w-4xl" aria-label=tr("First steps") data-testid="first-steps">
                <div class="flex justify-between">
                    <h2 class="font-bold mb-1">{tr("First steps")}</h2>
                    <button class="btn btn-ghost btn-sm" on:click=hide>{tr("Hide")}</button>
                </div>
                <ol class="grid gap-2">
                    <li><span class="state state-ok">{tr("Collector running")}</span></li>
                    <li>
                        <span class=step_class(nodes) data-testid="step-node">{connected}</span>
                        <When on=move || nodes.get() == 0><Join /></When>
                    </li>
                    <li>
                        <span class=step_class(runs) data-testid="step-run">{tr("Start a run")}</span>
                        <p class="text-muted">{before} <a class="link" href="/runs/new">{tr("Fill in the form")}</a> {or} <code>"lockstep run submit --recipe ddp"</code> {after}</p>
                    </li>
                </ol>
            </section>
        </When>
    }
}

fn step_class(done: Memo<usize>) -> Signal<String> {
    text(move || {
        if done.get() > 0 {
            "state state-ok"
        } else {
            "state state-unknown"
        }
    })
}

/// The command that connects a node; for admins with a token in it.
#[component]
fn Join() -> impl IntoView {
    let session = expect_context::<UserSession>();
    let (token, request) = (RwSignal::new(None::<String>), PendingRequest::new());
    let copied = RwSignal::new(tr("Copy"));
    let origin = window().location().origin().unwrap_or_default();
    let command = text(move || command(&origin, token.read().as_deref()));
    let make = move |_| {
        let body = CreateJoin {
            note: "made on the overview",
        };
        request.send(
            "/api/tokens/join".to_owned(),
            &body,
            move |answer| match read_field(&answer, "token") {
                Ok(made) => token.set(Some(made)),
                Err(error) => request.problem.set(Some(unreadable(&error).message)),
            },
        );
    };
    let put = move |_| {
        copied.set(if copy(&command.get_untracked()) {
            tr("Copied")
        } else {
            tr("Select and copy it")
        })
    };
    view! {
        <p class="text-muted">{tr("Install Lockstep and run on each node:")}</p>
        <p class="flex flex-wrap gap-2 items-center">
            <code class="bg-base-200 px-2 py-1 break-all select-all" data-testid="join-command">{command}</code>
            <When on=move || token.read().is_none() && session.may(Role::Admin)>
                <button class="btn btn-sm" disabled=request.busy on:click=make>{tr("Create token")}</button>
            </When>
            <When on=move || token.read().is_some()>
                <button class="btn btn-sm" on:click=put>{copied}</button>
            </When>
        </p>
        <When on=move || token.read().is_some()><p class="text-muted">{tr("Valid for one hour. Agents that have joined stay connected.")}</p></When>
        <ErrorMessage what=request.problem />
    }
}

fn command(origin: &str, token: Option<&str>) -> String {
    format!(
        "LOCKSTEP_JOIN={} lockstep agent --collector {origin}",
        token.unwrap_or("TOKEN")
    )
}

#[cfg(test)]
mod tests {
    use super::command;

    #[test]
    fn the_command_can_be_pasted_once_it_has_a_token() {
        assert_eq!(
            command("http://10.0.0.1:8470", Some("abc")),
            "LOCKSTEP_JOIN=abc lockstep agent --collector http://10.0.0.1:8470"
        );
        assert!(command("http://h", None).starts_with("LOCKSTEP_JOIN=TOKEN "));
    }
}
