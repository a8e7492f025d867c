//! Pages in files of their own, which the browser loads when such a page is first opened, or when it has nothing else to do.
//!
//! `cargo xtask web` moves what only one of these functions needs out of the program. Code that several of them need gets a file of its own.
//! There is one function per file, because each function remembers by itself whether its file is loaded.
#![cfg_attr(
    target_family = "wasm",
    allow(
        unsafe_code,
        reason = "`wasm_split` declares the functions of the other files as foreign ones"
    )
)]

use std::future::Future;
use std::pin::Pin;

use futures::FutureExt as _;
use gloo_timers::future::TimeoutFuture;
use js_sys::{Promise, Reflect};
use leptos::prelude::*;
use leptos::task::spawn_local;
use leptos::wasm_split::{SplitLoaderError, wasm_split};
use wasm_bindgen::prelude::*;

use super::compare::ComparePage;
use super::diagnoses::DiagnosesPage;
use super::diagnosis::OneDiagnosis;
use super::new_run::NewRun;
use super::rules::RulesPage;
use super::run::OneRun;
use super::runs::RunsPage;
use crate::language::{tr, tr_parts};
use crate::ui::dynamic_view;

/// How long after the start the other pages are loaded.
const PRELOAD_AFTER_MS: u32 = 3_000;

#[wasm_bindgen]
extern "C" {
    /// Loads uPlot and what uses it. See start.js.
    #[wasm_bindgen(js_name = lockstepLoadCharts)]
    fn load_charts() -> Promise;
}

/// A file could not be loaded. The browser's console says why.
struct NotLoaded;

impl From<SplitLoaderError> for NotLoaded {
    fn from(_: SplitLoaderError) -> Self {
        Self
    }
}

type Built = Result<AnyView, NotLoaded>;
type Local<T> = Pin<Box<dyn Future<Output = T>>>;
/// Loads what a page needs unless it is loaded.
type Load = fn() -> Local<Result<(), NotLoaded>>;
/// Builds a page whose files are loaded.
type Build = Box<dyn Fn() -> Local<Built> + Send>;

const RUN: Load = || Box::pin(async { with_charts(load_run()).await });
const DIAGNOSES: Load = || Box::pin(async { with_charts(load_diagnoses()).await });
const RULES: Load = || Box::pin(async { Ok(load_rules().await?) });
const NEW_RUN: Load = || Box::pin(async { Ok(load_new_run().await?) });
const RUNS: Load = || Box::pin(async { Ok(load_run_list().await?) });
const COMPARE: Load = || Box::pin(async { with_charts(load_compare()).await });

async fn with_charts(page: impl Future<Output = Result<(), SplitLoaderError>>) -> Result<(), NotLoaded> {
    let (page, charts) = futures::join!(page, charts());
    page?;
    charts
}

/// Returns without waiting if the charts are loaded.
async fn charts() -> Result<(), NotLoaded> {
    let are_loaded = Reflect::has(&js_sys::global(), &"lockstepChart".into());
    if are_loaded == Ok(true) {
        return Ok(());
    }
    load_charts().await.map(drop).map_err(|_in_the_console| NotLoaded)
}

#[wasm_split(run, wasm_split_path = leptos::wasm_split, preload(load_run), fallible)]
fn build_run(id: String) -> Built {
    Ok(view! { <OneRun id /> }.into_any())
}

#[wasm_split(diagnoses, wasm_split_path = leptos::wasm_split, preload(load_diagnoses), fallible)]
fn build_diagnoses(id: Option<String>) -> Built {
    Ok(match id {
        Some(id) => view! { <OneDiagnosis id /> }.into_any(),
        None => view! { <DiagnosesPage /> }.into_any(),
    })
}

#[wasm_split(rules, wasm_split_path = leptos::wasm_split, preload(load_rules), fallible)]
fn build_rules() -> Built {
    Ok(view! { <RulesPage /> }.into_any())
}

#[wasm_split(new_run, wasm_split_path = leptos::wasm_split, preload(load_new_run), fallible)]
fn build_new_run() -> Built {
    Ok(view! { <NewRun /> }.into_any())
}

#[wasm_split(run_list, wasm_split_path = leptos::wasm_split, preload(load_run_list), fallible)]
fn build_run_list() -> Built {
    Ok(view! { <RunsPage /> }.into_any())
}

#[wasm_split(compare, wasm_split_path = leptos::wasm_split, preload(load_compare), fallible)]
fn build_compare() -> Built {
    Ok(view! { <ComparePage /> }.into_any())
}

/// The page of the run with this id.
pub(crate) fn run(id: String) -> AnyView {
    lazy(RUN, Box::new(move || Box::pin(build_run(id.clone()))))
}

/// The list of diagnoses.
pub(crate) fn diagnoses() -> AnyView {
    lazy(DIAGNOSES, Box::new(|| Box::pin(build_diagnoses(None))))
}

/// The page of the diagnosis with this id.
pub(crate) fn diagnosis(id: String) -> AnyView {
    lazy(
        DIAGNOSES,
        Box::new(move || Box::pin(build_diagnoses(Some(id.clone())))),
    )
}

/// Rules and alerts.
pub(crate) fn rules() -> AnyView {
    lazy(RULES, Box::new(|| Box::pin(build_rules())))
}

/// The form for a new run.
pub(crate) fn new_run() -> AnyView {
    lazy(NEW_RUN, Box::new(|| Box::pin(build_new_run())))
}

/// The table of all runs.
pub(crate) fn runs() -> AnyView {
    lazy(RUNS, Box::new(|| Box::pin(build_run_list())))
}

/// The comparison of two runs or attempts.
pub(crate) fn compare() -> AnyView {
    lazy(COMPARE, Box::new(|| Box::pin(build_compare())))
}

/// Loads all pages once the first one had time to load, so that they open at once. A page that cannot be loaded is tried again when it is
/// opened.
pub(crate) fn preload() {
    spawn_local(async {
        TimeoutFuture::new(PRELOAD_AFTER_MS).await;
        for load in [RUN, RUNS, DIAGNOSES, COMPARE, RULES, NEW_RUN] {
            let _tried_again_later = load().await;
        }
    });
}

#[derive(Clone, Copy)]
enum FileState {
    Loading,
    Loaded,
    Failed,
}

fn lazy(load: Load, build: Build) -> AnyView {
    let state = RwSignal::new(FileState::Loading);
    let attempt = move || {
        state.set(FileState::Loading);
        spawn_local(async move {
            let next = match load().await {
                Ok(()) => FileState::Loaded,
                Err(NotLoaded) => FileState::Failed,
            };
            // The signal is gone if another page is open by now.
            let _closed = state.try_set(next);
        });
    };
    // A file that is there already is ready at the first poll: the page is shown without an intermediate text.
    match load().now_or_never() {
        Some(Ok(())) => state.set(FileState::Loaded),
        _ => attempt(),
    }
    dynamic_view(move || match state.get() {
        FileState::Loading => view! { <p class="opacity-70" role="status">{tr("Loading…")}</p> }.into_any(),
        FileState::Loaded => match build().now_or_never() {
            Some(Ok(page)) => page,
            _ => failed(attempt),
        },
        FileState::Failed => failed(attempt),
    })
}

/// Offers another attempt, and the dashboard's current version: after an upgrade, the collector no longer has the files of the former one.
fn failed(attempt: impl Fn() + Send + Sync + 'static) -> AnyView {
    let [why, or, end] = tr_parts(
        "This page could not be loaded: the collector does not answer, or it has been upgraded. {retry} or {reload}.",
    );
    view! {
        <p class="alert alert-error text-sm" role="alert">
            <span>
                {why}
                <button class="link" on:click=move |_| attempt()>{tr("Retry")}</button>
                {or}
                <a class="link" href="">{tr("reload the dashboard")}</a>
                {end}
            </span>
        </p>
    }
    .into_any()
}
