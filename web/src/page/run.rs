//! One run: where it stands, what is wrong with it, its charts, checkpoints, attempts and logs.

mod attempts;
mod charts;
mod checkpoints;
mod findings;
mod gpus;
mod head;
mod known;
mod log;
mod logged;
mod memory;
mod network;
mod resume;
mod saved;
mod span;
mod stacks;
mod stop;
mod tabs;
mod topology;
mod unread;
mod unseen;

use domain::api::stream::Request;
use leptos::prelude::*;

use crate::live::{Live, News, Run, each};
use crate::ui::{DiagnosisCard, Title, Trouble, When, changing};
use attempts::Attempts;
use charts::{Charts, ChooseSpan, View};
use checkpoints::Checkpoints;
use findings::Findings;
use gpus::Gpus;
use head::Head;
use known::Known;
use log::Log;
use memory::Memory;
use network::Network;
use saved::Saved;
use tabs::{Tab, Tabs};
use topology::Topology;
use unread::NotRead;
use unseen::NotSeen;

/// The page.
#[component]
pub(crate) fn OneRun(
    /// The run's id.
    id: String,
) -> impl IntoView {
    let (run, problem) = watched(id.clone());
    let is_known = Memo::new(move |_| run.with(Option::is_some));
    let id = StoredValue::new(id);
    view! {
        <Title of=id.get_value() />
        <div class="grid grid-cols-1 gap-6">
            <Trouble what=problem><a href="/" class="link">"All runs"</a></Trouble>
            <When on=move || !is_known.get() && problem.with(Option::is_none)><p class="opacity-70">"Loading…"</p></When>
            <When on=move || is_known.get()>
                <Shown id=id.get_value() run />
            </When>
        </div>
    }
}

/// The page of a run that is known.
#[component]
fn Shown(id: String, run: Known) -> impl IntoView {
    let saved = Saved::of(&id, run);
    let view = View::of(run);
    let chosen = Tab::chosen();
    let (inside, View { window, marks, .. }) = (id.clone(), view);
    let part = changing(move || {
        let id = inside.clone();
        match chosen.get() {
            Tab::Summary => view! { <Charts id view /> }.into_any(),
            Tab::Ranks => view! {
                <Topology id run />
            }
            .into_any(),
            Tab::Hardware => view! {
                <ChooseSpan view />
                <Memory id=id.clone() window marks />
                <Gpus id window marks />
                <Network run />
            }
            .into_any(),
            Tab::Log => view! { <Log id run /> }.into_any(),
            Tab::Checkpoints => view! { <Checkpoints id run saved /> }.into_any(),
            Tab::Attempts => view! { <Attempts run /> }.into_any(),
        }
    });
    view! {
        <Head id=id.clone() run saved />
        <Findings id=id.clone() run />
        <RunDiagnoses id=id.clone() run />
        <NotRead run />
        <NotSeen run />
        <Tabs chosen />
        {part}
    }
}

/// The run as it changes, and why it cannot be shown.
fn watched(id: String) -> (Known, RwSignal<Option<String>>) {
    let run = RwSignal::new(None::<Run>);
    let problem = RwSignal::new(None::<String>);
    expect_context::<Live>().watch(
        |watch| Request::WatchRun { id: watch, run: id },
        move |news| match news {
            News::Run { run: view, .. } => {
                problem.set(None);
                run.set(Some(*view));
            }
            News::Failed { message, .. } => problem.set(Some(message)),
            _ => {}
        },
    );
    (run, problem)
}

#[component]
fn RunDiagnoses(id: String, run: Known) -> impl IntoView {
    let all = expect_context::<Live>().diagnoses;
    let unseen = unseen::lines(run);
    let ours = move || {
        let mut rows = all.rows();
        // What could not be seen has a part of its own, unless its nodes are too old to tell of it there.
        let said_below = unseen.with(|lines| !lines.is_empty());
        rows.retain(|row| {
            row.peek(|diagnosis| {
                let alert = &diagnosis.alert;
                alert.labels.get("run") == Some(id.as_str()) && !(said_below && alert.is_shown_as_notes())
            })
        });
        rows
    };
    view! {
        <section class="grid gap-3 empty:hidden" aria-label="Diagnoses of this run">{each(ours, |row| view! { <DiagnosisCard row linked=false /> }.into_any())}</section>
    }
}
