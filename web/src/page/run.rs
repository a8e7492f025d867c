//! One run: its state, diagnoses, time axis, charts, ranks, checkpoints, attempts and logs.

mod address;
mod attempts;
mod axis;
mod cause;
mod change_dialog;
mod charts;
mod checkpoint_list;
mod checkpoints;
mod diagnoses;
mod field_request;
mod findings;
mod followed;
mod gpus;
mod head;
mod knobs;
mod lanes;
mod log;
mod logged;
mod map;
mod marks;
mod memory;
mod network;
mod pace;
mod planned_memory;
mod progress;
mod resume;
mod run_signal;
mod span;
mod stacks;
mod stop;
mod tabs;
mod topology;
mod trace;
mod unobserved;
mod unread;
mod view;

use domain::api::stream::Request;
use leptos::prelude::*;

use crate::language::{tr, tr_with};
use crate::live::{Live, Run, StreamMessage};
use crate::ui::{ErrorMessage, Title, When, dynamic_view};
use attempts::Attempts;
use axis::{TimeAxis, run_history};
use change_dialog::{ChangeDialog, ConfirmChange};
use charts::Charts;
use checkpoint_list::CheckpointList;
use checkpoints::Checkpoints;
use diagnoses::RunDiagnoses;
use findings::Findings;
use gpus::Gpus;
use head::Head;
use knobs::Knobs;
use log::Log;
use map::RankMap;
use memory::Memory;
use network::Network;
use planned_memory::PlannedMemory;
use run_signal::RunSignal;
use tabs::{Tab, Tabs};
use topology::Topology;
use unobserved::Unobserved;
use unread::NotRead;
use view::{ChooseMarks, ChooseSpan, View};

/// The page of a run.
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
            <ErrorMessage what=problem><a href="/" class="link">{tr("All runs")}</a></ErrorMessage>
            <When on=move || !is_known.get() && problem.with(Option::is_none)><p class="opacity-70">{tr("Loading…")}</p></When>
            <When on=move || is_known.get()>
                <Shown id=id.get_value() run />
            </When>
        </div>
    }
}

/// The page after the run has loaded.
#[component]
fn Shown(id: String, run: RunSignal) -> impl IntoView {
    let checkpoints = CheckpointList::of(&id, run);
    let history = run_history(&id, run);
    let view = View::of(run, checkpoints, history);
    let chosen = Tab::chosen();
    let dialog = ChangeDialog::new(&id, run);
    let (inside, View { window, marks, .. }) = (id.clone(), view);
    let part = dynamic_view(move || {
        let id = inside.clone();
        match chosen.get() {
            Tab::Summary => view! {
                <TimeAxis id=id.clone() run checkpoints history />
                <Charts id view />
            }
            .into_any(),
            Tab::Ranks => view! {
                <RankMap id=id.clone() run view />
                <Topology id run />
            }
            .into_any(),
            Tab::Hardware => view! {
                <div class="flex flex-wrap gap-x-4 gap-y-2 items-center"><ChooseMarks view /> <ChooseSpan view /></div>
                <Memory id=id.clone() window marks />
                <PlannedMemory id=id.clone() run />
                <Gpus id window marks />
                <Network run />
            }
            .into_any(),
            Tab::Log => view! { <Log id run /> }.into_any(),
            Tab::Checkpoints => view! { <Checkpoints id run checkpoints /> }.into_any(),
            Tab::Attempts => view! {
                <Knobs id run dialog />
                <Attempts run dialog />
            }
            .into_any(),
        }
    });
    view! {
        <Head id=id.clone() run checkpoints dialog />
        <Findings id=id.clone() run />
        <RunDiagnoses id=id.clone() run />
        <NotRead run />
        <Unobserved run />
        <Tabs chosen />
        {part}
        <ConfirmChange of=dialog />
    }
}

/// Watches a run. Returns the run, and the error if it cannot be shown.
fn watched(id: String) -> (RunSignal, RwSignal<Option<String>>) {
    let run = RwSignal::new(None::<Run>);
    let problem = RwSignal::new(None::<String>);
    expect_context::<Live>().watch(
        |watch| Request::WatchRun { id: watch, run: id },
        move |message| match message {
            StreamMessage::Run { run: view, .. } => match Run::read(&view) {
                Ok(view) => {
                    problem.set(None);
                    run.set(Some(view));
                }
                Err(error) => problem.set(Some(tr_with(
                    "The run cannot be read: {error}",
                    &[("error", &error)],
                ))),
            },
            StreamMessage::Failed { message, .. } => problem.set(Some(message)),
            _ => {}
        },
    );
    (run, problem)
}
