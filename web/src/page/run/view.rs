//! The period that the charts of the page show, and whether they have marks. The address contains both.

use domain::time::TimestampMs;
use leptos::prelude::*;

use super::axis::RunHistory;
use super::checkpoint_list::CheckpointList;
use super::marks::{all_marks, as_text};
use super::run_signal::RunSignal;
use super::span::{SPANS, Span, Step, period};
use crate::chart::{Marks, Window, on_zoom, period_changed};
use crate::language::{tr, tr_with};
use crate::live::Live;
use crate::route::Route;
use crate::ui::{When, clock, effect, fixed, focus, on_page_key, text};

/// The parameters of the address: the choice of the period, and the start and the end of the period on which the reader zoomed in.
const SPAN: &str = "span";
const FROM: &str = "from";
const TO: &str = "to";
/// The parameter that hides all marks except those of attempts, and its value.
const MARKS: &str = "marks";
const ATTEMPTS: &str = "attempts";

/// The period. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct View {
    /// The period.
    pub(super) window: Memo<Window>,
    /// The starts of attempts; unless they are hidden, also diagnoses and checkpoints.
    pub(super) marks: Memo<Marks>,
    run: RunSignal,
    now_ms: RwSignal<TimestampMs>,
    route: Route,
    marked: Memo<Option<String>>,
    span: Memo<Option<String>>,
    from: Memo<Option<String>>,
    to: Memo<Option<String>>,
}

impl View {
    /// Creates the view of a run for the current owner.
    pub(super) fn of(run: RunSignal, checkpoints: CheckpointList, history: RwSignal<RunHistory>) -> Self {
        let route = expect_context::<Route>();
        let [span, from, to, marked] = [SPAN, FROM, TO, MARKS].map(|name| route.param(name));
        let marks = Memo::new(move |_| {
            let is_whole = !hides_marks(marked);
            let checkpoints = if is_whole { checkpoints.all() } else { vec![] };
            run.with(|run| {
                let attempts = run.as_ref().map_or(&[][..], |run| &run.more.attempts[..]);
                history.with(|history| {
                    let diagnoses = if is_whole { &history.diagnoses[..] } else { &[] };
                    all_marks(attempts, diagnoses, &checkpoints)
                })
            })
        });
        let now_ms = expect_context::<Live>().now_ms;
        let window = Memo::new(move |_| {
            if let Some(zoomed) = zoomed(from, to) {
                return zoomed;
            }
            let span = chosen(span);
            run.with(|run| match run {
                Some(run) => span.window(&run.summary, now_ms.get()),
                None => Window::Last { range_ms: 600_000 },
            })
        });
        let view = Self {
            window,
            marks,
            run,
            now_ms,
            route,
            marked,
            span,
            from,
            to,
        };
        on_zoom(move |ends| view.zoom(ends));
        effect(move || period_changed(matches!(window.get(), Window::Last { .. })));
        on_cleanup(|| period_changed(false));
        view
    }

    /// Shows the period between two times in seconds, or the chosen one again.
    fn zoom(self, ends: Option<(f64, f64)>) {
        let from = ends.map(|(from, _)| fixed(from.floor(), 0));
        let to = ends.map(|(_, to)| fixed(to.ceil(), 0));
        self.route.set_param(FROM, from.as_deref());
        self.route.set_param(TO, to.as_deref());
    }

    /// Shows the period before or after the current one, with the same length.
    fn step(self, is_later: bool) {
        let (window, now_ms) = (self.window.get_untracked(), self.now_ms.get_untracked());
        let step = self.run.with_untracked(|run| {
            let run = run.as_ref()?;
            Some(Step::from(window, is_later, &run.summary, now_ms))
        });
        match step {
            Some(Step::Period { start_ms, end_ms }) => {
                self.zoom(Some((start_ms as f64 / 1_000.0, end_ms as f64 / 1_000.0)));
            }
            Some(Step::Newest) => self.zoom(None),
            Some(Step::Nowhere) | None => {}
        }
    }

    /// Returns the start and the end of the period on which the reader zoomed in; tracked.
    fn zoomed(self) -> Option<[TimestampMs; 2]> {
        match zoomed(self.from, self.to)? {
            Window::Past { start_ms, end_ms } => Some([start_ms, end_ms]),
            Window::Last { .. } => None,
        }
    }
}

/// The choice of the period, and the period on which the reader zoomed in. Handles the keys `t`, `[` and `]`.
#[component]
pub(super) fn ChooseSpan(view: View) -> impl IntoView {
    let option = |(span, name, words): (Span, &'static str, &'static str)| {
        let selected = Signal::derive(move || chosen(view.span) == span);
        view! { <option value=name prop:selected=selected>{tr(words)}</option> }.into_any()
    };
    let options: Vec<AnyView> = SPANS.into_iter().map(option).collect();
    let choose = move |event| {
        let name = event_target_value(&event);
        let name = Some(name.as_str()).filter(|name| *name != SPANS[0].1);
        view.route.set_param(SPAN, name);
        view.zoom(None);
    };
    on_page_key(move |key| match key {
        "t" => focus("#run-span"),
        "[" | "]" => {
            view.step(key == "]");
            true
        }
        _ => false,
    });
    let zoomed = text(move || {
        let Some(ends) = view.zoomed() else {
            return String::new();
        };
        let [begin, end] = ends.map(clock);
        tr_with("{begin} to {end}", &[("begin", &begin), ("end", &end)])
    });
    view! {
        <div class="text-sm flex flex-wrap gap-2 items-center">
            <When on=move || view.zoomed().is_some()>
                <span class="font-mono">{zoomed}</span>
                <button class="btn btn-sm" on:click=move |_| view.zoom(None) data-testid="unzoom">{tr("Zoom out")}</button>
            </When>
            <label class="flex gap-2 items-center">{tr("Show")}
                <select class="select select-sm w-auto" id="run-span" on:change=choose data-testid="span">{options}</select>
            </label>
        </div>
    }
}

/// The choice whether the charts have marks, and their text for readers who do not see them.
#[component]
pub(super) fn ChooseMarks(view: View) -> impl IntoView {
    let toggle = move |_| {
        let value = (!hides_marks(view.marked)).then_some(ATTEMPTS);
        view.route.set_param(MARKS, value);
    };
    let shown = Signal::derive(move || !hides_marks(view.marked));
    let marked = text(move || view.marks.with(|marks| as_text(marks)));
    view! {
        <p class="sr-only" data-testid="marks-text">{marked}</p>
        <label class="text-sm flex gap-2 items-center" title=tr("Thin lines in the charts: ▲, ◆ or ● a diagnosis, ▾ a saved checkpoint. The pointer on a line shows its text.")>
            <input type="checkbox" prop:checked=shown on:change=toggle data-testid="marks" />
            {tr("Marks")}
        </label>
    }
}

/// Returns the chosen period; tracked.
fn chosen(span: Memo<Option<String>>) -> Span {
    span.with(|name| Span::of(name.as_deref()))
}

/// Returns the period on which the reader zoomed in; tracked.
fn zoomed(from: Memo<Option<String>>, to: Memo<Option<String>>) -> Option<Window> {
    from.with(|from| to.with(|to| period(from.as_deref(), to.as_deref())))
}

/// Returns true if only attempts are marked; tracked.
fn hides_marks(marked: Memo<Option<String>>) -> bool {
    marked.with(|marked| marked.as_deref() == Some(ATTEMPTS))
}
