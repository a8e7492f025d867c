//! The time axis of a run: attempts, states, checkpoints, diagnoses, errors of GPUs and actions, one lane each.

mod arrange;
mod history;
mod item;
mod keys;

use domain::event::Severity;
use domain::time::TimestampMs;
use leptos::ev::KeyboardEvent;
use leptos::prelude::*;

use super::checkpoint_list::CheckpointList;
use super::run_signal::RunSignal;
use crate::language::{tr, tr_with};
use crate::live::{List, Live, Row, Run, each};
use crate::ui::{Heading, clock, dynamic_view, effect, empty_view, fixed, focus, sorted, text};
use arrange::{Period, Placed, arranged};
pub(super) use history::{RunDiagnosis, RunHistory, run_history};
use item::{End, Item, Lane, Sources};
use keys::Stop;

/// Height of a row of a lane in pixels, with the gap below it.
const ROW_PX: usize = 26;

/// The section with the axis.
#[component]
pub(super) fn TimeAxis(
    /// The run's id.
    id: String,
    /// The run.
    run: RunSignal,
    /// The checkpoints of the run.
    checkpoints: CheckpointList,
    /// What happened to the run besides its attempts and checkpoints.
    history: RwSignal<RunHistory>,
) -> impl IntoView {
    let now_ms = expect_context::<Live>().now_ms;
    let items = Memo::new(move |_| {
        let checkpoints = checkpoints.all();
        run.with(|run| {
            let Some(run) = run else { return Vec::new() };
            history.with(|history| {
                let sources = Sources {
                    run: &id,
                    is_over: run.summary.ended_ms.is_some(),
                    attempts: &run.more.attempts,
                    checkpoints: &checkpoints,
                    history,
                };
                sources.items()
            })
        })
    });
    let period = Memo::new(move |_| run.with(|run| Some(period_of(run.as_ref()?, now_ms.get()))));
    let lanes = Lane::ALL.map(|lane| (lane, placed(lane, items, period)));
    let stops = Memo::new(move |_| lanes.map(|(_, list)| stops_of(list)).to_vec());
    let reached = RwSignal::new(String::new());
    let tab_stop = Memo::new(move |_| stops.with(|stops| keys::current(stops, &reached.read())));
    let press = move |event: KeyboardEvent| {
        let to = stops.with_untracked(|stops| keys::next(stops, &tab_stop.get_untracked(), &event.key()));
        if let Some(id) = to {
            event.prevent_default();
            focus(&format!("[data-axis=\"{id}\"]"));
        }
    };
    let rows: Vec<AnyView> = lanes
        .into_iter()
        .map(|(lane, list)| lane_view(lane, list, tab_stop, reached))
        .collect();
    let end = move |of: fn(Period) -> TimestampMs| {
        text(move || period.get().map(|period| clock(of(period))).unwrap_or_default())
    };
    view! {
        <section class="min-w-0 mb-4" aria-label=tr("What happened") data-testid="time-axis">
            <Heading text=tr("What happened") hint=tr("From the start of the run. Each mark links to its details; the arrow keys move between marks.") />
            <div role="group" aria-label=tr("Time axis") on:keydown=press>{rows}</div>
            <div class="flex justify-between text-xs text-muted pl-27 pr-3"><span>{end(|period| period.start_ms)}</span><span>{end(|period| period.end_ms)}</span></div>
            {as_list(items)}
        </section>
    }
}

/// Returns the period of a run: from its first attempt, or from its submission if there is none, to its end or to now.
fn period_of(run: &Run, now_ms: TimestampMs) -> Period {
    let first = run.more.attempts.first();
    let start_ms = first.map_or(run.summary.submitted_ms, |attempt| attempt.started_ms);
    Period::of(start_ms, run.summary.ended_ms, now_ms)
}

/// Returns the entries of a lane, which keep their elements while they move.
fn placed(lane: Lane, items: Memo<Vec<Item>>, period: Memo<Option<Period>>) -> List<Placed> {
    let list = List::new();
    effect(move || {
        let Some(period) = period.get() else { return };
        let own = items.with(|items| {
            let own = items.iter().filter(|item| item.lane == lane);
            own.cloned().collect()
        });
        list.take(arranged(own, period));
    });
    list
}

fn stops_of(list: List<Placed>) -> Vec<Stop> {
    let rows = list.rows();
    rows.into_iter()
        .map(|row| (row.key.clone(), row.get().left))
        .collect()
}

fn lane_view(lane: Lane, list: List<Placed>, tab_stop: Memo<String>, reached: RwSignal<String>) -> AnyView {
    let height = text(move || {
        let rows = list.rows().iter().map(|row| row.get().row + 1).max();
        format!("{}px", rows.unwrap_or(1) * ROW_PX)
    });
    let mark = move |row| view! { <Mark row tab_stop reached /> }.into_any();
    view! {
        <div class="grid grid-cols-[5.5rem_minmax(0,1fr)] gap-x-2" hidden=move || list.rows().is_empty() data-testid="axis-lane" data-lane=lane.name()>
            <span class="text-xs text-muted leading-6 truncate">{lane.title()}</span>
            <div class="relative mx-3 border-b border-base-300" style:height=height>{each(move || list.rows(), mark)}</div>
        </div>
    }
    .into_any()
}

/// One mark: a link to what it is about.
#[component]
fn Mark(row: Row<Placed>, tab_stop: Memo<String>, reached: RwSignal<String>) -> impl IntoView {
    let placed = row.signal();
    let of = move |part: fn(&Placed) -> String| text(move || placed.with(part));
    let title = of(title);
    // The word of a state is in the language of the page.
    let lang = row.peek(|placed| placed.item.lang.filter(|_| placed.item.lane != Lane::States));
    let (own, stop) = (row.key.clone(), row.key.clone());
    let tabindex = text(move || {
        if tab_stop.with(|stop| *stop == own) {
            "0"
        } else {
            "-1"
        }
    });
    view! {
        <a
            class=of(|placed| class(placed).to_owned())
            lang=lang
            href=of(|placed| placed.item.href.clone())
            title=title
            aria-label=of(name)
            tabindex=tabindex
            style:left=of(|placed| format!("{}%", fixed(placed.left, 2)))
            style:width=of(|placed| format!("{}%", fixed(placed.width, 2)))
            style:top=of(|placed| format!("{}px", placed.row * ROW_PX + 1))
            data-testid="axis-mark"
            data-axis=row.key.clone()
            on:focus=move |_| reached.set(stop.clone())
        >
            {of(Placed::label)}
        </a>
    }
}

/// Returns the time and the whole text of a mark.
fn title(placed: &Placed) -> String {
    format!("{} {}", when(&placed.item), placed.words())
}

/// Returns the accessible name of a mark. It contains the visible text: for several entries, their number, and a state in the language of the
/// page.
fn name(placed: &Placed) -> String {
    let (label, title) = (placed.label(), title(placed));
    let is_state = placed.item.lane == Lane::States;
    if placed.more > 0 || (is_state && !title.contains(&label)) {
        return format!("{label} {title}");
    }
    title
}

/// Returns when an entry began and ended.
fn when(item: &Item) -> String {
    let begin = clock(item.start_ms);
    match item.end {
        End::Moment => begin,
        End::At(at_ms) => tr_with("{begin} to {end}", &[("begin", &begin), ("end", &clock(at_ms))]),
        End::Open => tr_with("since {begin}", &[("begin", &begin)]),
    }
}

/// Returns the CSS classes of a mark: a box for a span, a symbol for a moment.
fn class(placed: &Placed) -> &'static str {
    match (placed.item.end, placed.item.severity) {
        (End::Moment, Some(Severity::Critical)) => {
            "absolute h-6 leading-6 min-w-6 -translate-x-1/2 text-center text-xs whitespace-nowrap font-bold text-error"
        }
        (End::Moment, Some(Severity::Warning)) => {
            "absolute h-6 leading-6 min-w-6 -translate-x-1/2 text-center text-xs whitespace-nowrap font-bold text-warning"
        }
        (End::Moment, _) => {
            "absolute h-6 leading-6 min-w-6 -translate-x-1/2 text-center text-xs whitespace-nowrap text-muted"
        }
        (_, Some(Severity::Critical)) => {
            "absolute h-6 leading-6 min-w-1 px-1 truncate text-xs bg-base-200 rounded-sm border border-l-4 border-error"
        }
        (_, Some(Severity::Warning)) => {
            "absolute h-6 leading-6 min-w-1 px-1 truncate text-xs bg-base-200 rounded-sm border border-l-4 border-warning"
        }
        _ => {
            "absolute h-6 leading-6 min-w-1 px-1 truncate text-xs bg-base-200 rounded-sm border border-l-4 border-control"
        }
    }
}

/// The same as a list, for users who cannot see the axis. It is built when it is opened.
fn as_list(items: Memo<Vec<Item>>) -> AnyView {
    let open = RwSignal::new(false);
    let expanded = text(move || open.get().to_string());
    let words = text(move || {
        if open.get() {
            tr("Hide the list")
        } else {
            tr("Show as a list")
        }
    });
    let list = dynamic_view(move || {
        if !open.get() {
            return empty_view();
        }
        let in_time = sorted(items.get(), |a, b| a.start_ms.cmp(&b.start_ms));
        let lines: Vec<AnyView> = in_time.iter().map(line).collect();
        view! { <ul class="grid gap-1 text-sm mt-1" data-testid="axis-list">{lines}</ul> }.into_any()
    });
    view! {
        <button class="link text-xs" aria-expanded=expanded on:click=move |_| open.update(|open| *open = !*open) data-testid="axis-as-list">{words}</button>
        {list}
    }
    .into_any()
}

fn line(item: &Item) -> AnyView {
    view! {
        <li class="break-words">
            <span class="font-mono opacity-80">{when(item)}</span> " " {item.lane.title()} ": "
            <a class="link" lang=item.lang href=item.href.clone()>{item.text.clone()}</a>
        </li>
    }
    .into_any()
}
