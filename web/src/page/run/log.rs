//! The output of the ranks: all in one list, or one rank to follow, to read from a position, or to search.

mod choice;
mod display;
mod follow;
mod line_list;
mod lines;
mod part;
mod plain;
mod position;
mod search;
mod tail;

use domain::api::runs::LogSource;
use leptos::prelude::*;

use super::run_signal::RunSignal;
use crate::language::{tr, tr_with};
use crate::route::Route;
use crate::ui::{Heading, When, dynamic_view, effect, empty_view};
use choice::{attempts, first_of, sources, title};
use display::LogDisplay;
use follow::Follow;
use lines::Lines;
use part::LogPart;
use position::LogPosition;
use search::Search;

/// The section with the logs.
#[component]
pub(super) fn Log(
    /// The run's id.
    id: String,
    /// The run.
    run: RunSignal,
) -> impl IntoView {
    let position = RwSignal::new(LogPosition::default());
    let display = LogDisplay {
        wrapped: RwSignal::new(true),
    };
    // The attempt and the rank in the address, if a link led here.
    let route = expect_context::<Route>();
    let (wanted_number, wanted_rank) = (route.param("attempt"), route.param("rank"));
    let wanted_attempt = move || {
        let number = wanted_number.get();
        number.and_then(|number| number.parse().ok()).unwrap_or(0_u32)
    };
    // The chosen attempt; 0 for the last one.
    let attempt = RwSignal::new(untrack(wanted_attempt));
    effect(move || {
        wanted_rank.track();
        attempt.set(wanted_attempt());
        position.set(LogPosition::default());
    });
    let sources = Memo::new(move |_| {
        run.with(|run| {
            run.as_ref()
                .map(|run| sources(run, attempt.get()))
                .unwrap_or_default()
        })
    });
    // One log; `None` for the list of all.
    let shown = Memo::new(move |_| {
        let chosen = position.get();
        let of_rank = || {
            let rank = wanted_rank.get()?;
            sources.with(|all| first_of(all, Some(rank.as_str())))
        };
        let source = chosen.source.or_else(of_rank)?;
        Some((source, chosen.offset))
    });
    let choose = move |event| {
        let source = event_target_value(&event)
            .parse()
            .ok()
            .and_then(|n: usize| sources.with_untracked(|all| all.get(n).cloned()));
        if source.is_none() {
            route.set_param("rank", None);
        }
        position.set(LogPosition { source, offset: None });
    };
    let options = dynamic_view(move || {
        let now = shown.get().map(|(source, _)| source);
        let option = |(n, source): (usize, LogSource)| {
            view! { <option value=n.to_string() prop:selected=now.as_ref() == Some(&source)>{title(&source)}</option> }.into_any()
        };
        let each: Vec<AnyView> = sources.get().into_iter().enumerate().map(option).collect();
        view! { <option value="" prop:selected=now.is_none()>{tr("All ranks")}</option> {each} }.into_any()
    });
    let numbers = Memo::new(move |_| attempts(run));
    let choose_attempt = move |event| {
        attempt.set(event_target_value(&event).parse().unwrap_or(0));
        position.set(LogPosition::default());
    };
    let of_attempt = move || {
        let option = |number: u32| {
            let words = tr_with("attempt {number}", &[("number", &number)]);
            let selected = Signal::derive(move || attempt.get() == number);
            view! { <option value=number.to_string() prop:selected=selected>{words}</option> }.into_any()
        };
        let earlier: Vec<AnyView> = numbers.get().into_iter().rev().skip(1).map(option).collect();
        view! {
            <select class="select select-sm w-auto" on:change=choose_attempt aria-label=tr("Attempt") data-testid="log-attempt">
                <option value="0">{tr("last attempt")}</option>
                {earlier}
            </select>
        }
        .into_any()
    };
    let several = Memo::new(move |_| numbers.with(|all| all.len() > 1));
    let is_known = Memo::new(move |_| sources.with(|all| !all.is_empty()));
    let run_id = StoredValue::new(id);
    let reading = dynamic_view(move || match shown.get() {
        Some((source, None)) => view! { <Follow run=run_id.get_value() source display /> }.into_any(),
        Some((source, Some(offset))) => {
            view! { <LogPart run=run_id.get_value() source offset position display /> }.into_any()
        }
        None if is_known.get() => view! { <Lines run=run_id.get_value() attempt display /> }.into_any(),
        None => empty_view(),
    });
    view! {
        <section class="min-w-0">
            <Heading text=tr("Log") hint=tr("Output of the ranks. Scroll up to read; scroll to the end to follow again.")>
                <div class="flex flex-wrap gap-2 items-center">
                    <label class="text-sm flex gap-1 items-center"><input type="checkbox" bind:checked=display.wrapped /> {tr("wrap lines")}</label>
                    {dynamic_view(move || if several.get() { of_attempt() } else { empty_view() })}
                    <select class="select select-sm w-auto max-w-full" on:change=choose aria-label=tr("Log of") data-testid="log-of">{options}</select>
                </div>
            </Heading>
            <When on=move || shown.with(Option::is_some)><Search run=run_id.get_value() position /></When>
            <When on=move || !is_known.get()><p class="opacity-70">{tr("No attempts yet.")}</p></When>
            {reading}
        </section>
    }
}
