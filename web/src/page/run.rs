//! One run: where it stands, what is wrong with it, its charts, ranks and log.

mod charts;
mod head;
mod log;
mod ranks;
mod span;
mod stop;

use domain::api::runs::RunView;
use domain::api::stream::{Push, Request};
use leptos::prelude::*;
use leptos_router::components::A;
use leptos_router::hooks::use_params_map;

use crate::live::Live;
use crate::ui::{DiagnosisCard, Title, When, text};
use charts::Charts;
use head::Head;
use log::Log;
use ranks::Ranks;

/// What is known of the run.
type Known = RwSignal<Option<RunView>>;

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
    let (run, problem) = watched(id.clone());
    let is_known = Memo::new(move |_| run.with(Option::is_some));
    let id = StoredValue::new(id);
    view! {
        <Title of=id.get_value() />
        <div class="grid grid-cols-1 gap-6">
            <When on=move || problem.with(Option::is_some)>
                <p class="alert alert-error" role="alert">{text(move || problem.get().unwrap_or_default())} " " <A href="/" attr:class="link">"All runs"</A></p>
            </When>
            <When on=move || !is_known.get() && problem.with(Option::is_none)><p class="opacity-70">"Loading…"</p></When>
            <When on=move || is_known.get()>
                <Head id=id.get_value() run />
                <RunDiagnoses id=id.get_value() />
                <Charts id=id.get_value() run />
                <Ranks run />
                <Log id=id.get_value() run />
            </When>
        </div>
    }
}

/// The run as it changes, and why it cannot be shown.
fn watched(id: String) -> (Known, RwSignal<Option<String>>) {
    let run = RwSignal::new(None::<RunView>);
    let problem = RwSignal::new(None::<String>);
    expect_context::<Live>().watch(
        |watch| Request::WatchRun { id: watch, run: id },
        move |push| match push {
            Push::Run { run: view, .. } => {
                problem.set(None);
                run.set(Some(*view));
            }
            Push::Failed { message, .. } => problem.set(Some(message)),
            _ => {}
        },
    );
    (run, problem)
}

#[component]
fn RunDiagnoses(id: String) -> impl IntoView {
    let all = expect_context::<Live>().diagnoses;
    let ours = move || {
        let mut rows = all.rows();
        rows.retain(|row| row.peek(|diagnosis| diagnosis.alert.labels.get("run") == Some(id.as_str())));
        rows
    };
    view! {
        <section class="grid gap-3 empty:hidden" aria-label="Diagnoses of this run"><For each=ours key=|row| row.key.clone() let:row><DiagnosisCard row linked=false /></For></section>
    }
}
