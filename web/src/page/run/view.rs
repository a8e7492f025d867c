//! The period that the charts of the page show. The address contains it.

use domain::api::runs::AttemptView;
use domain::time::TimestampMs;
use leptos::prelude::*;

use super::run_signal::RunSignal;
use super::span::{SPANS, Span, period};
use crate::chart::{Marks, Window, on_zoom, period_changed};
use crate::language::{tr, tr_with};
use crate::live::Live;
use crate::route::Route;
use crate::ui::{When, clock, effect, fixed, text};

/// The parameters of the address: the choice of the period, and the start and the end of the period on which the reader zoomed in.
const SPAN: &str = "span";
const FROM: &str = "from";
const TO: &str = "to";

/// The period. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct View {
    /// The period.
    pub(super) window: Memo<Window>,
    /// The starts of attempts.
    pub(super) marks: Memo<Marks>,
    route: Route,
    span: Memo<Option<String>>,
    from: Memo<Option<String>>,
    to: Memo<Option<String>>,
}

impl View {
    /// Creates the view of a run for the current owner.
    pub(super) fn of(run: RunSignal) -> Self {
        let route = expect_context::<Route>();
        let [span, from, to] = [SPAN, FROM, TO].map(|name| route.param(name));
        let marks = Memo::new(move |_| {
            run.with(|run| {
                run.as_ref()
                    .map(|run| beginnings(&run.more.attempts))
                    .unwrap_or_default()
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
            route,
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

    /// Returns the start and the end of the period on which the reader zoomed in; tracked.
    fn zoomed(self) -> Option<[TimestampMs; 2]> {
        match zoomed(self.from, self.to)? {
            Window::Past { start_ms, end_ms } => Some([start_ms, end_ms]),
            Window::Last { .. } => None,
        }
    }
}

/// The choice of the period, and the period on which the reader zoomed in.
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
                <select class="select select-sm w-auto" on:change=choose data-testid="span">{options}</select>
            </label>
        </div>
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

/// Returns the start of each attempt except the first: data left of a mark belongs to earlier attempts.
fn beginnings(attempts: &[AttemptView]) -> Marks {
    let later = attempts.iter().skip(1);
    later
        .map(|attempt| {
            let number = tr_with("attempt {number}", &[("number", &attempt.attempt)]);
            (attempt.started_ms, number)
        })
        .collect()
}
