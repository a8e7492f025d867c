//! The frame around every page: who is logged in, where one is, what is wrong right now.

use domain::api::session::{Role, Session};
use leptos::prelude::*;
use leptos::task::spawn_local;
use leptos_router::components::{A, Route, Router, Routes};
use leptos_router::path;

use crate::api;
use crate::live::Live;
use crate::page::{Login, NewRun, Overview, RulesPage, RunPage};

/// The session, for pages that change something. Provided as context.
#[derive(Clone, Copy)]
pub(crate) struct Who(pub(crate) RwSignal<Option<Session>>);

impl Who {
    /// The token that a changing request carries.
    pub(crate) fn csrf(self) -> String {
        self.0
            .with_untracked(|session| session.as_ref().map(|s| s.csrf.clone()).unwrap_or_default())
    }

    /// Whether the person may do what needs `role`.
    pub(crate) fn may(self, role: Role) -> bool {
        self.0
            .with(|session| session.as_ref().is_some_and(|s| s.role.allows(role)))
    }
}

/// The whole program.
#[component]
pub(crate) fn App() -> impl IntoView {
    let who = Who(RwSignal::new(None));
    provide_context(who);
    let asked = RwSignal::new(false);
    spawn_local(async move {
        if let Ok(session) = api::get::<Session>("/api/session").await {
            who.0.set(Some(session));
        }
        asked.set(true);
    });
    let logged_in = Memo::new(move |_| who.0.with(Option::is_some));
    view! {
        <Show when=move || asked.get() fallback=|| view! { <p class="p-8">"Connecting…"</p> }>
            <Show when=move || logged_in.get() fallback=|| view! { <Login /> }>
                <Shell />
            </Show>
        </Show>
    }
}

/// Navigation, badges, and the page.
#[component]
fn Shell() -> impl IntoView {
    provide_context(Live::start());
    view! {
        <Router>
            <header class="navbar bg-base-200 gap-2 flex-wrap px-4">
                <A href="/" attr:class="text-xl font-bold mr-4">"Lockstep"</A>
                <nav class="flex gap-1 flex-1">
                    <A href="/" exact=true attr:class="btn btn-ghost btn-sm">"Overview"</A>
                    <A href="/runs/new" attr:class="btn btn-ghost btn-sm">"New run"</A>
                    <A href="/rules" attr:class="btn btn-ghost btn-sm">"Rules and alerts"</A>
                </nav>
                <SimulatedBadge />
                <ConnectionBadge />
                <LogOut />
            </header>
            <main class="p-4 max-w-7xl mx-auto">
                <Routes fallback=|| view! { <p>"There is no such page. " <A href="/" attr:class="link">"Overview"</A></p> }>
                    <Route path=path!("/") view=Overview />
                    <Route path=path!("/runs/new") view=NewRun />
                    <Route path=path!("/runs/:id") view=RunPage />
                    <Route path=path!("/rules") view=RulesPage />
                </Routes>
            </main>
        </Router>
    }
}

/// Simulated GPUs are never shown in silence.
#[component]
fn SimulatedBadge() -> impl IntoView {
    let live = expect_context::<Live>();
    let nodes = move || {
        let simulated = |nodes: &Vec<_>| {
            nodes
                .iter()
                .filter(|n: &&domain::api::nodes::NodeView| n.inventory.simulated.is_some())
                .count()
        };
        live.nodes.with(|nodes| nodes.as_ref().map_or(0, simulated))
    };
    view! {
        <Show when=move || { nodes() > 0 }>
            <span class="badge badge-warning" data-testid="simulated" title="Readings of these GPUs come from a simulator, not from hardware">
                {move || if nodes() == 1 { "SIMULATED GPUs".to_owned() } else { format!("SIMULATED GPUs on {} nodes", nodes()) }}
            </span>
        </Show>
    }
}

#[component]
fn ConnectionBadge() -> impl IntoView {
    let live = expect_context::<Live>();
    view! {
        <span
            class=move || if live.connected.get() { "badge badge-success" } else { "badge badge-error" }
            data-testid="connection"
            aria-live="polite"
        >
            {move || if live.connected.get() { "live" } else { "reconnecting" }}
        </span>
    }
}

#[component]
fn LogOut() -> impl IntoView {
    let who = expect_context::<Who>();
    let log_out = move |_| {
        spawn_local(async move {
            if api::delete("/api/session", &who.csrf()).await.is_ok() {
                who.0.set(None);
            }
        });
    };
    view! { <button class="btn btn-ghost btn-sm" on:click=log_out>"Log out"</button> }
}
