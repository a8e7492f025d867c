//! The lines of all ranks in one list, by time. The collector filters them and returns them page by page.

use leptos::prelude::*;
use web_sys::Event;

use super::display::LogDisplay;
use super::line_list::LineList;
use crate::language::tr;
use crate::route::Route;
use crate::ui::dynamic_view;

/// Number of lines that are requested at once.
const PAGE_LINES: u32 = 300;
/// The parameters of the address, which are also those of the request.
const TEXT: &str = "q";
const RANKS: &str = "ranks";
const LEVEL: &str = "level";
/// The parameter with the time at which the list begins, in milliseconds. Without it, the list follows the end.
pub(super) const AT: &str = "at";

/// The filter and the list.
#[component]
pub(super) fn Lines(
    /// The run's id.
    run: String,
    /// The number of the attempt; 0 for the last one.
    attempt: RwSignal<u32>,
    display: LogDisplay,
) -> impl IntoView {
    let route = expect_context::<Route>();
    let [words, ranks, level, at] = [TEXT, RANKS, LEVEL, AT].map(|name| route.param(name));
    let run = StoredValue::new(run);
    let path = Memo::new(move |_| {
        let mut path =
            run.with_value(|run| format!("/api/runs/{run}/logs/lines?limit={PAGE_LINES}&ignore_case=true"));
        let number = Some(attempt.get()).filter(|number| *number > 0);
        let number = number.map(|number| number.to_string());
        let parameters = [
            ("attempt", number),
            (TEXT, words.get()),
            (RANKS, ranks.get()),
            (LEVEL, level.get()),
        ];
        for (name, value) in parameters {
            if let Some(value) = value {
                path.push_str(&format!("&{name}={}", js_sys::encode_uri_component(&value)));
            }
        }
        path
    });
    let set = move |name: &'static str| {
        move |event: Event| {
            let value = event_target_value(&event);
            route.set_param(name, Some(value.as_str()).filter(|value| !value.is_empty()));
        }
    };
    let option = |(value, words): (&'static str, &'static str)| {
        let selected =
            Signal::derive(move || level.with(|level| level.as_deref().unwrap_or_default() == value));
        view! { <option value=value prop:selected=selected>{words}</option> }.into_any()
    };
    let levels = [
        ("", tr("All lines")),
        ("warning", tr("Warnings and errors")),
        ("error", tr("Errors")),
    ];
    let levels: Vec<AnyView> = levels.into_iter().map(option).collect();
    let list = dynamic_view(move || {
        let (path, at) = (path.get(), at.get());
        view! { <LineList run=run.get_value() path at display /> }.into_any()
    });
    view! {
        <div class="flex flex-wrap gap-2 items-center mb-2" role="search">
            <input class="input input-sm grow" type="search" placeholder=tr("Search all ranks") aria-label=tr("Search the logs of all ranks") prop:value=move || words.get().unwrap_or_default() on:change=set(TEXT) />
            <input class="input input-sm w-24" placeholder="0-3,7" aria-label=tr("Ranks") prop:value=move || ranks.get().unwrap_or_default() on:change=set(RANKS) data-testid="log-ranks" />
            <select class="select select-sm w-auto" aria-label=tr("Level") on:change=set(LEVEL) data-testid="log-level">{levels}</select>
        </div>
        {list}
    }
}
