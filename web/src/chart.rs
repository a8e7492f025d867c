//! A live chart of a query: the stream pushes columns, this keeps the last range of them, uPlot draws.
//!
//! A chart of a time that is over asks for it once instead.

mod lines;
mod multiples;
mod window;

use std::cell::RefCell;
use std::rc::Rc;

use domain::api::prometheus::{Answer, MatrixSeries};
use domain::api::stream::Request;
use domain::metric::Unit;
use domain::time::TimestampMs;
use js_sys::{Array, Float64Array};
use leptos::html::Div;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::Deserialize;
use wasm_bindgen::prelude::*;

use crate::live::{Live, News};
use crate::session::Who;
use crate::ui::{When, chart_unit, text, whenever};
use lines::Lines;

pub(crate) use multiples::Multiples;
pub(crate) use window::Window;

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = lockstepChart)]
    fn create(element: &web_sys::HtmlElement, unit: &str, small: bool) -> JsValue;
    #[wasm_bindgen(js_namespace = lockstepChart)]
    fn set(chart: &JsValue, names: Array, times: Float64Array, columns: Array);
    #[wasm_bindgen(js_namespace = lockstepChart)]
    fn mark(chart: &JsValue, times: Float64Array, words: Array);
    #[wasm_bindgen(js_namespace = lockstepChart)]
    fn destroy(chart: &JsValue);
}

/// A titled chart of what `query` gives in `window`.
#[component]
pub(crate) fn Chart(
    /// Above the chart.
    title: &'static str,
    /// What one should know to read it.
    hint: &'static str,
    /// How values are written.
    unit: Unit,
    /// PromQL.
    query: String,
    /// The label that tells the lines apart; its value is their name.
    by: &'static str,
    /// Which time it shows.
    #[prop(into)]
    window: Signal<Window>,
    /// Times that stand out, in milliseconds, each with a word.
    #[prop(into)]
    marks: Signal<Marks>,
    /// The order of the lines, where their names are not numbers.
    #[prop(optional)]
    order: &'static [&'static str],
) -> impl IntoView {
    let place = NodeRef::<Div>::new();
    let drawing = Drawing::new(by, order);
    drawing.follow(query, window);
    whenever(move || drawing.mark(&marks.get()));
    whenever(move || {
        if let Some(element) = place.get() {
            drawing.begin(create(&element, chart_unit(unit), false));
            drawing.mark(&marks.get_untracked());
        }
    });
    view! {
        <section class="card bg-base-200 p-3 min-w-0" aria-label=title data-testid="chart" data-title=title data-points=move || drawing.points.get() data-marks=move || marks.with(Vec::len)>
            <h3 class="font-semibold">{title}</h3>
            <p class="text-xs opacity-70 mb-1">{hint}</p>
            <When on=move || drawing.problem.with(Option::is_some)>
                <p class="alert alert-warning text-sm" role="alert">{text(move || drawing.problem.get().unwrap_or_default())}</p>
            </When>
            <div class="relative min-h-[260px]">
                <div node_ref=place class="w-full"></div>
                <When on=move || drawing.points.get() == 0>
                    <p class="absolute inset-x-0 top-24 text-center text-sm opacity-70">{text(move || drawing.empty())}</p>
                </When>
            </div>
        </section>
    }
}

/// Times that stand out, each with a word.
pub(crate) type Marks = Vec<(TimestampMs, String)>;

/// Puts them on a canvas.
fn put_marks(canvas: &JsValue, marks: &Marks) {
    #[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 fit 53 bits")]
    let times: Vec<f64> = marks.iter().map(|(at_ms, _)| *at_ms as f64 / 1_000.0).collect();
    let words: Array = marks.iter().map(|(_, word)| JsValue::from_str(word)).collect();
    mark(canvas, Float64Array::from(times.as_slice()), words);
}

/// Puts lines on a canvas.
fn put_lines<'a>(
    canvas: &JsValue,
    names: &[String],
    times: &[f64],
    columns: impl Iterator<Item = &'a Vec<f64>>,
) {
    let names: Array = names.iter().map(|name| JsValue::from_str(name)).collect();
    let columns: Array = columns
        .map(|column| JsValue::from(Float64Array::from(column.as_slice())))
        .collect();
    set(canvas, names, Float64Array::from(times), columns);
}

/// What a range query answers: it is always of the kind `matrix`.
#[derive(Deserialize)]
struct Matrix {
    result: Vec<MatrixSeries>,
}

/// The lines of a chart and the canvas they are drawn on.
#[derive(Clone, Copy)]
struct Drawing {
    by: &'static str,
    order: &'static [&'static str],
    lines: StoredValue<Rc<RefCell<Lines>>, LocalStorage>,
    canvas: StoredValue<Option<JsValue>, LocalStorage>,
    /// Times that have a value; 0 means that there is nothing to see.
    points: RwSignal<usize>,
    /// Whether anything was answered yet.
    answered: RwSignal<bool>,
    problem: RwSignal<Option<String>>,
}

impl Drawing {
    /// Belongs to the current owner, and ends with it.
    fn new(by: &'static str, order: &'static [&'static str]) -> Self {
        let canvas: StoredValue<Option<JsValue>, LocalStorage> = StoredValue::new_local(None);
        on_cleanup(move || canvas.with_value(|canvas| canvas.iter().for_each(destroy)));
        Self {
            by,
            order,
            lines: StoredValue::new_local(Rc::default()),
            canvas,
            points: RwSignal::new(0),
            answered: RwSignal::new(false),
            problem: RwSignal::new(None),
        }
    }

    fn begin(self, canvas: JsValue) {
        self.canvas.set_value(Some(canvas));
        self.draw();
    }

    fn mark(self, marks: &Marks) {
        self.canvas
            .with_value(|canvas| canvas.iter().for_each(|canvas| put_marks(canvas, marks)));
    }

    fn empty(self) -> &'static str {
        if self.answered.get() {
            "Nothing was measured in this time."
        } else {
            "Loading…"
        }
    }

    /// Asks for what the window shows, anew whenever that is another window.
    fn follow(self, query: String, window: Signal<Window>) {
        let live = expect_context::<Live>();
        let who = expect_context::<Who>();
        // One owner a window: another one ends the watch of the one before.
        whenever(move || {
            let query = query.clone();
            match window.get() {
                Window::Last { range_ms } => live.watch(
                    |id| Request::WatchRange {
                        id,
                        query,
                        range_ms,
                        step_ms: window::step_ms(range_ms),
                    },
                    move |news| self.take(news, range_ms),
                ),
                past @ Window::Past { start_ms, end_ms } => spawn_local(async move {
                    let path = window::path(&query, start_ms, end_ms);
                    let answer = who.get::<Answer<Matrix>>(&path).await;
                    // The page may show another window by now, or be gone.
                    if window.try_get_untracked() == Some(past) {
                        self.take_past(answer.map_err(|error| error.message), start_ms, end_ms);
                    }
                }),
            }
        });
    }

    fn take(self, news: News, range_ms: i64) {
        match news {
            News::Frame {
                reset,
                times_ms,
                series,
                ..
            } => self.change(|lines| lines.take(reset, &times_ms, &series, range_ms)),
            News::Failed { message, .. } => self.problem.set(Some(message)),
            _ => {}
        }
    }

    fn take_past(self, answer: Result<Answer<Matrix>, String>, start_ms: i64, end_ms: i64) {
        match answer {
            Ok(answer) => {
                let step_ms = window::step_ms(end_ms - start_ms);
                let series = answer.data.map(|data| data.result).unwrap_or_default();
                self.change(|lines| *lines = Lines::of_past(&series, start_ms, end_ms, step_ms));
            }
            Err(message) => self.problem.set(Some(message)),
        }
    }

    fn change(self, change: impl FnOnce(&mut Lines)) {
        self.problem.set(None);
        self.answered.set(true);
        let lines = self.lines.get_value();
        change(&mut lines.borrow_mut());
        self.points.set(lines.borrow().measured());
        self.draw();
    }

    fn draw(self) {
        let lines = self.lines.get_value();
        let lines = lines.borrow();
        self.canvas.with_value(|canvas| {
            if let Some(canvas) = canvas {
                let (names, times, columns) = lines.columns(self.by, self.order);
                put_lines(canvas, &names, &times, columns.iter());
            }
        });
    }
}
