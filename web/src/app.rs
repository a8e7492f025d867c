//! The frame around every page: who is logged in, where one is, what is wrong right now.

use leptos::prelude::*;
use leptos::task::spawn_local;

use crate::live::Live;
use crate::page::{Login, NewRun, NotFound, OneRun, Overview, RulesPage};
use crate::route::{NavLink, Page, Route};
use crate::session::{Phase, Who};
use crate::ui::{When, changing, text};

/// The whole program.
#[component]
pub(crate) fn App() -> impl IntoView {
    let who = Who::ask();
    provide_context(who);
    provide_context(Live::new());
    let phase = Memo::new(move |_| who.phase());
    changing(move || match phase.get() {
        Phase::Asking => view! { <p class="p-8" role="status">"Asking the collector…"</p> }.into_any(),
        Phase::LoggedOut => view! { <Login /> }.into_any(),
        Phase::LoggedIn => view! { <Shell /> }.into_any(),
    })
}

/// Navigation, badges, and the page.
#[component]
fn Shell() -> impl IntoView {
    expect_context::<Live>().run(expect_context::<Who>());
    let route = Route::follow();
    provide_context(route);
    let page = route.page();
    let shown = changing(move || match page.get() {
        Page::Overview => view! { <Overview /> }.into_any(),
        Page::NewRun => view! { <NewRun /> }.into_any(),
        Page::Rules => view! { <RulesPage /> }.into_any(),
        // Another id is another page: every watch of the one before ends.
        Page::Run(id) => view! { <OneRun id /> }.into_any(),
        Page::Unknown => view! { <NotFound /> }.into_any(),
    });
    view! {
        <a href="#page" class="sr-only focus:not-sr-only">"Skip to the page"</a>
        <header class="bg-base-200 border-b border-base-300">
            <div class="max-w-7xl mx-auto px-4 py-2 flex flex-wrap gap-x-4 gap-y-1 items-center">
                <a href="/" class="text-xl font-bold">"Lockstep"</a>
                <div class="flex gap-1 sm:gap-2 items-center ml-auto sm:order-last">
                    <SimulatedBadge />
                    <ConnectionBadge />
                    <LogOut />
                </div>
                <nav class="flex gap-1 w-full sm:w-auto" aria-label="Pages">
                    <NavLink href="/" name="Overview" />
                    <NavLink href="/runs/new" name="New run" />
                    <NavLink href="/rules" name="Rules and alerts" />
                </nav>
            </div>
        </header>
        <main id="page" tabindex="-1" class="p-4 max-w-7xl mx-auto outline-none">{shown}</main>
    }
}

/// Simulated GPUs are never shown in silence.
#[component]
fn SimulatedBadge() -> impl IntoView {
    let live = expect_context::<Live>();
    let nodes = Memo::new(move |_| live.nodes.count(|node| node.inventory.simulated.is_some()));
    let of = text(move || match nodes.get() {
        1 => String::new(),
        many => format!(" on {many} nodes"),
    });
    view! {
        <When on=move || { nodes.get() > 0 }>
            <span class="badge badge-sm sm:badge-md badge-warning" data-testid="simulated" title="Readings of these GPUs come from a simulator, not from hardware">
                "SIMULATED" <span class="hidden sm:inline">"GPUs" {of}</span>
            </span>
        </When>
    }
}

#[component]
fn ConnectionBadge() -> impl IntoView {
    let live = expect_context::<Live>();
    view! {
        <span
            class=text(move || if live.connected.get() { "badge badge-sm sm:badge-md badge-success" } else { "badge badge-sm sm:badge-md badge-error" })
            title="Whether what you see is what is: the event stream of this page"
            data-testid="connection"
            role="status"
        >
            {text(move || if live.connected.get() { "live" } else { "reconnecting" })}
        </span>
    }
}

#[component]
fn LogOut() -> impl IntoView {
    let who = expect_context::<Who>();
    let problem = RwSignal::new(None::<String>);
    let log_out = move |_| {
        spawn_local(async move {
            if let Err(error) = who.log_out().await {
                // The page may be the log-in by now.
                let _gone = problem.try_set(Some(error.message));
            }
        });
    };
    view! {
        <button class="btn btn-ghost btn-sm" title=text(move || problem.get().unwrap_or_default()) on:click=log_out>
            {text(move || if problem.with(Option::is_some) { "Log out (failed)" } else { "Log out" })}
        </button>
    }
}
