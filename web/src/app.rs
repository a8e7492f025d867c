//! The frame around every page: the header, the navigation, and the page of the current address.

mod header;
mod keys;
mod palette;
mod shortcuts;

use leptos::prelude::*;
use leptos::task::spawn_local;

use crate::language::tr;
use crate::live::Live;
use crate::page::{Login, NotFound, Overview, lazy};
use crate::route::{Page, Route};
use crate::session::{Phase, UserSession};
use crate::ui::{Density, Zone, dynamic_view, effect, empty_view};
use crate::{crash, language};
use header::Header;
use palette::{Palette, PaletteDialog};
use shortcuts::Shortcuts;

/// The whole application.
#[component]
pub(crate) fn App() -> impl IntoView {
    let session = UserSession::load();
    provide_context(session);
    provide_context(Live::new());
    let has_texts = RwSignal::new(false);
    spawn_local(async move {
        language::load().await;
        // Until here, `index.html` shows that the page is loading.
        crash::remove("loading");
        has_texts.set(true);
    });
    let phase = Memo::new(move |_| has_texts.get().then(|| session.phase()));
    dynamic_view(move || match phase.get() {
        None => empty_view(),
        Some(Phase::Loading) => {
            view! { <p class="p-8" role="status">{tr("Connecting to the collector…")}</p> }.into_any()
        }
        Some(Phase::LoggedOut) => view! { <Login /> }.into_any(),
        Some(Phase::LoggedIn) => view! { <Shell /> }.into_any(),
    })
}

/// The header and the page.
#[component]
fn Shell() -> impl IntoView {
    let live = expect_context::<Live>();
    live.run(expect_context::<UserSession>());
    let route = Route::follow();
    provide_context(route);
    lazy::preload();
    let page = route.page();
    let density = RwSignal::new(Density::stored());
    effect(move || density.get().apply());
    let palette = Palette::new(density);
    let zone = RwSignal::new(Zone::chosen(route.param("tz").get_untracked().as_deref()));
    // Updates resume when another page opens: a page opened while paused would have no values.
    effect(move || {
        page.track();
        live.resume();
    });
    let shown = dynamic_view(move || {
        // Many places format times once, so the page is rebuilt when the zone changes.
        zone.get().apply();
        match page.get() {
            Page::Overview => view! { <Overview /> }.into_any(),
            Page::Runs => lazy::runs(),
            Page::Compare => lazy::compare(),
            Page::NewRun => lazy::new_run(),
            Page::Diagnoses => lazy::diagnoses(),
            Page::Diagnosis(id) => lazy::diagnosis(id),
            Page::Rules => lazy::rules(),
            // Another id is another page: all watches of the previous page end.
            Page::Run(id) => lazy::run(id),
            Page::Unknown => view! { <NotFound /> }.into_any(),
        }
    });
    view! {
        <a href="#page" class="sr-only focus:not-sr-only">{tr("Skip to content")}</a>
        <Header zone density page palette />
        <main id="page" tabindex="-1" class="px-4 py-3 outline-none">{shown}</main>
        <PaletteDialog palette />
        <Shortcuts palette />
    }
}
