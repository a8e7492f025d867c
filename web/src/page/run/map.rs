//! The map of ranks over time: one row per rank, one column per time, coloured by the difference to the median of the ranks.
//!
//! A cell is the worst value of its column, so that one late step is visible in a long period. The means are only for the text about a
//! cell, so they are requested after the first cell is selected.
//!
//! Values are not stored in signals. They are in plain lists in [`Matrix`], and `map.js` paints the columns that are new.

mod canvas;
mod layout;
mod matrix;
mod measure;
mod pointer;

use domain::api::stream::Request;
use domain::time::TimestampMs;
use leptos::html::Div;
use leptos::prelude::*;

use super::address::{attempt_at, of_log};
use super::run_signal::RunSignal;
use super::view::{ChooseSpan, View};
use crate::chart::Window;
use crate::language::{tr, tr_with};
use crate::live::{Live, StreamMessage};
use crate::route::Route;
use crate::ui::{ErrorMessage, Heading, When, canvas_in, clock, effect, fixed, text};
use canvas::Canvas;
use layout::{Layout, step_ms};
use matrix::{Matrix, Moment, PEERS_MIN, SPAN};
use measure::Measure;
use pointer::Pointer;

/// The section with the map.
#[component]
pub(super) fn RankMap(
    /// The run's id.
    id: String,
    /// The run.
    run: RunSignal,
    /// The period shown.
    view: View,
) -> impl IntoView {
    let chosen = expect_context::<Route>().param("map");
    let opening = opening_measure(id.clone());
    let measure = Memo::new(move |_| {
        chosen
            .with(|name| Measure::of(name.as_deref()))
            .or_else(|| opening.get())
    });
    let map = RankMapState::new(id, run);
    map.follow(measure, view.window);
    let ranks = Memo::new(move |_| {
        map.version.track();
        map.matrix.with_value(Matrix::ranks)
    });
    let measured = move || {
        map.version.track();
        map.matrix.with_value(Matrix::measured)
    };
    let compares = move || ranks.get() >= PEERS_MIN;
    let why_not = text(move || match (map.answered.get(), ranks.get()) {
        (false, _) => tr("Loading…"),
        (true, 0) => tr("No data in this period."),
        (true, _) => tr("The map needs at least three ranks: with two, there is no majority."),
    });
    view! {
        <section class="min-w-0" aria-label=tr("Ranks over time") data-testid="rank-map" data-ranks=move || ranks.get() data-measured=measured>
            <Heading text=tr("Ranks over time") hint=tr("One row per rank, one column per time. A cell is the longest value of its rank in that time, so that one late step is visible. Ranks that behave alike have the same colour; a rank that is late, or waits less than the others, stands out.")>
                <div class="flex flex-wrap gap-2 items-center">{choice(measure)} <ChooseSpan view /></div>
            </Heading>
            <ErrorMessage what=map.problem />
            <When on=move || !compares() && map.problem.with(Option::is_none)><p class="text-muted" data-testid="map-empty">{why_not}</p></When>
            <When on=move || shows_cells(ranks.get(), map.answered.get(), map.problem.with(Option::is_some))><Cells map ranks /></When>
        </section>
    }
}

/// Returns true if the cells are shown. After an error, the cells of the measure or the period before are not: they are not what was chosen.
fn shows_cells(ranks: usize, is_answered: bool, has_failed: bool) -> bool {
    ranks >= PEERS_MIN && (is_answered || !has_failed)
}

/// Returns the measure with which the map of a run opens: one that shows the rank that an open diagnosis names as late, else the step time.
/// `None` until the diagnoses are known. It does not change later, while somebody looks at the map.
fn opening_measure(run: String) -> Memo<Option<Measure>> {
    let all = expect_context::<Live>().diagnoses;
    Memo::new(move |before: Option<&Option<Measure>>| {
        if let Some(opened) = before.copied().flatten() {
            return Some(opened);
        }
        let rows = all.rows();
        let late = rows
            .iter()
            .filter_map(|row| row.peek(|diagnosis| Measure::of_late_rank(&diagnosis.alert, &run)));
        // A diagnosis that names the phase says more.
        let late = late.min_by_key(|measure| *measure == Measure::Own);
        all.is_known().then_some(late.unwrap_or(Measure::Step))
    })
}

/// The choice of the measure, stored in the address.
fn choice(measure: Memo<Option<Measure>>) -> AnyView {
    let route = expect_context::<Route>();
    let option = |one: Measure| {
        let selected = Signal::derive(move || measure.get() == Some(one));
        view! { <option value=one.name() prop:selected=selected>{one.title()}</option> }.into_any()
    };
    let options: Vec<AnyView> = Measure::ALL.into_iter().map(option).collect();
    let choose = move |event| {
        let name = event_target_value(&event);
        route.set_param("map", Some(name.as_str()));
    };
    view! {
        <select class="select select-sm w-auto max-w-full" aria-label=tr("Measure") on:change=choose data-testid="map-measure">{options}</select>
    }
    .into_any()
}

/// The data of the map. Cheap to copy.
#[derive(Clone, Copy)]
struct RankMapState {
    id: StoredValue<String>,
    run: RunSignal,
    /// The worst values.
    matrix: StoredValue<Matrix, LocalStorage>,
    /// The mean values; empty until a cell was selected.
    means: StoredValue<Matrix, LocalStorage>,
    needs_means: RwSignal<bool>,
    /// Counts changes of the matrix, for the parts outside the canvas.
    version: RwSignal<u32>,
    /// Whether the values are those of the chosen measure and period.
    answered: RwSignal<bool>,
    problem: RwSignal<Option<String>>,
}

impl RankMapState {
    fn new(id: String, run: RunSignal) -> Self {
        Self {
            id: StoredValue::new(id),
            run,
            matrix: StoredValue::new_local(Matrix::default()),
            means: StoredValue::new_local(Matrix::default()),
            needs_means: RwSignal::new(false),
            version: RwSignal::new(0),
            answered: RwSignal::new(false),
            problem: RwSignal::new(None),
        }
    }

    /// Requests the values of the period, and again whenever the measure or the period changes. The means are requested as soon as a cell
    /// was selected. Requests nothing while the measure is unknown.
    fn follow(self, measure: Memo<Option<Measure>>, window: Memo<Window>) {
        let live = expect_context::<Live>();
        // One owner per request: the next one ends the watch of this one.
        effect(move || {
            self.expect_answer();
            if let Some(measure) = measure.get() {
                self.watch(live, measure, window.get(), Measure::query, Self::take);
            }
        });
        effect(move || {
            self.means.set_value(Matrix::default());
            if self.needs_means.get()
                && let Some(measure) = measure.get()
            {
                self.watch(live, measure, window.get(), Measure::mean, Self::take_means);
            }
        });
    }

    fn watch(
        self,
        live: Live,
        measure: Measure,
        window: Window,
        query: fn(Measure, &str, i64) -> String,
        take: fn(Self, StreamMessage),
    ) {
        let (range_ms, end_ms) = window.range();
        let step_ms = step_ms(range_ms);
        let query = self
            .id
            .try_with_value(|run| query(measure, run, step_ms))
            .unwrap_or_default();
        live.watch(
            |id| Request::WatchRange {
                id,
                query,
                range_ms,
                step_ms,
                extremes: false,
                end_ms,
            },
            move |message| take(self, message),
        );
    }

    fn take(self, message: StreamMessage) {
        match message {
            StreamMessage::Frame {
                reset,
                times_ms,
                series,
                ..
            } => {
                self.matrix.update_value(|matrix| {
                    matrix.take(reset, &times_ms, &series);
                    matrix.hide_before_start(|at_ms| self.start_of(at_ms));
                });
                self.problem.set(None);
                if !self.answered.get_untracked() {
                    self.answered.set(true);
                }
                self.changed();
            }
            StreamMessage::Failed { message, .. } => self.problem.set(Some(message)),
            _ => {}
        }
    }

    /// Takes means. If there are none, for example because they are too expensive, a cell is described without its mean.
    fn take_means(self, message: StreamMessage) {
        if let StreamMessage::Frame {
            reset,
            times_ms,
            series,
            ..
        } = message
        {
            self.means
                .update_value(|means| means.take(reset, &times_ms, &series));
            self.changed();
        }
    }

    fn changed(self) {
        self.version.update(|version| *version = version.wrapping_add(1));
    }

    /// Marks the values as those of another measure or period. They stay, dimmed, until the answer replaces them or an error hides them.
    fn expect_answer(self) {
        self.problem.set(None);
        self.answered.set(false);
    }

    /// Returns the start of the attempt that ran at a time, or of the first rank of the run if that is later.
    fn start_of(self, at_ms: TimestampMs) -> Option<TimestampMs> {
        self.run.with_untracked(|run| {
            let run = run.as_ref()?;
            let mut begun = run.more.attempts.iter().map(|attempt| attempt.started_ms);
            let attempt_ms = begun.rfind(|started_ms| *started_ms <= at_ms);
            attempt_ms.max(run.summary.started_ms)
        })
    }

    /// Returns the address of a rank's log in the attempt that ran at a time.
    fn log_of(self, rank: u32, at_ms: TimestampMs) -> String {
        let attempt = self
            .run
            .with_untracked(|run| attempt_at(&run.as_ref()?.more.attempts, at_ms));
        self.id.with_value(|id| of_log(id, attempt, Some(rank)))
    }

    /// Returns the time of the first or the last column; tracked.
    fn time(self, of: fn(&[Moment]) -> Option<&Moment>) -> Signal<String> {
        text(move || {
            self.version.track();
            let at_ms = self
                .matrix
                .with_value(|matrix| of(matrix.moments()).map(|moment| moment.at_ms));
            at_ms.map(clock).unwrap_or_default()
        })
    }
}

/// The canvas, with mouse and keyboard control.
#[component]
fn Cells(map: RankMapState, ranks: Memo<usize>) -> impl IntoView {
    let place = NodeRef::<Div>::new();
    let pointer = Pointer::new(map);
    let (canvas, width) = canvas_in(place, Canvas::on);
    effect(move || {
        map.version.track();
        let (width, pointed) = (width.get(), pointer.cell());
        if width == 0 {
            return;
        }
        map.matrix.with_value(|matrix| {
            canvas.update_value(|canvas| {
                if let Some(canvas) = canvas {
                    canvas.show(matrix, width, pointed);
                }
            });
        });
    });
    let (begin, end) = (map.time(<[Moment]>::first), map.time(<[Moment]>::last));
    let height = text(move || format!("{}px", Layout::of(ranks.get(), 0).height));
    let class = text(move || {
        if map.answered.get() {
            "relative unmeasured focus-visible:outline-2 outline-primary"
        } else {
            "relative unmeasured focus-visible:outline-2 outline-primary opacity-40"
        }
    });
    let ends = move |last: bool| {
        text(move || {
            map.version.track();
            let ends = map.matrix.with_value(Matrix::first_and_last);
            let rank = ends.map(|(low, high)| if last { high } else { low });
            rank.map(|rank| tr_with("rank {rank}", &[("rank", &rank)]))
                .unwrap_or_default()
        })
    };
    view! {
        <div class="grid grid-cols-[auto_minmax(0,1fr)] gap-x-2 text-xs text-muted">
            <div class="flex flex-col justify-between whitespace-nowrap" aria-hidden="true"><span>{ends(false)}</span><span>{ends(true)}</span></div>
            <div
                node_ref=place
                class=class
                style:height=height
                role="grid"
                tabindex="0"
                aria-label=tr("Ranks over time. Arrow keys select a value, Enter opens the log of its rank.")
                aria-activedescendant="map-pointed"
                data-testid="map-cells"
                data-version=move || map.version.get()
                on:pointermove=move |event| pointer.over(event.offset_x(), event.offset_y(), width.get_untracked())
                on:pointerleave=move |_| pointer.leave()
                on:click=move |event| pointer.pressed(event.offset_x(), event.offset_y(), width.get_untracked())
                on:keydown=move |event| pointer.key(&event)
            >
                <div role="row" class="sr-only"><div role="gridcell" id="map-pointed" aria-live="polite">{pointer.words}</div></div>
            </div>
            <span></span>
            <div class="flex justify-between"><span>{begin}</span><span>{end}</span></div>
        </div>
        <p class="text-xs min-h-5 mt-1" data-testid="map-words">{pointer.words}</p>
        {legend()}
    }
}

/// The meaning of colours and patterns.
fn legend() -> AnyView {
    let share = fixed(SPAN * 100.0, 0);
    let below = tr_with("{share} % of a step time below the median", &[("share", &share)]);
    let above = tr_with("{share} % of a step time above it", &[("share", &share)]);
    view! {
        <p class="flex flex-wrap gap-x-3 gap-y-1 items-center text-xs text-muted">
            <span class="inline-flex flex-wrap gap-1 items-center">
                <span>{below}</span>
                <span class="inline-block h-2 w-24 bg-gradient-to-r from-(--below) via-(--level) to-(--above)" aria-hidden="true"></span>
                <span>{above}</span>
            </span>
            <span class="inline-flex gap-1 items-center"><span class="inline-block size-3 unmeasured" aria-hidden="true"></span>{tr("not measured, or by fewer than three ranks")}</span>
        </p>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_hides_the_cells_of_the_choice_before() {
        for (ranks, is_answered, has_failed, expected) in [
            (2, true, false, false),
            (3, true, false, true),
            // Dimmed, until the answer arrives.
            (3, false, false, true),
            (3, false, true, false),
            // The last known values of what is chosen.
            (3, true, true, true),
        ] {
            assert_eq!(
                shows_cells(ranks, is_answered, has_failed),
                expected,
                "{ranks} ranks, {is_answered}, {has_failed}"
            );
        }
    }
}
