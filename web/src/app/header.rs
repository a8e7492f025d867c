//! The header: the current page, the age of the values, and the session.

use leptos::prelude::*;
use leptos::task::spawn_local;

use super::palette::Palette;
use crate::language::{tr, tr_with};
use crate::live::{Freshness, Live};
use crate::route::{NavLink, Page, Route};
use crate::session::UserSession;
use crate::ui::{Density, LanguageChoice, UTC, When, Zone, offset, text};

/// The product name, the navigation and the states of the dashboard.
#[component]
pub(super) fn Header(
    /// The zone in which times are shown.
    zone: RwSignal<Zone>,
    /// How high the rows of tables are.
    density: RwSignal<Density>,
    /// The current page.
    page: Memo<Page>,
    /// The command palette.
    palette: Palette,
) -> impl IntoView {
    let session = expect_context::<UserSession>();
    view! {
        <header class="bg-base-200 border-b border-base-300 sm:sticky sm:top-0 z-10 px-4 py-1 flex flex-wrap gap-x-4 gap-y-1 items-center">
            <a href="/" class="text-base font-bold">"Lockstep"</a>
            <nav class="off-wall flex flex-wrap order-last sm:order-none sm:gap-1 w-full sm:w-auto -ml-2 sm:ml-0" aria-label=tr("Pages")>
                <NavLink href="/" name=tr("Overview") />
                <NavLink href="/runs" name=tr("Runs") />
                <NavLink href="/diagnoses" name=tr("Diagnoses") />
                <NavLink href="/runs/new" name=tr("New run") />
                <NavLink href="/rules" name=tr("Rules") />
                <button class="btn btn-ghost btn-sm px-2 sm:px-3 ml-auto sm:ml-0" title=tr("Find a page, run, node or rule (Ctrl K)") on:click=move |_| palette.open(session)>{tr("Find")}</button>
            </nav>
            <div class="flex gap-2 items-center ml-auto">
                <SimulatedBadge />
                <Pause />
                <ZoneChoice zone />
                <DisplayMenu density />
                <LanguageChoice class="off-wall btn btn-ghost btn-sm hidden sm:inline-flex" />
                <FreshnessState page />
                <LogOut />
            </div>
        </header>
    }
}

/// A badge that is always shown if GPUs are simulated.
#[component]
fn SimulatedBadge() -> impl IntoView {
    let live = expect_context::<Live>();
    let nodes = Memo::new(move |_| live.nodes.count(|node| node.inventory.simulated.is_some()));
    let gpus = text(move || match nodes.get() {
        1 => tr("GPUs").to_owned(),
        many => tr_with("GPUs on {count} nodes", &[("count", &many)]),
    });
    view! {
        <When on=move || { nodes.get() > 0 }>
            <span class="state state-warning text-xs" data-testid="simulated" title=tr("These values come from a simulator, not from hardware")>
                <span>{tr("SIMULATED")} <span class="hidden sm:inline">" " {gpus}</span></span>
            </span>
        </When>
    }
}

/// The state of the connection: live, paused, past, stale or offline.
#[component]
fn FreshnessState(page: Memo<Page>) -> impl IntoView {
    let live = expect_context::<Live>();
    let from = expect_context::<Route>().param("from");
    // The page of an ended run shows the last minutes of the run. With this parameter, the page of a run shows a period on which the reader
    // zoomed in.
    let past = Signal::derive(move || match page.get() {
        Page::Run(id) => {
            from.with(Option::is_some) || live.runs.count(|run| run.id == id && run.state.is_final()) > 0
        }
        _ => false,
    });
    let freshness = live.freshness(past);
    let age = text(move || match freshness.get() {
        Freshness::Stale { age_ms } => format!("{} s", age_ms / 1_000),
        _ => String::new(),
    });
    view! {
        <span class=text(move || freshness.get().class()) title=text(move || freshness.get().hint()) data-testid="connection">
            <span role="status">{text(move || freshness.get().word())}</span> <span class="empty:hidden" aria-hidden="true">{age}</span>
        </span>
    }
}

/// A button that pauses and resumes updates.
#[component]
fn Pause() -> impl IntoView {
    let live = expect_context::<Live>();
    let paused = live.paused;
    view! {
        <button class="off-wall btn btn-ghost btn-sm hidden sm:inline-flex" on:click=move |_| live.toggle_pause() data-testid="pause">
            {text(move || if paused.get() { tr("Continue") } else { tr("Pause") })}
        </button>
    }
}

/// A choice between the browser's zone and UTC.
#[component]
fn ZoneChoice(zone: RwSignal<Zone>) -> impl IntoView {
    let route = expect_context::<Route>();
    #[expect(clippy::cast_possible_truncation, reason = "at most 14 hours")]
    let minutes = js_sys::Date::new_0().get_timezone_offset() as i32;
    let choose = move |event| {
        let chosen = if event_target_value(&event) == UTC {
            Zone::Utc
        } else {
            Zone::Browser
        };
        chosen.remember();
        route.set_param("tz", (chosen == Zone::Utc).then_some(UTC));
        zone.set(chosen);
    };
    view! {
        <select class="off-wall select select-sm select-ghost w-auto hidden sm:inline-flex" aria-label=tr("Time zone") on:change=choose data-testid="zone">
            <option value="browser" selected=zone.get_untracked() == Zone::Browser>{offset(minutes)}</option>
            <option value=UTC selected=zone.get_untracked() == Zone::Utc>"UTC"</option>
        </select>
    }
}

/// A menu of what is rarely changed: the height of rows. The browser opens and closes it. Phones do not have it: for fingers, rows always have
/// the same height.
#[component]
fn DisplayMenu(density: RwSignal<Density>) -> impl IntoView {
    let options = [Density::Compact, Density::Comfortable].map(|one| {
        let selected = Signal::derive(move || density.get() == one);
        view! { <option value=one.word() prop:selected=selected>{tr(one.name())}</option> }.into_any()
    });
    let choose = move |event| {
        let chosen = Density::of(&event_target_value(&event));
        chosen.remember();
        density.set(chosen);
    };
    view! {
        <button class="off-wall btn btn-ghost btn-sm hidden sm:inline-flex" type="button" popovertarget="display" aria-label=tr("Display settings") title=tr("Display settings") data-testid="display">"⋯"</button>
        <div id="display" popover="auto" role="group" aria-label=tr("Display settings") class="inset-auto top-12 right-4 p-3 border border-control rounded bg-base-100 text-base-content">
            <label class="flex gap-2 items-center">
                {tr("Density")}
                <select class="select select-sm w-auto" on:change=choose data-testid="density">{options.into_iter().collect::<Vec<AnyView>>()}</select>
            </label>
        </div>
    }
}

#[component]
fn LogOut() -> impl IntoView {
    let session = expect_context::<UserSession>();
    let problem = RwSignal::new(None::<String>);
    let log_out = move |_| {
        spawn_local(async move {
            if let Err(error) = session.log_out().await {
                // The log-in page may have replaced this page.
                let _gone = problem.try_set(Some(error.message));
            }
        });
    };
    view! {
        <button class="off-wall btn btn-ghost btn-sm" title=text(move || problem.get().unwrap_or_default()) on:click=log_out>
            {text(move || if problem.with(Option::is_some) { tr("Log out (failed)") } else { tr("Log out") })}
        </button>
    }
}
