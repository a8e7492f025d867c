//! One run: where it stands, what is wrong with it, its charts, ranks and log.

mod charts;
mod log;
mod ranks;

use domain::api::runs::{RunView, StopRun};
use domain::api::session::Role;
use domain::api::stream::{Push, Request};
use leptos::html::Dialog;
use leptos::prelude::*;
use leptos::task::spawn_local;
use leptos_router::hooks::use_params_map;

use crate::api;
use crate::app::Who;
use crate::live::Live;
use crate::ui::{DiagnosisCard, ago, state_class};
use charts::Charts;
use log::Log;
use ranks::Ranks;

/// The page of the run in the path.
#[component]
pub(crate) fn RunPage() -> impl IntoView {
    let params = use_params_map();
    let id = Memo::new(move |_| params.with(|params| params.get("id").unwrap_or_default()));
    // A new id is a new page: every watch of the old one ends.
    move || view! { <OneRun id=id.get() /> }
}

#[component]
fn OneRun(id: String) -> impl IntoView {
    let live = expect_context::<Live>();
    let run = RwSignal::new(None::<RunView>);
    let problem = RwSignal::new(None::<String>);
    let watched = id.clone();
    live.watch(
        |watch| Request::WatchRun {
            id: watch,
            run: watched,
        },
        move |push| match push {
            Push::Run { run: view, .. } => run.set(Some(*view)),
            Push::Failed { message, .. } => problem.set(Some(message)),
            _ => {}
        },
    );
    let known = Memo::new(move |_| run.with(Option::is_some));
    let charts_of = id.clone();
    let log_of = id.clone();
    view! {
        <div class="grid gap-4">
            <Show when=move || problem.with(Option::is_some)>
                <p class="alert alert-error" role="alert">{move || problem.get()}</p>
            </Show>
            <Head id=id.clone() run />
            <RunDiagnoses id=id.clone() />
            <Show when=move || known.get()>
                <Charts run=charts_of.clone() />
                <Ranks run />
                <Log id=log_of.clone() run />
            </Show>
        </div>
    }
}

#[component]
fn Head(id: String, run: RwSignal<Option<RunView>>) -> impl IntoView {
    let who = expect_context::<Who>();
    let state = Memo::new(move |_| run.with(|run| run.as_ref().map(|run| run.summary.state)));
    let can_stop = move || who.may(Role::Operator) && state.get().is_some_and(|state| !state.is_final());
    let detail = move || {
        run.with(|run| {
            run.as_ref().map(|run| {
                let summary = &run.summary;
                format!(
                    "{} · attempt {} · {} ranks on {} · submitted {}",
                    summary.program,
                    summary.attempt,
                    summary.world_size,
                    summary.nodes.join(", "),
                    ago(summary.submitted_ms)
                )
            })
        })
    };
    let why = move || {
        run.with(|run| {
            run.as_ref()
                .and_then(|run| run.summary.outcome.as_ref().map(|o| o.message.clone()))
        })
    };
    let stopped = id.clone();
    view! {
        <section class="flex flex-wrap gap-3 items-center">
            <h1 class="text-2xl font-bold break-all">{id}</h1>
            {move || state.get().map(|state| view! { <span class=state_class(state) data-testid="run-state">{state.as_str()}</span> })}
            <Show when=can_stop><StopButton id=stopped.clone() /></Show>
            <p class="w-full text-sm opacity-80">{detail}</p>
            <Show when=move || why().is_some()><p class="w-full" data-testid="run-outcome">{why}</p></Show>
        </section>
    }
}

/// Asks once, then stops.
#[component]
fn StopButton(id: String) -> impl IntoView {
    let who = expect_context::<Who>();
    let dialog = NodeRef::<Dialog>::new();
    let problem = RwSignal::new(None::<String>);
    let open = move |_| {
        if let Some(dialog) = dialog.get() {
            // Fails only when it is open already.
            let _already_open = dialog.show_modal();
        }
    };
    let stop = move |_| {
        let path = format!("/api/runs/{id}/stop");
        spawn_local(async move {
            let result = api::post::<serde_json::Value>(&path, &who.csrf(), &StopRun::default()).await;
            problem.set(result.err().map(|error| error.message));
        });
        if let Some(dialog) = dialog.get() {
            dialog.close();
        }
    };
    view! {
        <button class="btn btn-error btn-sm" data-testid="stop" on:click=open>"Stop"</button>
        <dialog class="modal" node_ref=dialog>
            <div class="modal-box">
                <h2 class="text-lg font-bold">"Stop this run?"</h2>
                <p class="py-3">"Its ranks get SIGTERM, and SIGKILL 30 seconds later if they are still there. What was not saved is lost."</p>
                <div class="modal-action">
                    <form method="dialog"><button class="btn">"Let it run"</button></form>
                    <button class="btn btn-error" data-testid="confirm-stop" on:click=stop>"Stop it"</button>
                </div>
            </div>
        </dialog>
        <Show when=move || problem.with(Option::is_some)><span class="text-error" role="alert">{move || problem.get()}</span></Show>
    }
}

#[component]
fn RunDiagnoses(id: String) -> impl IntoView {
    let live = expect_context::<Live>();
    let ours = move || {
        let mut all = live.diagnoses.get().unwrap_or_default();
        all.retain(|diagnosis| diagnosis.alert.labels.get("run") == Some(&id));
        all
    };
    view! {
        <div class="grid gap-3">
            {move || ours().into_iter().map(|diagnosis| view! { <DiagnosisCard diagnosis /> }).collect_view()}
        </div>
    }
}
