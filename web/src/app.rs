//! The frame around every page: the header, the navigation, and the page that the address names.

mod header;
mod keys;
mod palette;
mod shortcuts;

use leptos::prelude::*;

use crate::live::Live;
use crate::page::{DiagnosesPage, Login, NewRun, NotFound, OneDiagnosis, OneRun, Overview, RulesPage};
use crate::route::{Page, Route};
use crate::session::{Phase, Who};
use crate::ui::{Zone, changing, whenever};
use header::Header;
use palette::{Palette, PaletteDialog};
use shortcuts::Shortcuts;

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

/// Header and page.
#[component]
fn Shell() -> impl IntoView {
    let live = expect_context::<Live>();
    live.run(expect_context::<Who>());
    let route = Route::follow();
    provide_context(route);
    let page = route.page();
    let palette = Palette::new();
    let zone = RwSignal::new(Zone::chosen(route.param("tz").get_untracked().as_deref()));
    // A page that is opened while values stand still would have none.
    whenever(move || {
        page.track();
        live.resume();
    });
    let shown = changing(move || {
        // Times are written in many places, once: in another zone the page is made anew.
        zone.get().apply();
        match page.get() {
            Page::Overview => view! { <Overview /> }.into_any(),
            Page::NewRun => view! { <NewRun /> }.into_any(),
            Page::Diagnoses => view! { <DiagnosesPage /> }.into_any(),
            Page::Diagnosis(id) => view! { <OneDiagnosis id /> }.into_any(),
            Page::Rules => view! { <RulesPage /> }.into_any(),
            // Another id is another page: every watch of the one before ends.
            Page::Run(id) => view! { <OneRun id /> }.into_any(),
            Page::Unknown => view! { <NotFound /> }.into_any(),
        }
    });
    view! {
        <a href="#page" class="sr-only focus:not-sr-only">"Skip to the page"</a>
        <Header zone page palette />
        <main id="page" tabindex="-1" class="px-4 py-3 outline-none">{shown}</main>
        <PaletteDialog palette />
        <Shortcuts palette />
    }
}
